"""The domain of learned workflows: it keeps the questions and their new wordings, and refuses ordinary requests."""

from __future__ import annotations

from rl_conductor import Step, Workflow
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.types import Request
from rl_conductor_training.routing.domain import has_chains, ordinary_requests, task_domain, train_domain
from rl_conductor_training.tasks.composite.questions import composite
from rl_conductor_training.tasks.groups import group_of

TASK = composite("train", size=80)
GROUPS = {sample.id: group_of(sample) for sample in TASK.samples}
SINGLE = Workflow(steps=(Step(subtask="Answer.", worker="reader"),))
CHAIN = Workflow(steps=(*SINGLE.steps, Step(subtask="Write.", worker="writer", access=frozenset({0}))))


def ask(question: str) -> Request:
    return Request.user(question)


def test_ordinary_requests_are_many_and_different() -> None:
    requests = ordinary_requests()
    assert len(requests) == len(set(requests)) > 100
    assert all(request == request.strip() != "" for request in requests)


def test_questions_of_other_templates_are_included_and_ordinary_requests_are_not() -> None:
    domain = task_domain(TASK.samples, GROUPS)
    assert all(domain.includes(ask(sample.question)) for sample in TASK.samples)
    others = composite("heldout", size=36).samples
    assert sum(domain.includes(ask(sample.question)) for sample in others) == len(others)
    assert not domain.includes(ask("hi"))
    assert not domain.includes(ask("Could you write a toast for the wedding of my sister?"))
    assert domain.accepted > 0.9
    assert domain.refused > 0.9


def test_a_domain_like_ordinary_requests_still_includes_its_own_questions() -> None:
    questions = ordinary_requests()[::2]
    domain = train_domain(questions, questions)
    assert all(domain.includes(ask(question)) for question in questions)
    assert domain.accepted > 0.9


def test_only_workflows_of_several_steps_need_a_domain() -> None:
    assert has_chains(WorkflowSelector(workflows=(CHAIN,)))
    assert not has_chains(WorkflowSelector(workflows=(SINGLE,)))
