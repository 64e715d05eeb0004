"""`CoderModel`: answers by writing a Python program, running it in the sandbox, and replying with what it prints."""

from __future__ import annotations

from rl_conductor.models import Model
from rl_conductor.sandbox import Bounds, Ran, program_in, run_python
from rl_conductor.types import Message
from rl_conductor.workers.compact import shown
from rl_conductor.workers.delegating import Base, Brief, DelegatingModel

AGE = "Add 7 to the age of the tree Old Tom and halve it. What remains when the result is divided by 12?"
SQUARE = "Square the height of the twin tree of Old Tom, add 3, and write the digits in reverse order."
BRIEF = Brief(
    "You do what you are asked by writing a short Python program. It prints the result of the overall task and nothing "
    "else. It has no input, no files and no network: write the values it needs into it. Reply with the program only.",
    examples=(
        (
            shown("How many letters has the longest of the words river, mountain and sea?", "Answer the question."),
            "```python\nprint(max(map(len, ['river', 'mountain', 'sea'])))\n```",
        ),
        (
            shown(AGE, "Calculate it.", "Old Tom: Age: 341.\nOld Tom: Height: 21."),
            "```python\nprint((341 + 7) // 2 % 12)\n```",
        ),
        (
            shown("What is the remainder of 8 times 903 divided by 77? Reply with the number only.", "Answer it."),
            "```python\nprint(8 * 903 % 77)\n```",
        ),
        (
            shown(SQUARE, "Calculate.", "Old Tom: Twin tree: Red Ann.", "Red Ann: Height: 34."),
            "```python\nprint(str(34 ** 2 + 3)[::-1])\n```",
        ),
    ),
)
AGAIN = """The program does not work: {problem}
Write the whole program again without the mistake, in a ```python block."""


class CoderModel(DelegatingModel):
    """A model with an interpreter: exact at arithmetic, counting, dates, searching and anything else that computes."""

    kind = "coder"

    def __init__(self, base: Model | str, *, attempts: int = 2, bounds: Bounds | None = None) -> None:
        """Set up a coder.

        Args:
            base: who writes the programs: a model or its `provider:model`.
            attempts: most programs for one reply; the next is written knowing how the last one failed.
            bounds: what one program may use.
        """
        super().__init__(base)
        self._attempts = attempts
        self._bounds = bounds

    async def answer(self, base: Base) -> str:
        """What the first program that works prints; how the last one failed when none does."""
        messages = BRIEF.before(base.request.messages)
        problem = ""
        for _ in range(self._attempts):
            written = await base.ask(messages)
            ran = await run_python(program_in(written), bounds=self._bounds)
            problem = problem_of(ran)
            if not problem:
                return ran.output.strip()
            messages = (*messages, Message.assistant(written), Message.user(AGAIN.format(problem=problem)))
        return f"No program worked; the last one: {problem}"


def problem_of(ran: Ran) -> str:
    """Why a program gave no result, in one line; empty when it gave one."""
    if ran.status == "timeout":
        return f"it was still running after {ran.seconds:.0f} seconds"
    if ran.status == "failed":
        return (ran.error.strip().splitlines() or ["it was stopped"])[-1]
    return "" if ran.output.strip() else "it printed nothing"
