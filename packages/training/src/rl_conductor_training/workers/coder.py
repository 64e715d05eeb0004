"""`CoderModel`: writes a Python program, runs it in the sandbox and replies with its output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_conductor.agents import BaseModelSession, DelegatingModel
from rl_conductor.models import Model
from rl_conductor.types import Message
from rl_conductor_training.sandbox.sandbox import ResourceLimits, extract_program, run_python
from rl_conductor_training.tasks.scorers.programs import describe_failure
from rl_conductor_training.workers.compact import example_prompt
from rl_conductor_training.workers.prompt_template import PromptTemplate

AGE = "Add 7 to the age of the tree Old Tom and halve it. What remains when the result is divided by 12?"
SQUARE = "Square the height of the twin tree of Old Tom, add 3, and write the digits in reverse order."
PROMPT = PromptTemplate(
    "You do what you are asked by writing a short Python program. It prints the result of the overall task and nothing "
    "else. It has no input, no files and no network: write the values it needs into it. Reply with the program only.",
    examples=(
        (
            example_prompt(
                "How many letters has the longest of the words river, mountain and sea?", "Answer the question."
            ),
            "```python\nprint(max(map(len, ['river', 'mountain', 'sea'])))\n```",
        ),
        (
            example_prompt(AGE, "Calculate it.", "Old Tom: Age: 341.\nOld Tom: Height: 21."),
            "```python\nprint((341 + 7) // 2 % 12)\n```",
        ),
        (
            example_prompt(
                "What is the remainder of 8 times 903 divided by 77? Reply with the number only.", "Answer it."
            ),
            "```python\nprint(8 * 903 % 77)\n```",
        ),
        (
            example_prompt(SQUARE, "Calculate.", "Old Tom: Twin tree: Red Ann.", "Red Ann: Height: 34."),
            "```python\nprint(str(34 ** 2 + 3)[::-1])\n```",
        ),
    ),
)
RETRY_PROMPT = """The program does not work: {problem}
Write the whole program again without the mistake, in a ```python block."""


class CoderModel(DelegatingModel):
    """A model with a Python interpreter: exact at arithmetic, counting, dates and other computations."""

    kind = "coder"

    def __init__(
        self,
        base: Model | str,
        *,
        attempts: int = 2,
        limits: ResourceLimits | None = None,
        base_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Wraps a base model.

        Args:
            base: the model that writes the programs, or its `provider:model`.
            attempts: maximum number of programs per reply; each retry sees the error of the last program.
            limits: resource limits of one program.
            base_options: options of the base model, if it is a name.
        """
        super().__init__(base, base_options=base_options)
        self._attempts = attempts
        self._limits = limits

    async def answer(self, session: BaseModelSession) -> str:
        """Returns the output of the first working program, or the error of the last one."""
        messages = PROMPT.to_messages(session.request.messages)
        problem = ""
        for _ in range(self._attempts):
            reply = await session.ask(messages)
            result = await run_python(extract_program(reply), limits=self._limits)
            problem = describe_failure(result) or ("" if result.output.strip() else "it printed nothing")
            if not problem:
                return result.output.strip()
            messages = (*messages, Message.assistant(reply), Message.user(RETRY_PROMPT.format(problem=problem)))
        return f"No program worked; the last one: {problem}"
