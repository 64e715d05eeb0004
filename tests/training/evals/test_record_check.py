"""The comparison of a learned conductor with its record."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from rl_conductor import ConfigError, LimitError, Limits, ScriptedModel, WorkerPool
from rl_conductor.errors import AuthenticationError
from rl_conductor.types import Request
from rl_conductor_training.evals import compare_with_record
from rl_conductor_training.evals.record_check import AnswerChange, _describe
from rl_conductor_training.learn import LearnSettings, learn
from rl_conductor_training.learn.experience import ExperienceRow
from rl_conductor_training.tasks import load_task
from skilled_folder import Learned
from training.learn import skills


def pool(**changed: object) -> WorkerPool:
    """The learned pool with other models in place of some workers."""
    workers = skills.build_pool()
    models = {name: ScriptedModel(reply, name=name) for name, reply in changed.items()}  # type: ignore[arg-type]
    return WorkerPool(
        replace(worker, model=models[name]) if name in models else worker for name, worker in workers.items()
    )


def rows(folder: Path) -> list[ExperienceRow]:
    return [ExperienceRow.model_validate_json(line) for line in (folder / "experience.jsonl").read_text().splitlines()]


async def test_an_unchanged_conductor_is_not_worse(learned: Learned) -> None:
    before = {path.name: path.read_bytes() for path in learned.folder.iterdir()}
    comparison = await compare_with_record(learned.folder, learned.questions)
    assert not comparison.is_worse
    assert (comparison.recorded.value, comparison.now.value, comparison.difference.value) == (1, 1, 0)
    assert comparison.now.n == len(json.loads((learned.folder / "heldout.json").read_text())["samples"]) >= 6
    assert not comparison.changes
    assert not comparison.pool_changes
    assert comparison.tokens > 0, "the workers were called, not the cache of replies"
    assert {path.name: path.read_bytes() for path in learned.folder.iterdir()} == before


async def test_a_conductor_that_lost_everything_is_worse(learned: Learned) -> None:
    comparison = await compare_with_record(learned.folder, learned.questions, pool=pool(pointer="?", speller="?"))
    assert comparison.is_worse
    assert (comparison.now.value, comparison.difference.value) == (0, -1)
    assert comparison.difference.high < 0
    assert len(comparison.changes) == comparison.now.n
    assert "WORSE than its record" in comparison.report
    assert "lost direction-" in comparison.report
    assert "answer '?'" in comparison.report
    assert comparison.pool_changes


async def test_a_loss_that_may_be_chance_is_listed_but_no_failure(learned: Learned) -> None:
    comparison = await compare_with_record(learned.folder, learned.questions, pool=pool(speller="?"))
    lost = {change.id for change in comparison.changes}
    assert lost
    assert len(lost) < comparison.detectable
    assert all(name.startswith("chain-") for name in lost)
    assert not comparison.is_worse
    assert "not shown to be worse" in comparison.report


async def test_the_announced_loss_is_the_smallest_that_fails(learned: Learned) -> None:
    names = json.loads((learned.folder / "heldout.json").read_text())["samples"]
    answers = {sample.question: sample.answer for sample in skills.build_task(count=12).samples}
    questions = [sample.question for sample in skills.build_task(count=12).samples if sample.id in names]
    unchanged = await compare_with_record(learned.folder, learned.questions)

    def losing(count: int) -> WorkerPool:
        def reply(request: Request) -> str:
            asked = [question for question in questions if any(question in m.text for m in request.messages)]
            return "?" if questions.index(asked[0]) < count else answers[asked[0]]

        return pool(speller=reply, pointer=reply)

    for count, is_worse in ((unchanged.detectable, True), (unchanged.detectable - 1, False)):
        comparison = await compare_with_record(learned.folder, learned.questions, pool=losing(count))
        assert (len(comparison.changes), comparison.is_worse) == (count, is_worse)


async def test_questions_without_a_reply_count_as_wrong_and_say_why(learned: Learned) -> None:
    def refused(_: Request) -> AuthenticationError:
        return AuthenticationError("the key is invalid", model="a vendor's")

    failing = pool(pointer=refused, speller=refused, atlas=refused)
    comparison = await compare_with_record(learned.folder, learned.questions, pool=failing)
    assert comparison.is_worse
    assert "no reply" in comparison.report
    assert "the key is invalid" in comparison.report


def test_a_reply_without_an_answer_is_reported_in_words() -> None:
    change = AnswerChange(id="2", question="What is 1 + 1?", recorded=1, score=0, answer=None, error=None)
    assert _describe(change) == "lost 2 (1 -> 0): 'What is 1 + 1?', no answer in the reply"


async def test_the_groups_are_those_that_learning_used(tmp_path: Path) -> None:
    """Questions of few templates are groups of their own, of which the held-out ones alone would be fewer."""
    whole = skills.build_task(count=12)
    task = replace(whole, samples=tuple(sample.model_copy(update={"details": {}}) for sample in whole.samples))
    settings = LearnSettings(max_steps=2)
    record = await learn(task, skills.build_pool(), planner=skills.build_planner(), out=tmp_path, settings=settings)
    assert record.groups == len(task.samples)
    comparison = await compare_with_record(tmp_path, task, pool=skills.build_pool(), planner=skills.build_planner())
    assert comparison.now.groups == comparison.now.n

    opening = json.loads((tmp_path / "heldout.json").read_text())
    del opening["groups"]  # as an earlier version wrote it
    (tmp_path / "heldout.json").write_text(json.dumps(opening))
    again = await compare_with_record(tmp_path, task, pool=skills.build_pool(), planner=skills.build_planner())
    assert again == comparison


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (Limits(usd=Decimal("0.002"), seconds=600), "usd=0.002"),
        (Limits(usd=Decimal(5), calls=3), "calls=3"),
        (Limits(usd=Decimal(0)), "usd=0"),
    ],
)
async def test_the_limit_that_ended_the_whole_comparison_is_named(learned: Learned, limits: Limits, name: str) -> None:
    error = rf"limits\.{name} ended the check after \d of \d+ held-out questions; raise it"
    with pytest.raises(LimitError, match=error) as ended:
        await compare_with_record(learned.folder, learned.questions, limits=limits, concurrency=1)
    assert ended.value.limit == name.partition("=")[0]


async def test_a_planner_is_compared_with_its_own_rows(learned: Learned) -> None:
    """The scores of a system that plans are in rows of its name."""
    (learned.folder / "selector.json").unlink()
    file = learned.folder / "conductor.toml"
    lines = [line for line in file.read_text().splitlines() if not line.startswith(("selector", "method"))]
    file.write_text("\n".join(['method = "prompted planner"', *lines]))
    found = {row.sample: row.score for row in rows(learned.folder) if row.system == "prompted planner"}
    with pytest.raises(ConfigError, match="not even the loss of all would be significant"):
        await compare_with_record(learned.folder, learned.questions, planner=skills.build_planner())
    right = [
        row.model_copy(update={"score": 1.0}) if row.system == "prompted planner" else row
        for row in rows(learned.folder)
    ]
    (learned.folder / "experience.jsonl").write_text("".join(row.model_dump_json() + "\n" for row in right))
    comparison = await compare_with_record(learned.folder, learned.questions, planner=skills.build_planner())
    assert comparison.recorded.value == 1
    assert comparison.now.value == sum("direction" in name for name in found) / len(found)


async def test_rows_are_found_if_the_ids_of_the_questions_were_others_then(learned: Learned) -> None:
    earlier = [row.model_copy(update={"sample": f"line {row.sample}"}) for row in rows(learned.folder)]
    (learned.folder / "experience.jsonl").write_text("".join(row.model_dump_json() + "\n" for row in earlier))
    comparison = await compare_with_record(learned.folder, learned.questions)
    assert (comparison.recorded.value, comparison.now.value) == (1, 1)


async def test_a_folder_without_a_proof_has_no_record(learned: Learned) -> None:
    (learned.folder / "heldout.json").unlink()
    with pytest.raises(ConfigError, match="nothing was evaluated on held-out questions"):
        await compare_with_record(learned.folder, learned.questions)


async def test_a_folder_without_its_experience_has_no_record(learned: Learned) -> None:
    (learned.folder / "experience.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"no experience\.jsonl with the recorded scores"):
        await compare_with_record(learned.folder, learned.questions)
    assert not (learned.folder / "experience.jsonl").exists()


async def test_other_questions_are_refused(learned: Learned) -> None:
    task = load_task(f"jsonl:{learned.questions}")
    with pytest.raises(ConfigError, match=r"lacks \d+ of \d+ held-out questions"):
        await compare_with_record(learned.folder, task.first(3))
    changed = [sample.model_copy(update={"question": f"{sample.question}!"}) for sample in task.samples]
    with pytest.raises(ConfigError, match="it was another question then"):
        await compare_with_record(learned.folder, replace(task, samples=tuple(changed)))
