"""The parts of `learn` on their own: the split, the candidates, the gate, the proof and the estimate."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pytest

from rl_conductor import ConfigError, Step, Workflow
from rl_conductor.planning.fallback import single_step
from rl_conductor.scoring import Score, wrong
from rl_conductor.types import Request
from rl_conductor_training.learn.data import SHARES, LearnData, split_task
from rl_conductor_training.learn.evaluation.comparison import SystemRows, compare, recommend, summarize_system
from rl_conductor_training.learn.evaluation.gate import measure_room
from rl_conductor_training.learn.experience import ExperienceRow, ScoreTable
from rl_conductor_training.learn.learners.base import Lessons
from rl_conductor_training.learn.learners.linear import LinearSelector
from rl_conductor_training.learn.record import SystemComparison, SystemSummary
from rl_conductor_training.learn.search.candidates import (
    MAX_CANDIDATES,
    build_candidates,
    describe,
    generalize,
    single_workers,
)
from rl_conductor_training.learn.search.explore import select_workflows
from rl_conductor_training.learn.search.plan import halving_rounds
from rl_conductor_training.statistics import Difference, estimate, mean_difference
from rl_conductor_training.tasks import Sample, Task
from rl_conductor_training.tasks.composite.questions import composite
from rl_conductor_training.tasks.groups import template
from rl_conductor_training.tasks.scorers.text import exact
from training.learn.skills import build_task

A, B, C = single_workers(["a", "b", "c"])


def table(scores: dict[Workflow, list[float]]) -> ScoreTable:
    count = len(next(iter(scores.values())))
    samples = [Sample(id=str(number), question="?") for number in range(count)]
    rows = [
        ExperienceRow(
            key=f"{number} {workflow}",
            sample=str(number),
            question="?",
            system="workflow",
            workflow=workflow,
            score=value,
        )
        for workflow, values in scores.items()
        for number, value in enumerate(values)
    ]
    return ScoreTable(rows, samples)


def split(folder: Path, seed: int = 0) -> LearnData:
    return split_task(build_task(), seed=seed, opening_file=folder / "heldout.json")


# ------------------------------------------------------------------------------------------- data


@pytest.mark.parametrize("seed", range(3))
def test_domains_of_one_group_each_fill_every_part(tmp_path: Path, seed: int) -> None:
    data = split_task(composite("train", size=80), seed=seed, opening_file=tmp_path / "heldout.json")
    assert (len(data.train.samples), len(data.validation.samples), data.heldout.size) == (40, 14, 26)


def test_numbers_names_and_quotes_are_masked() -> None:
    assert template("How old is Old Tom, who has 1,200 leaves?") == template("How old is Red Ann, who has 7 leaves?")
    assert template('Write "one" in capitals') == template('Write "two" in capitals')
    assert template("How old is he?") != template("How tall is he?")


@pytest.mark.parametrize(
    ("question", "same"),
    [
        ("Qui habite à Paris ?", "Qui habite à Évry ?"),
        ("Wo liegt Österreich?", "Wo liegt Ungarn?"),
        ("Где живёт Анна?", "Где живёт Иван?"),
    ],
)
def test_names_with_letters_of_other_languages_are_masked(question: str, same: str) -> None:
    assert template(question) == template(same)


def test_german_nouns_after_an_article_are_no_names() -> None:
    questions = (
        "Was kostet ein Helm?",
        "Was kostet eine Klingel?",
        "Wie lange ist der Urlaub?",
        "Wie lange ist die Pause?",
    )
    assert len({template(question) for question in questions}) == 4
    assert template("Welches Fahrrad fährt Anna im Winter?") == template("Welches Fahrrad fährt Tom im Winter?")


def test_a_group_is_never_split(tmp_path: Path) -> None:
    task = build_task()
    grouped = [
        sample.model_copy(update={"details": {"group": str(number // 2)}}) for number, sample in enumerate(task.samples)
    ]
    task = type(task)("grouped", tuple(grouped), task.scorer)
    data = split_task(task, seed=3, opening_file=tmp_path / "heldout.json")
    parts = [data.train, data.validation, data.heldout.task]
    groups = [{data.groups[sample.id] for sample in part.samples} for part in parts]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 10
    assert sum(len(part.samples) for part in parts) == 20


def test_the_split_depends_on_the_seed_and_keeps_the_shares_of_each_domain(tmp_path: Path) -> None:
    first, same, other = split(tmp_path), split(tmp_path), split(tmp_path, seed=1)
    assert first.train == same.train != other.train
    for part, share in zip((first.train, first.validation, first.heldout.task), SHARES.values(), strict=True):
        domains = [sample.domain for sample in part.samples]
        assert {domains.count("chain"), domains.count("direction")} == {round(10 * share)}


def renamed(samples: Sequence[Sample], place: str) -> tuple[Sample, ...]:
    """The questions about another place, with the same ids."""
    return tuple(
        sample.model_copy(
            update={"question": f"In {place}: {sample.question}", "details": {"group": f"{place} {number}"}}
        )
        for number, sample in enumerate(samples)
    )


async def test_own_heldout_questions_leave_the_task_for_training_and_validation(tmp_path: Path) -> None:
    task = build_task()
    own = Task("own", renamed(task.samples[:4], "Oslo"), wrong_always)
    data = split_task(task, seed=0, opening_file=tmp_path / "heldout.json", heldout=own)
    assert data.heldout.task.samples == own.samples
    assert (len(data.train.samples), len(data.validation.samples)) == (14, 6)
    assert not {sample.id for sample in own.samples} & {
        sample.id for part in (data.train, data.validation) for sample in part.samples
    }
    sample = data.train.samples[0]
    assert (await data.task.score(sample, sample.answer)).right
    assert not (await data.task.score(own.samples[0], own.samples[0].answer)).right
    assert data.notes == []


@pytest.mark.parametrize("prefix", ["", "jsonl:"])
def test_a_file_of_questions_is_named_with_or_without_its_kind(tmp_path: Path, prefix: str) -> None:
    questions = [f'"{sample.question}",{sample.answer}\n' for sample in build_task().samples]
    (tmp_path / "q.csv").write_text("question,answer\n" + "".join(questions))
    data = split_task(f"{prefix}{tmp_path / 'q.csv'}", seed=0, opening_file=tmp_path / "heldout.json")
    assert len(data.task.samples) == len(questions)


def test_questions_that_were_opened_before_are_for_training_after_a_change(tmp_path: Path) -> None:
    opened: set[str] = set()
    for seed in range(3):
        data = split(tmp_path, seed)
        data.heldout.record_opening("run")
        heldout = data.heldout.ids
        assert heldout == {sample.id for sample in split(tmp_path, seed).heldout.task.samples}
        assert not heldout & opened
        assert opened <= {sample.id for sample in data.train.samples}
        opened |= heldout
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["heldout-1.json", "heldout-2.json", "heldout.json"]


@pytest.mark.parametrize("change", ["insert", "reorder"])
def test_opened_questions_are_recognised_when_their_line_numbers_change(tmp_path: Path, change: str) -> None:
    def split_lines(questions: Sequence[str]) -> LearnData:
        lines = "".join(json.dumps({"question": question, "answer": "x"}) + "\n" for question in questions)
        (tmp_path / "questions.jsonl").write_text(lines)
        return split_task(f"jsonl:{tmp_path / 'questions.jsonl'}", seed=0, opening_file=tmp_path / "heldout.json")

    questions = [sample.question for sample in build_task().samples]
    heldout = split_lines(questions).heldout
    heldout.record_opening("run")
    opened = {sample.question for sample in heldout.task.samples}
    changed = split_lines(["Is this new?", *questions] if change == "insert" else questions[::-1])
    assert opened <= {sample.question for sample in changed.train.samples}


def test_a_split_with_another_seed_that_opens_nothing_leaves_the_held_out_questions_as_they_were(
    tmp_path: Path,
) -> None:
    first = split(tmp_path)
    opening = first.heldout.record_opening("run")
    mistaken = split(tmp_path, seed=1)
    assert first.heldout.ids <= {sample.id for sample in mistaken.train.samples}
    assert split(tmp_path, seed=1).heldout.ids == mistaken.heldout.ids
    assert [path.name for path in tmp_path.iterdir()] == ["heldout.json"]
    again = split(tmp_path)
    assert again.heldout.ids == first.heldout.ids
    assert again.heldout.record_opening("run") == opening


def open_all(folder: Path) -> None:
    for seed in range(20):
        split(folder, seed).heldout.record_opening("run")


def test_a_folder_in_which_too_much_was_opened_needs_new_questions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"were held out and opened in .* before: none is left for .*add questions"):
        open_all(tmp_path)


async def wrong_always(_sample: Sample, _text: str) -> Score:
    return wrong(None, "wrong")


def test_a_heldout_question_that_is_also_for_training_is_refused(tmp_path: Path) -> None:
    task = build_task()
    loud = task.samples[1].model_copy(update={"question": f"{task.samples[1].question.upper()} "})
    own = Task("own", (task.samples[0], loud), exact)
    with pytest.raises(ConfigError, match=r"2 of the held-out questions of 'own' are also in 'skills'.*remove them"):
        split_task(task, seed=0, opening_file=tmp_path / "heldout.json", heldout=own)


def test_own_heldout_questions_of_the_groups_in_training_are_noted(tmp_path: Path) -> None:
    task = build_task()
    own = tuple(sample.model_copy(update={"question": f"Please: {sample.question}"}) for sample in task.samples[:4])
    data = split_task(task, seed=0, opening_file=tmp_path / "heldout.json", heldout=Task("own", own, exact))
    assert data.notes[0].startswith("4 of the 4 groups of held-out questions are also in training")


def test_questions_of_one_template_count_one_by_one(tmp_path: Path) -> None:
    samples = [Sample(id=str(n), question=f"What is {n} plus 2?", answer=str(n + 2)) for n in range(20)]
    data = split_task(Task("sums", tuple(samples), exact), seed=0, opening_file=tmp_path / "heldout.json")
    assert len(set(data.groups.values())) == 20
    assert [len(part.samples) for part in (data.train, data.validation, data.heldout.task)] == [10, 4, 6]
    assert data.notes == [
        "the questions have only 1 template, so each counts by itself: other kinds may give other results"
    ]


def test_few_groups_that_the_user_named_are_refused(tmp_path: Path) -> None:
    samples = [Sample(id=str(n), question=f"Question {n}", details={"group": "sums"}) for n in range(20)]
    with pytest.raises(ConfigError, match="20 questions in 1 group, but learning needs at least 10 groups"):
        split_task(Task("sums", tuple(samples), exact), seed=0, opening_file=tmp_path / "heldout.json")


# ------------------------------------------------------------------------------------- candidates


def undescribed(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "")


def test_candidates_are_valid_short_and_different() -> None:
    candidates = build_candidates(undescribed("a", "b", "c"), [], max_steps=3, seed=0)
    assert candidates[:3] == [A, B, C]
    assert len(set(candidates)) == len(candidates) <= MAX_CANDIDATES
    names = {describe(workflow) for workflow in candidates}
    assert {"a", "a → b", "a → b (check)", "a → b → c", "a + b → c"} <= names
    assert (
        max(len(workflow.steps) for workflow in build_candidates(undescribed("a", "b"), [], max_steps=2, seed=0)) == 2
    )


def test_many_workers_still_have_few_candidates() -> None:
    names = [f"w{number}" for number in range(30)]
    assert len(build_candidates(undescribed(*names), [], max_steps=3, seed=0)) == MAX_CANDIDATES


def test_a_plan_for_one_question_becomes_one_for_any() -> None:
    plan = Workflow(
        steps=(Step(subtask="Find Oslo.", worker="a"), Step(subtask="Spell it.", worker="b", access=frozenset({0})))
    )
    general = generalize(plan)
    assert [step.worker for step in general.steps] == ["a", "b"]
    assert "Oslo" not in general.steps[0].subtask
    assert general in build_candidates(undescribed("a", "b"), [plan], max_steps=3, seed=0)


def test_chains_and_proposals_come_in_turn_so_that_a_small_search_has_both() -> None:
    proposal = Workflow(steps=(Step(subtask="x", worker="c"), Step(subtask="y", worker="c", access=frozenset({0}))))
    names = [describe(row) for row in build_candidates(undescribed("a", "b", "c"), [proposal], max_steps=3, seed=0)]
    assert names[3:6] == ["a → b", "c → c", "b → c"]


def test_among_the_first_chains_each_worker_is_first_once_and_last_once() -> None:
    names = "abcde"
    candidates = build_candidates(undescribed(*names), [], max_steps=2, seed=0)
    for start in range(len(names), 5 * len(names), len(names)):
        chains = [[step.worker for step in workflow.steps] for workflow in candidates[start : start + len(names)]]
        assert sorted(first for first, _ in chains) == sorted(last for _, last in chains) == list(names)


def test_descriptions_give_the_subtasks_of_further_chains() -> None:
    workers = {"a": "looks facts up, one at a time", "b": "writes numbers in words; slow", "c": ""}
    candidates = build_candidates(workers, [], max_steps=3, seed=0)
    named = [workflow for workflow in candidates if describe(workflow) == "a → b (own subtasks)"]
    assert [[step.subtask for step in workflow.steps] for workflow in named] == [
        ["Looks facts up.", "Writes numbers in words."]
    ]
    assert "a → b" in map(describe, candidates)
    assert not [name for name in map(describe, candidates) if "c" in name and "own" in name]


def test_halving_ends_with_few_candidates_on_all_questions() -> None:
    assert halving_rounds(40, 24) == [(40, 6), (20, 12), (10, 24)]
    assert halving_rounds(3, 4) == [(3, 4)]


def test_complementary_workflows_are_kept() -> None:
    scores = table({A: [1, 1, 1, 0], B: [1, 1, 0, 0], C: [0, 0, 0, 1]})
    assert select_workflows(scores, [A, B, C], 2) == [A, C]


# ------------------------------------------------------------------------------------------- gate


def test_the_gate_opens_where_workers_are_right_on_different_questions() -> None:
    groups = [str(number) for number in range(20)]
    different = measure_room(table({A: [1, 0] * 10, B: [0, 1] * 10}), [A, B], [], groups)
    assert different.is_open
    assert (different.oracle.value, different.oracle_over_fixed.value) == (1, 0.5)
    same = measure_room(table({A: [1, 0] * 10, B: [1, 0] * 10}), [A, B], [], groups)
    assert not same.is_open
    few = measure_room(table({A: [1, 0] * 2, B: [0, 1] * 2}), [A, B], [], groups[:4])
    assert not few.is_open
    assert few.reason.startswith("nothing can be concluded from 4 questions in 4 groups")
    cut = measure_room(table({A: [1, 0] * 10, B: [1, 0] * 10}), [A, B], [], groups, is_whole=False)
    assert cut.reason.startswith("room above the best fixed workflow is not shown on the questions that the caps")
    right = measure_room(table({A: [1] * 20, B: [1, 0] * 10}), [A, B], [], groups, is_whole=False)
    assert right.reason.endswith("give more kinds of questions, or your own `group`")
    nothing = measure_room(table({A: [0] * 20}), [A], [], groups)
    assert nothing.reason == "there is nothing to learn: no workflow answered any question"


def test_nothing_to_learn_is_said_only_where_the_interval_ends_near_zero() -> None:
    many = measure_room(table({A: [1] * 60, B: [1] * 60}), [A, B], [], [str(number) for number in range(60)])
    assert many.reason == (
        "there is nothing to learn: choosing among the workflows for each question adds 0 percentage points (95 % "
        "interval -4 to 4, n = 60) to the 100% of the best fixed one"
    )
    few = measure_room(table({A: [1] * 20, B: [1] * 20}), [A, B], [], [str(number // 2) for number in range(20)])
    assert few.reason == (
        "a gain from choosing a workflow for each question is not shown with 10 groups of questions: it is at most 0 "
        "percentage points on these (95 % interval -15 to 15, n = 20 in 10 groups); give more kinds of questions, or "
        "your own `group`"
    )
    assert not many.is_promising
    assert not few.is_promising


def test_a_gain_that_few_groups_can_not_show_is_worth_the_held_out_questions() -> None:
    groups = [str(number // 9) for number in range(63)]
    gate = measure_room(table({A: [1.0] * 36 + [0.0] * 27, B: [0.0] * 36 + [1.0] * 27}), [A, B], [], groups)
    assert gate.oracle_over_fixed.low < 0
    assert (gate.is_open, gate.is_promising) == (False, True)


@pytest.mark.parametrize(
    ("right", "usd", "cheapest", "saving"),
    [(69, "0.1", "b", 0.89), (68, "0.1", None, 0.87), (7, "0.1", None, 0.09), (69, "2", None, 0), (70, "0.1", None, 0)],
)
def test_as_many_right_answers_for_less_are_worth_the_held_out_questions(
    right: int, usd: str, cheapest: str | None, saving: float
) -> None:
    scores = table({A: [1.0] * 70, B: [1.0] * right + [0.0] * (70 - right)})
    prices = {A: Decimal(1), B: Decimal(usd)}
    rows = [row.model_copy(update={"usd": prices[workflow]}) for (workflow, _), row in scores.rows.items()]
    gate = measure_room(ScoreTable(rows, scores.samples), [A, B], [], [str(number) for number in range(70)])
    assert (gate.cheapest_single, round(gate.saving, 2)) == (cheapest, saving)
    assert gate.is_promising == (saving > 0.2)
    assert gate.reason.startswith("there is nothing to learn") != gate.is_promising
    assert gate.reason.endswith(f"of each question costs {saving:.0%} less") == gate.is_promising


def test_a_cheaper_worker_is_not_looked_for_where_prices_are_unknown() -> None:
    scores = table({A: [1.0] * 70, B: [1.0] * 69 + [0.0]})
    rows = [
        row.model_copy(update={"unpriced_calls": 1, "tokens": 9 if workflow == A else 1})
        for (workflow, _), row in scores.rows.items()
    ]
    gate = measure_room(ScoreTable(rows, scores.samples), [A, B], [], [str(number) for number in range(70)])
    assert (gate.cheapest_single, gate.saving, gate.is_promising) == (None, 0, False)


def test_the_intervals_of_the_gate_are_those_of_the_benchmark() -> None:
    groups = [str(number // 2) for number in range(20)]
    scores = {A: [1.0, 0.0] * 10, B: [0.0, 1.0] * 10}
    gate = measure_room(table(scores), [A, B], [], groups)
    room = mean_difference([1] * 20, scores[A], groups)
    assert (gate.oracle_over_fixed.low, gate.oracle_over_fixed.high) == (room.low, room.high)
    assert gate.single == estimate(scores[A], groups)


def test_an_interval_has_a_width_where_all_questions_agree() -> None:
    gate = measure_room(table({A: [1] * 20, B: [1] * 20}), [A, B], [], [str(number) for number in range(20)])
    assert gate.single.low < 1
    assert gate.oracle_over_fixed.low < 0 < gate.oracle_over_fixed.high


# ------------------------------------------------------------------------------------------ proof


def summary(
    name: str, right: float, usd: str = "0", *, planner_calls: bool = False, sees_answers: bool = False
) -> SystemSummary:
    return SystemSummary(
        name=name,
        description="",
        right=estimate([right] * 10),
        usd=Decimal(usd),
        tokens=0,
        seconds=0,
        planner_calls=planner_calls,
        sees_answers=sees_answers,
    )


def gain(system: str, baseline: str) -> SystemComparison:
    difference = Difference(value=0.5, low=0.2, high=0.8, p=0.01, n=10)
    return SystemComparison(system=system, baseline=baseline, difference=difference)


def test_the_cheapest_system_that_is_not_worse_is_recommended() -> None:
    systems = [summary("best single", 0.4, "0.1"), summary("best fixed", 0.9, "0.3"), summary("linear", 0.89, "0.2")]
    name, reason = recommend(systems, [])
    assert name == "linear"
    assert "no gain over best single is shown" in reason
    assert "a gain over best single is shown" in recommend(systems, [gain("linear", "best single")])[1]


@pytest.mark.parametrize(
    "other", [summary("linear", 0.41, "0.2"), summary("prompted planner", 0.9, "0.2", planner_calls=True)]
)
def test_that_no_other_system_answers_more_is_said_only_where_it_is_so(other: SystemSummary) -> None:
    single, claim = summary("best single", 0.4, "0.1"), "no other system answers more"
    fixed, oracle = summary("best fixed", 0.4, "0.1"), summary("oracle", 1.0, sees_answers=True)
    name, reason = recommend([single, fixed, other, oracle], [])
    assert (name, claim in reason) == ("best single", False)
    assert claim in recommend([single, fixed, oracle], [])[1]


def test_a_cheaper_worker_is_recommended_with_both_costs() -> None:
    systems = [summary("best single", 1.0, "0.02"), summary("cheapest single", 0.99, "0.0004")]
    name, reason = recommend(systems, [])
    assert name == "cheapest single"
    assert reason.endswith("; best single costs $0.0200 per question, and cheapest single $0.00040")


def test_of_systems_with_the_same_cost_the_simplest_is_recommended() -> None:
    fixed = summary("best fixed", 0.9).model_copy(update={"seconds": 2.0001})
    linear = summary("linear", 0.9).model_copy(update={"seconds": 2.0})
    assert recommend([summary("best single", 0.4), fixed, linear], [])[0] == "best fixed"


def test_an_unknown_price_does_not_make_a_system_the_cheapest() -> None:
    single, fixed, linear = summary("best single", 0.9, "0.1"), summary("best fixed", 0.9), summary("linear", 0.9)
    fixed, linear = (system.model_copy(update={"unpriced_calls": 5, "tokens": 10}) for system in (fixed, linear))
    name, reason = recommend([single, fixed], [])
    assert (name, reason.endswith("; what best fixed costs is not known")) == ("best single", True)
    name, reason = recommend([fixed, linear.model_copy(update={"tokens": 9, "usd": Decimal(1)})], [])
    assert name == "linear"
    assert reason.startswith("linear uses the fewest tokens of the systems within 2 percentage points")
    assert reason.endswith("; what best fixed and linear cost is not known")


def test_the_table_puts_unknown_costs_after_known_ones() -> None:
    sample = Sample(id="0", question="?", answer="!")
    workflows = {name: single_step(name) for name in ("priced", "unpriced", "longer")}
    costs = {"priced": (2, 9), "unpriced": (0, 1), "longer": (0, 2)}
    rows = [
        ExperienceRow(
            key=name,
            sample="0",
            question="?",
            system="workflow",
            workflow=workflows[name],
            score=1,
            usd=Decimal(usd),
            unpriced_calls=usd == 0,
            tokens=tokens,
        )
        for name, (usd, tokens) in costs.items()
    ]
    table = ScoreTable(rows, [sample])
    assert [row.key for row in table.best_rows(sample)] == ["priced", "unpriced", "longer"]
    assert sorted(workflows, key=lambda name: table.cost_order(workflows[name])) == ["priced", "unpriced", "longer"]


def test_the_best_rows_of_a_question_are_those_with_the_highest_score_above_zero() -> None:
    scores = table({A: [0.2, 0, 1], B: [0.7, 0, 1]})
    best = [[row.workflow for row in scores.best_rows(sample)] for sample in scores.samples]
    assert best == [[B], [], [A, B]]
    assert scores.has_partial_scores
    assert not table({A: [0, 1]}).has_partial_scores


@pytest.mark.timed
def test_the_best_rows_of_thousands_of_questions_are_found_in_no_time() -> None:
    """In quadratic time, they would take several seconds, and the search of `learn` minutes."""
    scores = table({A: [0, 1] * 3_000, B: [1, 0] * 3_000, C: [0, 0] * 3_000})
    began = time.process_time()
    best = [[row.workflow for row in scores.best_rows(sample)] for sample in scores.samples]
    assert time.process_time() - began < 1
    assert best == [[B], [A]] * 3_000


def test_the_linear_selector_learns_from_partial_scores_of_which_none_is_one() -> None:
    scores = table({A: [0.2, 0.6] * 10, B: [0.7, 0.1] * 10})
    questions = ["multiply the numbers", "describe the weather"] * 10
    scores.samples = tuple(
        sample.model_copy(update={"question": question})
        for sample, question in zip(scores.samples, questions, strict=True)
    )
    learner = LinearSelector()
    learner.fit(Lessons(scores, [B], [A]))
    assert learner.selector is not None
    assert [learner.selector.select(Request.user(question)) for question in questions[:2]] == [B, A]


def test_a_planner_is_recommended_only_with_a_gain_over_fixed_and_linear() -> None:
    systems = [
        summary("best fixed", 0.5),
        summary("linear", 0.6),
        summary("examples", 0.9, planner_calls=True),
        summary("oracle", 1.0, sees_answers=True),
    ]
    name, reason = recommend(systems, [gain("examples", "best fixed")])
    assert name == "linear"
    assert "examples answered more (90%), but calls a planner for each question, and no gain over linear is" in reason
    name, reason = recommend(systems, [gain("examples", "best fixed"), gain("examples", "linear")])
    assert name == "examples"
    assert "answered more" not in reason


def test_the_prompted_planner_is_recommended_where_it_is_shown_to_be_better() -> None:
    samples = [str(number) for number in range(60)]

    def rows(name: str, right: int, *, planner_calls: bool = False) -> SystemRows:
        row = ExperienceRow(key="", sample="", question="", system=name, workflow=None, score=0)
        scored = {sample: row.model_copy(update={"score": float(int(sample) < right)}) for sample in samples}
        return SystemRows(name, "", scored, planner_calls=planner_calls)

    systems = [rows("best single", 12), rows("best fixed", 18), rows("linear", 24)]
    systems.append(rows("prompted planner", 60, planner_calls=True))
    comparisons = compare(systems, samples, samples)
    assert {(one.system, one.baseline) for one in comparisons if one.system == "prompted planner"} == {
        ("prompted planner", "best single"),
        ("prompted planner", "best fixed"),
        ("prompted planner", "linear"),
    }
    summaries = [summarize_system(system, samples, samples) for system in systems]
    assert recommend(summaries, comparisons)[0] == "prompted planner"


# --------------------------------------------------------------------------------------- the rest


def test_copies_of_a_question_are_in_the_same_part(tmp_path: Path) -> None:
    questions = [f"What is the capital of land {number}?" for number in range(20)] * 3
    samples = tuple(
        Sample(
            id=str(number), question=f"{question} " if number % 2 else question, details={"group": f"ticket {number}"}
        )
        for number, question in enumerate(questions)
    )
    data = split_task(Task("tickets", samples, exact), seed=0, opening_file=tmp_path / "heldout.json")
    parts = (data.train, data.validation, data.heldout.task)
    texts = [{sample.question.strip() for sample in part.samples} for part in parts]
    assert sum(map(len, texts)) == len(set.union(*texts)) == 20
    assert len({data.groups[sample.id] for sample in samples}) == 20


def test_a_question_with_two_answers_is_refused(tmp_path: Path) -> None:
    rows = [*({"question": f"{n} + 1?", "answer": n + 1} for n in range(12)), {"question": " 3 + 1? ", "answer": "5"}]
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(ConfigError, match=r"questions 4 and 13 of 'sums' are .* answers: '4' and '5'; remove one"):
        split_task(str(file), seed=0, opening_file=tmp_path / "heldout.json")


def test_a_judged_question_may_have_two_answers(tmp_path: Path) -> None:
    samples = [Sample(id=str(n), question=f"{n // 2}?", answer=str(n), details={"judge": "x:y"}) for n in range(24)]
    data = split_task(Task("judged", tuple(samples), exact), seed=0, opening_file=tmp_path / "heldout.json")
    assert len(set(data.groups.values())) == 12
