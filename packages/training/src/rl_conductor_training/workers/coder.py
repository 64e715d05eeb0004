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
EXAMPLE_PROGRAMS = frozenset(extract_program(reply) for _, reply in PROMPT.examples)
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
            output, problem = await self._run(extract_program(reply))
            if not problem:
                return output
            messages = (*messages, Message.assistant(reply), Message.user(RETRY_PROMPT.format(problem=problem)))
        return f"No program worked; the last one: {problem}"

    async def _run(self, program: str) -> tuple[str, str]:
        """Returns the output of a program, and why that is no reply; the reason is empty if it is one."""
        if program in EXAMPLE_PROGRAMS:  # small models repeat one where they find no program of their own
            return "", "it is the program of an example, which answers another question"
        result = await run_python(program, limits=self._limits)
        output = result.output.strip()
        return output, describe_failure(result) or ("" if output else "it printed nothing")
