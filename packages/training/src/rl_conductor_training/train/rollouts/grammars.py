"""The grammars of the first and the second round."""

from __future__ import annotations

from rl_conductor.trace.trace import PlanRecord, Round
from rl_conductor_training.train.policy.grammar_constraint import GrammarConstraint
from rl_conductor_training.train.policy.model_loading import LoadedModel
from rl_conductor_training.train.prompt_instances import PromptInstance


def compile_round_grammars(
    loaded: LoadedModel, instance: PromptInstance, *, has_second_round: bool
) -> list[GrammarConstraint | None]:
    """Compiles the grammar of each round; `None` if `[plan]` asks for none.

    It is the same for all instances: it has workers as numbers, every pool has the same size, and the replies of the
    first round don't affect it.
    """
    rounds = [instance]
    if has_second_round:
        rounds.append(instance.next_round(Round(plan=PlanRecord(source="planner"))))
    settings = instance.plan
    return [loaded.compile_grammar(each.space, settings.form) if settings.grammar else None for each in rounds]
