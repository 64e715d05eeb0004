"""The worked examples of the planner's prompt, with workers from the pool.

They are not the paper's. Only those that are valid in the current `PlanSpace` are included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl_conductor.plan_text.forms import Form, render
from rl_conductor.prompting.skill_matching import best_matching
from rl_conductor.types import Card, Roster
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor.workflow.workflow import Step, Workflow


@dataclass(frozen=True)
class WorkedExample:
    """A worked example: a question, the reasoning about it, and its split into steps."""

    question: str
    reasoning: str
    steps: tuple[tuple[str, bool, tuple[str, ...]], ...]
    """Per step: the subtask, whether it reads the earlier steps, and the skills it needs as prefixes of words."""


FACTS = ("fact", "knowledge", "question", "research", "search", "general", "encyclop", "lookup", "geograph")
SUMS = ("math", "arithmetic", "calculat", "sum", "number", "reason", "logic", "code", "coder", "comput", "solv")
PROSE = ("writ", "text", "prose", "english", "draft", "copy", "author", "language")
REVIEW_WORK = ("review", "check", "critic", "edit", "verif", "proofread", "improv", "correct", "judge")
IDEAS = ("creativ", "idea", "brand", "market", "slogan", "name", "writ", "design")
PRICES = ("price", "pricing", "cost", "financ", "econom", "estimat", "math", "calculat")
CHOICES = ("reason", "judge", "strong", "decid", "critic", "review", "general", "plan")
"""Prefixes of words that describe a skill; a worker matches if its card contains one of them."""

EXAMPLES = (
    WorkedExample(
        "What is the longest river of Portugal?",
        "A single fact: one model can answer it alone.",
        (("Answer the question in one sentence.", False, FACTS),),
    ),
    WorkedExample(
        "A tank holds 240 litres and loses 4 litres an hour. After how many hours is it half empty?",
        "A calculation can slip: two models solve it on their own, then one compares.",
        (
            ("Solve the problem step by step and give the number.", False, SUMS),
            ("Solve the problem with an equation and give the number.", False, SUMS),
            (
                "Compare the two solutions, settle any difference, and give the final answer with its reasons.",
                True,
                (*REVIEW_WORK, *SUMS),
            ),
        ),
    ),
    WorkedExample(
        "Write a polite notice for a hotel lobby: the pool is closed on Tuesday.",
        "A short text: one model writes it, another improves it.",
        (
            ("Write the text that is asked for.", False, PROSE),
            ("Improve the wording of the draft and give the final text only.", True, (*REVIEW_WORK, *PROSE)),
        ),
    ),
    WorkedExample(
        "Suggest a name, a slogan and a price for a repairable wooden toy train, and say why.",
        "Three separate parts can be done at once, then one model puts them together.",
        (
            ("Suggest three short names for the toy train, with a reason each.", False, IDEAS),
            ("Suggest three slogans about repair and wood.", False, IDEAS),
            ("Estimate a fair price from material and work.", False, PRICES),
            ("Choose the best name, slogan and price from the replies and explain the choice briefly.", True, CHOICES),
        ),
    ),
)
"""Worked examples from everyday life, worded generally because small models copy them."""

BRIEF_EXAMPLES = (
    WorkedExample(
        "What is the longest river of Portugal?",
        "One fact: one model is enough.",
        (("Answer in one sentence.", False, FACTS),),
    ),
    WorkedExample(
        "A tank holds 240 litres and loses 4 an hour. When is it half empty?",
        "Sums can slip: two models solve it, one compares.",
        (
            ("Solve it step by step.", False, SUMS),
            ("Solve it with an equation.", False, SUMS),
            ("Compare the solutions and give the final answer.", True, (*REVIEW_WORK, *SUMS)),
        ),
    ),
    WorkedExample(
        "Write a polite notice: the pool is closed on Tuesday.",
        "One model writes, one improves.",
        (
            ("Write the text that is asked for.", False, PROSE),
            ("Improve the draft and give the final text only.", True, (*REVIEW_WORK, *PROSE)),
        ),
    ),
    WorkedExample(
        "Suggest a name, a slogan and a price for a wooden toy train.",
        "Separate parts at once, then one model joins them.",
        (
            ("Suggest three names.", False, IDEAS),
            ("Suggest three slogans.", False, IDEAS),
            ("Estimate a fair price.", False, PRICES),
            ("Choose the best of each and say why.", True, CHOICES),
        ),
    ),
)
"""The worked examples in few tokens, for the brief wording of the rules."""


def worked_examples(
    space: PlanSpace, form: Form, cards: Sequence[Card], roster: Roster = "cards", *, is_brief: bool = True
) -> list[tuple[str, str]]:
    """Renders the worked examples as pairs of question and plan, omitting those that are invalid in `space`.

    With `roster="cards"`, steps are assigned to the workers whose cards match best, otherwise in turn.
    """
    rendered = []
    for number, example in enumerate(BRIEF_EXAMPLES if is_brief else EXAMPLES):
        workflow = _example_workflow(example, space, number, cards if roster == "cards" else ())
        if not space.violations(workflow):
            rendered.append((example.question, render(workflow, space, form, reasoning=example.reasoning)))
    return rendered


def example_workers(space: PlanSpace, cards: Sequence[Card]) -> list[str]:
    """Returns the workers of the brief examples that are valid in `space`."""
    workflows = (_example_workflow(example, space, number, cards) for number, example in enumerate(BRIEF_EXAMPLES))
    return [step.worker for workflow in workflows if not space.violations(workflow) for step in workflow.steps]


def _example_workflow(example: WorkedExample, space: PlanSpace, number: int, cards: Sequence[Card]) -> Workflow:
    workers = (
        _best_matching_workers(example, space, number, cards) if cards else _workers_in_turn(example, space, number)
    )
    return Workflow(
        steps=tuple(
            Step(subtask=subtask, worker=worker, access=frozenset(range(i)) if reads_earlier else frozenset())
            for i, ((subtask, reads_earlier, _), worker) in enumerate(zip(example.steps, workers, strict=True))
        )
    )


def _workers_in_turn(example: WorkedExample, space: PlanSpace, number: int) -> list[str]:
    workers = [space.choices[(number + i) % len(space.choices)] for i in range(len(example.steps))]
    if space.final_workers and workers[-1] not in space.final_workers:
        workers[-1] = space.final_workers[number % len(space.final_workers)]
    return workers


def _best_matching_workers(example: WorkedExample, space: PlanSpace, number: int, cards: Sequence[Card]) -> list[str]:
    """Selects for each step the worker with the best matching card; ties are resolved in turn."""
    workers = []
    for i, (_, _, skills) in enumerate(example.steps):
        candidates = (space.final_workers if i + 1 == len(example.steps) else ()) or space.choices
        best = best_matching([card for card in cards if card.name in candidates], skills)
        workers.append(best[(number + i) % len(best)])
    return workers
