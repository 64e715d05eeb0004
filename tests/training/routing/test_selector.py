"""The classifier among workflows: what it learns from few questions, and what it does where nothing can be learned."""

from __future__ import annotations

from rl_conductor import Step, Workflow
from rl_conductor.planning.routing.selector import WorkflowSelector
from rl_conductor.types import Request
from rl_conductor_training.routing.selector import train_selector

FIGURES, WORDS, USELESS = (
    Workflow(steps=(Step(subtask="Answer.", worker=name),)) for name in ("coder", "writer", "cat")
)
WORKFLOWS = [FIGURES, WORDS, USELESS]
TOWNS = ("Oslo", "Rome", "Lima", "Bonn", "Cork", "Nice")
FIGURE_QUESTIONS = [f"What is the number of bridges of {town}? Reply with the number only." for town in TOWNS]
WORD_QUESTIONS = [f"What is the number of bridges of {town}? Reply in English words." for town in TOWNS[:3]]


def select(selector: WorkflowSelector, question: str) -> Workflow:
    return selector.select(Request.user(question))


def test_words_that_distinguish_the_workflows_decide_for_requests_in_other_words() -> None:
    questions = [*FIGURE_QUESTIONS, *WORD_QUESTIONS]
    is_figure = [question in FIGURE_QUESTIONS for question in questions]
    right = [is_figure, [not flag for flag in is_figure], [False] * len(questions)]
    selector = train_selector(questions, WORKFLOWS, right)
    assert [select(selector, question) for question in questions] == [FIGURES] * 6 + [WORDS] * 3
    assert select(selector, "Which crew does the ship Amber Gull have? Spell the result out in English words.") == WORDS
    assert select(selector, "Count the lifeboats of the ship; the number only, please") == FIGURES


def test_without_any_right_answer_the_cheapest_workflow_is_selected() -> None:
    selector = train_selector(WORD_QUESTIONS, WORKFLOWS, [[False] * 3] * 3)
    assert select(selector, WORD_QUESTIONS[0]) == FIGURES


def test_the_only_workflow_with_right_answers_is_selected() -> None:
    selector = train_selector(WORD_QUESTIONS, WORKFLOWS, [[False] * 3, [True] * 3, [False] * 3])
    assert select(selector, "hello") == WORDS


def test_of_equally_good_workflows_the_cheapest_is_selected() -> None:
    selector = train_selector(WORD_QUESTIONS, WORKFLOWS, [[False] * 3, [True] * 3, [True] * 3])
    assert select(selector, WORD_QUESTIONS[0]) == WORDS
