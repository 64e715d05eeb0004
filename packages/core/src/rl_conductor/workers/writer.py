"""`WriterModel`: puts what is known into the form that is asked for, and says nothing else."""

from __future__ import annotations

from rl_conductor.models import Model
from rl_conductor.prompts import prompt_in, subtask_in, with_prompt
from rl_conductor.tasks.answers import spelled
from rl_conductor.workers.compact import last_reply, shown
from rl_conductor.workers.delegating import Base, Brief, DelegatingModel

NUMBERS = (26, 7, 83, 91, 12, 18, 40, 35, 13, 68, 59, 74, 15, 33)
STYLE = Brief(
    "You write a text exactly in the form that is asked for. Reply with that text only: no introduction, no "
    "explanation, no quotes.",
    examples=(
        ("mind the gap\n\nWrite it in capitals.", "MIND THE GAP"),
        (shown("Take the number 85. Reply with that number in words.", "Answer it."), "eighty-five"),
        (shown("Consider 94. Reply with that number in words.", "Write the number in words."), "ninety-four"),
        *((f"{number}\n\nWrite the number in words.", spelled(number)) for number in NUMBERS),
        ("Elm Road: Number of houses: 52.\n\nWrite the number in words.", "fifty-two"),
        ("Old Tom: Height: 28.\n\nWrite the result in English words.", "twenty-eight"),
    ),
)
"""A publisher's style, as far as it goes."""


class WriterModel(DelegatingModel):
    """A model with a style sheet, by examples: exact in form where the base model alone is not.

    It is shown the reply of the latest step that it may read and its own part, and not the overall task, which tempts
    small models to begin anew; the overall task only where there is no reply to work on.
    """

    kind = "writer"

    def __init__(self, base: Model | str, *, style: Brief = STYLE) -> None:
        """Set up a writer.

        Args:
            base: who writes: a model or its `provider:model`.
            style: the rules of the sheet, with examples.
        """
        super().__init__(base)
        self._style = style

    async def answer(self, base: Base) -> str:
        """The text."""
        prompt = prompt_in(base.request.messages)
        known = last_reply(prompt)
        told = prompt if known is None else f"{known}\n\n{subtask_in(prompt)}"
        return (await base.ask(self._style.before(with_prompt(base.request.messages, told)))).strip()
