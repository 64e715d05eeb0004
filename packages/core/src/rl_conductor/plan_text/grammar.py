"""Creates the grammar of exactly the plans that a `PlanSpace` allows, for constrained decoding.

With it, a model can't generate a forbidden worker, too many steps, a forward reference or a forbidden flow. The grammar
is a finite automaton: `plan_states` explains its states, and `rows_grammar` and `lists_grammar` have its rules.
"""

from __future__ import annotations

from functools import lru_cache

from rl_conductor.errors import ConfigError
from rl_conductor.plan_text.forms import Form, render
from rl_conductor.plan_text.gbnf import GrammarTooLarge, line_rule, quote_literal, string_rules
from rl_conductor.plan_text.json_schema import plan_schema
from rl_conductor.plan_text.lists_grammar import BinaryListsGrammar, PositionalListsGrammar
from rl_conductor.plan_text.plan_states import PlanStates
from rl_conductor.plan_text.rows_grammar import RowsGrammar
from rl_conductor.types import Grammar, JsonFormat
from rl_conductor.workflow.plan_space import PlanSpace

PLAN_FORMAT_NAME = "plan"
"""Name of the JSON format of plans; adapters return a reply to such a request as it is, since its parser repairs it."""
REASONING_CHARS = 300
"""Maximum length of the reasoning before a plan, so that a model that doesn't stop still reaches the plan."""
MAX_STEPS = 12
"""Maximum steps of a grammar: the subsets of earlier steps double with each step."""

__all__ = ["PLAN_FORMAT_NAME", "REASONING_CHARS", "GrammarTooLarge", "constraint"]


def constraint(
    space: PlanSpace,
    form: Form,
    *,
    reasoning_chars: int = REASONING_CHARS,
    counted: bool = True,
    array_bounds: bool = True,
) -> Grammar | JsonFormat:
    """Creates the constraint that limits decoding to the plans of `space` in `form`.

    A `Grammar` matches exactly the texts that `parse` accepts strictly, after at most one line of reasoning. The
    `JsonFormat` of `object` is less exact; `PlanSpace.check` rejects the rest.

    Args:
        space: the allowed plans.
        form: the form of plan text.
        reasoning_chars: the maximum length of the reasoning; 0 for none.
        counted: whether the grammar limits the length of reasoning and subtasks; otherwise only the check does.
            XGrammar takes up to half a second per token for this, and near the limit offers tokens that it rejects.
        array_bounds: whether the `JsonFormat` limits the number of steps; otherwise only the check does.

    Raises:
        ConfigError: no plan is allowed.
        GrammarTooLarge: the grammar would be too large; use `relaxed_constraint` and rely on `PlanSpace.check`.
    """
    result = _cached_constraint(space, form, reasoning_chars, counted, array_bounds)
    if isinstance(result, ConfigError):
        raise type(result)(*result.args)
    return result


def relaxed_constraint(space: PlanSpace, form: Form, *, counted: bool = True) -> tuple[Grammar | None, str]:
    """Creates a grammar for a space with too many rules for an exact one, and names those that are left to the check.

    Returns:
        The grammar without the rules of flow, or `None` if that is too large as well; and the sentence that says so.
    """
    without_flows = space.model_copy(update={"forbidden_flows": frozenset()})
    try:
        grammar = constraint(without_flows, form, counted=counted)
    except GrammarTooLarge as error:
        return None, f"plans are not constrained while they are generated ({error}); they are checked afterwards"
    assert isinstance(grammar, Grammar)
    count = len(space.forbidden_flows)
    return grammar, (
        f"policy.forbid closes {count} flows between workers, too many for the grammar of plans; plans that break one "
        "are rejected after they are generated"
    )


@lru_cache(maxsize=256)
def _cached_constraint(
    space: PlanSpace, form: Form, reasoning_chars: int, counted: bool, array_bounds: bool
) -> Grammar | JsonFormat | ConfigError:
    """Returns the constraint or the error; errors are cached, too, as they take longest."""
    try:
        return _create_constraint(space, form, reasoning_chars, counted, array_bounds)
    except ConfigError as error:
        return error.with_traceback(None)


def _create_constraint(
    space: PlanSpace, form: Form, reasoning_chars: int, counted: bool, array_bounds: bool
) -> Grammar | JsonFormat:
    if not space.choices:
        raise ConfigError(f"no plan is possible: no worker of the roster ({', '.join(space.roster)}) is allowed")
    if form == "object":
        return JsonFormat(name=PLAN_FORMAT_NAME, json_schema=plan_schema(space, array_bounds=array_bounds))
    if space.max_steps > MAX_STEPS:
        raise GrammarTooLarge(f"plans of up to {space.max_steps} steps; a grammar is written for at most {MAX_STEPS}")
    return Grammar(gbnf=_write_grammar(space, form, reasoning_chars, counted))


def _write_grammar(space: PlanSpace, form: Form, reasoning_chars: int, counted: bool) -> str:
    """Writes the grammar of a form other than `object` in GBNF."""
    states = _states(space, form)
    plans = [start] if (start := states.start()) else []
    if space.may_accept:
        plans.append(quote_literal(render(None, space, form)))
    if not plans:
        raise ConfigError("no plan is possible: the rules of this space contradict one another")
    strings = string_rules(space.subtask_chars if counted else None)
    first = {"root": "plan", "plan": " | ".join(plans), **strings}
    if reasoning_chars:
        reasoning = line_rule(reasoning_chars if counted else None, not_first="[" if form == "rows" else "")
        first |= {"root": "reasoning? plan", "reasoning": reasoning}
    return states.rules.text(first)


def _states(space: PlanSpace, form: Form) -> PlanStates:
    if form == "rows":
        return RowsGrammar(space)
    return BinaryListsGrammar(space) if space.access == "binary" else PositionalListsGrammar(space)
