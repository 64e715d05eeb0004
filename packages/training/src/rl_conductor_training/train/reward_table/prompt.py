"""The planner's prompt and the text of plans, as in serving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from rl_conductor.conductor import Conductor
from rl_conductor.errors import WorkflowError
from rl_conductor.plan_text.forms import render
from rl_conductor.plan_text.grammar import constraint
from rl_conductor.plan_text.parser import parse
from rl_conductor.prompting.planner_prompt import PromptSettings, planner_messages
from rl_conductor.text.delimiters import new_delimiter_key
from rl_conductor.types import Card, Grammar, Message
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.workflow import Workflow


@dataclass(frozen=True)
class PlanPrompt:
    """The prompt of a planner without the user's conversation."""

    space: PlanSpace
    cards: tuple[Card, ...]
    settings: PromptSettings

    @classmethod
    def of(cls, conductor: Conductor) -> Self:
        """Returns the prompt of a conductor's planner, which must have no worked examples."""
        planner, pool = conductor.planner, conductor.pool
        assert planner.examples == 0, "a trained planner needs none"
        space = conductor.policy.space(pool.cards, max_steps=conductor.limits.steps, access=conductor.config.access)
        return cls(planner.plannable(space), tuple(pool.cards), planner.prompt_settings)

    def with_cards(self, cards: Sequence[Card]) -> Self:
        """Returns the prompt that lists these workers, with the same names, in this order."""
        roster = tuple(card.name for card in cards)
        return replace(self, cards=tuple(cards), space=self.space.model_copy(update={"roster": roster}))

    def messages(self, conversation: Sequence[Message]) -> tuple[Message, ...]:
        """Builds the messages that ask for a plan."""
        return planner_messages(conversation, self.space, self.cards, self.settings, key=new_delimiter_key())

    def text(self, workflow: Workflow, reasoning: str = "") -> str:
        """Renders a plan, after its line of reasoning."""
        return render(workflow, self.space, self.settings.form, reasoning=reasoning)

    def read(self, text: str) -> Workflow | None:
        """Parses a plan; `None` if it is invalid."""
        try:
            return parse(text, self.space, form=self.settings.form, repair=False).workflow
        except WorkflowError:
            return None

    def allows(self, workflow: Workflow) -> bool:
        """Whether the planner may write the plan."""
        return not self.space.violations(workflow)

    @property
    def gbnf(self) -> str | None:
        """The grammar of the plans; `None` if their form has none."""
        grammar = constraint(self.space, self.settings.form, counted=False)
        return grammar.gbnf if isinstance(grammar, Grammar) else None
