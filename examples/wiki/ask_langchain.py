"""Answers a question with a learned conductor as a LangChain chat model.

Create the folder first, with `rl-conductor learn`; `docs/learning.md` shows the command.

    python examples/wiki/ask_langchain.py runs/wiki "What is the total price of 4 helmets?"
"""

import sys

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from langchain_conductor import ChatConductor

if len(sys.argv) != 3:
    sys.exit(__doc__)
folder, question = sys.argv[1:]
prompt = ChatPromptTemplate.from_messages([("user", "{question}")])
chain = prompt | ChatConductor(conductor=folder) | StrOutputParser()
print(chain.invoke({"question": question}))
