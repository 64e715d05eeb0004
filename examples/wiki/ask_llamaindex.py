"""Answers a question with a learned conductor as a LlamaIndex LLM.

Create the folder first, with `rl-conductor learn`; `docs/learning.md` shows the command.

    python examples/wiki/ask_llamaindex.py runs/wiki "What is the total price of 4 helmets?"
"""

import sys

from llama_index.core.llms import ChatMessage

from llama_index.llms.conductor import Conductor

if len(sys.argv) != 3:
    sys.exit(__doc__)
folder, question = sys.argv[1:]
llm = Conductor(conductor=folder)
print(llm.chat([ChatMessage(question)]).message.content)
for step in llm.trace.results if llm.trace else ():
    print(f"{step.index + 1}. {step.step.worker}")
