"""`WriterModel`: rewrites a result in the requested format, and adds nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_conductor.agents import BaseModelSession, DelegatingModel
from rl_conductor.models import Model
from rl_conductor.prompting.worker_prompt import subtask_in, with_prompt
from rl_conductor.types import prompt_in
from rl_conductor_training.tasks.scorers.answers import number_to_words
from rl_conductor_training.workers.compact import example_prompt, last_reply
from rl_conductor_training.workers.prompt_template import PromptTemplate

NUMBERS = (26, 7, 83, 91, 12, 18, 40, 35, 13, 68, 59, 74, 15, 33)
STYLE = PromptTemplate(
    "You write a text exactly in the form that is asked for. Reply with that text only: no introduction, no "
    "explanation, no quotes.",
    examples=(
        ("mind the gap\n\nWrite it in capitals.", "MIND THE GAP"),
        (example_prompt("Take the number 85. Reply with that number in words.", "Answer it."), "eighty-five"),
        (example_prompt("Consider 94. Reply with that number in words.", "Write the number in words."), "ninety-four"),
        *((f"{number}\n\nWrite the number in words.", number_to_words(number)) for number in NUMBERS),
        ("Elm Road: Number of houses: 52.\n\nWrite the number in words.", "fifty-two"),
        ("Old Tom: Height: 28.\n\nWrite the result in English words.", "twenty-eight"),
    ),
)
"""The default style sheet: numbers in words and other exact formats."""


class WriterModel(DelegatingModel):
    """A model with a style sheet and examples, for exact formats.

    It sees the latest reply and its own subtask, but the overall task only where there is no reply, because the task
    tempts small models to solve it again.
    """

    kind = "writer"

    def __init__(
        self,
        base: Model | str,
        *,
        style: PromptTemplate = STYLE,
        base_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Wraps a base model.

        Args:
            base: the model that writes, or its `provider:model`.
            style: the rules of the style sheet, with examples.
            base_options: options of the base model, if it is a name.
        """
        super().__init__(base, base_options=base_options)
        self._style = style

    async def answer(self, session: BaseModelSession) -> str:
        """Returns the rewritten text."""
        prompt = prompt_in(session.request.messages)
        reply = last_reply(prompt)
        text = prompt if reply is None else f"{reply}\n\n{subtask_in(prompt)}"
        messages = self._style.to_messages(with_prompt(session.request.messages, text))
        return (await session.ask(messages)).strip()
