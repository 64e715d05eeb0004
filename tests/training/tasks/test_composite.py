from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, cast

import pytest

from rl_conductor import ConfigError
from rl_conductor.scoring import Sample, Split, split_of
from rl_conductor_training.tasks.composite.handwritten import handwritten
from rl_conductor_training.tasks.composite.islands import fact_phrase, islands
from rl_conductor_training.tasks.composite.new_wordings import HELDOUT_WORDINGS, TRAINING_WORDINGS
from rl_conductor_training.tasks.composite.questions import composite
from rl_conductor_training.tasks.composite.templates import (
    HELDOUT_TEMPLATES,
    IN_FIGURES,
    IN_WORDS,
    IN_WORDS_HELDOUT,
    NEW_COMPOSITIONS,
    TRAINING_TEMPLATES,
    Template,
)
from rl_conductor_training.tasks.groups import group_of
from rl_conductor_training.tasks.scorers.answers import number_to_words
from rl_conductor_training.workers.passage_index import PassageIndex

SPLITS: tuple[Split, ...] = ("train", "validation", "heldout")


def names_in(sample: Sample) -> list[str]:
    country = islands()
    return [
        entity.name for entity in (*country.towns, *country.ships) if re.search(rf"\b{entity.name}\b", sample.question)
    ]


def test_questions_depend_on_split_size_and_seed_only() -> None:
    assert composite(seed=1).samples == composite(seed=1).samples
    assert composite(seed=1).samples != composite(seed=2).samples
    assert composite(size=24).samples[:12] == composite(size=12).samples


def test_splits_share_no_entities_and_the_held_out_one_shares_no_wording() -> None:
    by_split = {split: composite(split=split, size=240).samples for split in SPLITS}
    for split, samples in by_split.items():
        assert {split_of(name) for sample in samples for name in names_in(sample)} == {split}
    wordings = {split: worded(samples) for split, samples in by_split.items()}
    assert not wordings["heldout"] & (wordings["train"] | wordings["validation"])


def worded(samples: Sequence[Sample]) -> set[str]:
    return {re.sub(r"\d+|[A-Z]\w+", "", sample.question) for sample in samples}


def test_wordings_vary_except_in_the_held_out_split() -> None:
    for split in SPLITS:
        plain, varied = (composite(split, size=48, wordings=wordings).samples for wordings in (1, 4))
        assert [sample.answer for sample in plain] == [sample.answer for sample in varied]
        assert (worded(plain) == worded(varied)) == (split == "heldout")
    several = worded(composite("train", size=240, wordings=9).samples)
    assert not several & worded(composite("heldout", size=240).samples)
    with pytest.raises(ConfigError, match="at least 1, not 0"):
        composite(wordings=0)


def without_form(sample: Sample) -> str:
    forms = (*IN_FIGURES, *IN_WORDS, *IN_WORDS_HELDOUT)
    return next(sample.question.removesuffix(form) for form in forms if sample.question.endswith(form))


@pytest.mark.parametrize("split", SPLITS)
def test_contrasts_ask_for_figures_and_then_for_words(split: Split) -> None:
    samples = composite(split, size=40, wordings=4, contrasts=True).samples
    for figures, words in zip(samples[::2], samples[1::2], strict=True):
        assert figures.contrast == words.contrast == figures.id
        assert (figures.domain + "+write", words.answer) == (words.domain, number_to_words(int(figures.answer)))
        assert without_form(figures) == without_form(words)
    assert len({sample.contrast for sample in samples}) == 20
    assert {sample.depth for sample in composite(split, depths=(2, 3), contrasts=True).samples} == {2, 3}
    assert not any(sample.contrast for sample in composite(split).samples)
    with pytest.raises(ConfigError, match="depths are 1 to 4"):
        composite(split, depths=(4,), contrasts=True)


def test_every_depth_occurs_and_equals_the_number_of_skills() -> None:
    for split in SPLITS:
        samples = composite(split=split, size=48).samples
        assert {sample.depth for sample in samples} == {1, 2, 3, 4}
        assert all(sample.depth == len(sample.domain.split("+")) for sample in samples)
    assert {sample.depth for sample in composite(depths=(3,)).samples} == {3}
    with pytest.raises(ConfigError, match="depths are 1 to 4"):
        composite(depths=(7,))


@pytest.mark.parametrize("contrasts", [False, True])
def test_questions_of_one_template_are_one_group(contrasts: bool) -> None:
    samples = composite("validation", size=48, contrasts=contrasts).samples
    groups = {group_of(sample) for sample in samples}
    assert len(groups) == (5 if contrasts else 12)
    for group in groups:
        formulas = {sample.domain.removesuffix("+write") for sample in samples if group_of(sample) == group}
        assert len(formulas) == 1


def test_the_library_has_every_fact_in_the_questions() -> None:
    library = PassageIndex(islands().passages)
    looked_up = [sample for sample in composite(size=120).samples if sample.domain == "lookup"]
    for sample in looked_up:
        assert any(sample.answer in passage.text for passage in library.search(sample.question, limit=2))


def test_the_answers_are_right() -> None:
    times = next(sample for sample in composite(size=24).samples if sample.domain == "compute")
    x, a, b, m = map(int, re.findall(r"\d+", times.question))
    assert int(times.answer) == (x * a + b) % m
    hop = next(sample for sample in composite(size=24).samples if sample.domain == "lookup+lookup+compute")
    a, b, m = map(int, re.findall(r"\d+", hop.question))
    town = islands().town(next(each for each in islands().towns if each.name == names_in(hop)[0]).related_town)
    fact = next(fact for fact in town.facts if fact in hop.question)
    assert int(hop.answer) == (town.facts[fact] * a + b) % m


def test_number_words_stay_short() -> None:
    for split in SPLITS:
        words = [sample.answer for sample in composite(split=split, size=240).samples if "write" in sample.domain]
        assert max(len(answer.split()) for answer in words) <= 4


@pytest.mark.parametrize(
    ("domain", "reply", "right"),
    [
        ("compute", "{answer}", True),
        ("compute", "The result is {answer}.\n\nFrom the library:\n- 99 bridges", True),
        ("compute", "1{answer}", False),
        ("compute", "unknown", False),
        ("write", "{answer}", True),
        ("write", "{answer}.", True),
        ("write", "The number is {answer}", False),
    ],
)
async def test_replies_are_scored_by_form_and_value(domain: str, reply: str, right: bool) -> None:
    task = composite(size=12)
    sample = next(sample for sample in task.samples if sample.domain == domain)
    score = await task.score(sample, reply.format(answer=sample.answer))
    assert score.right == right


def test_templates_are_unique() -> None:
    templates = (*TRAINING_TEMPLATES, *HELDOUT_TEMPLATES, *NEW_COMPOSITIONS, *TRAINING_WORDINGS, *HELDOUT_WORDINGS)
    assert len(set(templates)) == len(templates)


def test_new_compositions_have_sequences_of_skills_or_pairs_that_training_does_not_contain() -> None:
    samples = composite("heldout", size=24, templates="new_compositions").samples
    trained = {template.domain for template in TRAINING_TEMPLATES}
    new = [sample for sample in samples if sample.domain not in trained]
    pairs = [sample for sample in samples if sample.domain in trained]
    assert {sample.domain for sample in new} == {"lookup+lookup", "lookup+lookup+write"}
    assert all(len(names_in(sample)) == 2 for sample in pairs)
    assert {split_of(name) for sample in samples for name in names_in(sample)} == {"heldout"}
    assert not {sample.id for sample in samples} & {sample.id for sample in composite("heldout", size=24).samples}
    with pytest.raises(ConfigError, match="need the split heldout, not train"):
        composite("train", templates="new_compositions")


@pytest.mark.parametrize("split", SPLITS)
def test_each_template_of_the_new_wordings_has_a_request_of_its_own_and_a_result_below_100(split: Split) -> None:
    task = composite(split, size=144, templates="new_wordings")
    assert len({group_of(sample) for sample in task.samples}) == 48
    usual = composite(split, size=12)
    assert [sample.domain for sample in task.samples[:12]] == [sample.domain for sample in usual.samples]
    requests = {sample.question[:40] for sample in task.samples}
    assert not requests & {sample.question[:40] for sample in composite(size=60, wordings=5).samples}
    for sample in task.samples:
        assert {split_of(name) for name in names_in(sample)} <= {split}
        assert bool(names_in(sample)) == ("lookup" in sample.domain)
        assert "{" not in sample.question
        assert "compute" not in sample.domain or "write" in sample.domain or 0 <= int(sample.answer) < 100


def test_the_voices_of_training_share_no_request_or_calculation_with_the_heldout_ones() -> None:
    def texts(templates: Iterable[Template]) -> set[str]:
        phrases = [template.phrases for template in templates]
        formulas = [template.formula.wordings for template in templates if template.formula is not None]
        requests = [(*own.facts, *own.numbers, *own.figures, *own.words) for own in phrases]
        return set(chain.from_iterable([*requests, *formulas]))

    assert not texts(TRAINING_WORDINGS) & texts(HELDOUT_WORDINGS)


def test_unknown_templates_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no templates 'new': write one of usual, new_compositions, new_wordings"):
        composite("heldout", templates=cast(Any, "new"))


def test_the_answer_of_a_pair_is_computed_from_the_facts_of_both_ships() -> None:
    sample = composite("heldout", size=5, templates="new_compositions").samples[4]
    first, second = (next(ship for ship in islands().ships if ship.name == name) for name in names_in(sample))
    (fact,) = [fact for fact in first.facts if f"the {fact_phrase(fact)} of" in sample.question]
    divisor = int(re.findall(r"divided by (\d+)", sample.question)[0])
    assert int(sample.answer) == (first.facts[fact] + second.facts[fact]) % divisor


def test_handwritten_questions_name_only_heldout_entities_and_have_answers_that_a_small_writer_can_spell() -> None:
    samples = handwritten().samples
    assert [sum(sample.depth == depth for sample in samples) for depth in (1, 2, 3, 4)] == [9, 12, 9, 6]
    for sample in samples:
        assert {split_of(name) for name in names_in(sample)} <= {"heldout"}
        assert bool(names_in(sample)) == ("lookup" in sample.domain)
        assert sample.details["form"] == "figures" or re.fullmatch(r"[a-z]+(-[a-z]+)?", sample.answer)
    assert len({group_of(sample) for sample in samples}) == len(samples)


@pytest.mark.parametrize(
    ("number", "answer"),
    [
        (0, 7),
        (3, 37 * 146 - 2219),
        (9, 73 * 36),
        (10, 2026 - 1990),
        (27, 2000 - islands().town("Ostmarton").facts["year of foundation"]),
    ],
)
def test_answers_of_handwritten_questions_are_those_of_the_facts(number: int, answer: int) -> None:
    assert handwritten().samples[number].answer == str(answer)
