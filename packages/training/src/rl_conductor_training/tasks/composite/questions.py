"""The `composite` task: questions that no single worker of the small pool can answer.

Their steps are to look facts up, compute with them and write the result. The facts are about an invented country
(`islands`), so only the reader's library has them; the calculations are too long for a small model without a tool; and
number words are hard for a program without libraries. `depth` counts the skills applied one after the other: 1 to 4.

The held-out split has other templates (wordings, formulas, kinds of entities) and other towns and ships than training;
validation has the templates of training, about other towns and ships. These two can vary their wordings.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Literal

from rl_conductor.errors import ConfigError
from rl_conductor.scoring import SHARES, Sample, Score, Split, Task, compared, split_of
from rl_conductor_training.tasks.composite.islands import FACTS, Entity, fact_phrase, islands
from rl_conductor_training.tasks.composite.new_wordings import HELDOUT_WORDINGS, TRAINING_WORDINGS
from rl_conductor_training.tasks.composite.templates import (
    HELDOUT_TEMPLATES,
    LOOK,
    NEW_COMPOSITIONS,
    SMALL_FACTS,
    TRAINING_TEMPLATES,
    WORD,
    Operands,
    Template,
    Wordings,
)
from rl_conductor_training.tasks.scorers.answers import extract_last_number, number_to_words, words_match

TemplateSet = Literal["usual", "new_compositions", "new_wordings"]
ID_SUFFIXES: dict[TemplateSet, str] = {"usual": "", "new_compositions": "-new", "new_wordings": "-wordings"}


class QuestionSampler(random.Random):
    """A seeded generator; wordings have a stream of their own, so that the same questions can be worded anew."""

    def __init__(self, seed: str, *, wordings: int) -> None:
        super().__init__(seed)
        self._wording_stream = random.Random(f"{seed} wording")  # noqa: S311
        self._wordings = wordings

    def choose_wording(self, wordings: Wordings) -> str:
        """Chooses one of the first few `wordings`."""
        return self._wording_stream.choice(wordings[: self._wordings])


def composite(
    split: Split = "train",
    *,
    size: int = 120,
    seed: int = 0,
    depths: tuple[int, ...] = (1, 2, 3, 4),
    wordings: int = 1,
    contrasts: bool = False,
    templates: TemplateSet = "usual",
) -> Task:
    """Generates `size` questions of one split, cycling through its templates.

    Args:
        split: `train`, `validation` or `heldout`.
        size: number of questions.
        seed: seed of the entities and numbers.
        depths: depths to include.
        wordings: maximum number of wordings of each text; the held-out split has one.
        contrasts: ask everything twice, for figures and for words: contrast sets that differ in the last sentence.
        templates: `usual`; `new_wordings` for 48 templates in four voices, of which the held-out split has others, all
            written without the others in view; or in the held-out split only, `new_compositions` for sequences of
            skills that training does not contain.

    Raises:
        ConfigError: the split or templates do not exist, no template has any of these depths, `wordings` is below 1, or
            new compositions are asked for in another split.
    """
    if split not in SHARES:
        raise ConfigError(f"no split {split!r}: write one of {', '.join(SHARES)}")
    if wordings < 1:
        raise ConfigError(f"wordings must be at least 1, not {wordings}")
    sets = [
        contrast_set
        for contrast_set in _contrast_sets(_templates_of(split, templates), contrasts=contrasts)
        if all(template.depth in depths for template in contrast_set)
    ]
    if not sets:
        raise ConfigError(f"no composite question has a depth of {depths!r}; depths are 1 to 4")
    name = split + ID_SUFFIXES[templates]
    sampler = QuestionSampler(f"{name} {seed}", wordings=1 if split == "heldout" else wordings)
    samples: list[Sample] = []
    for number, contrast_set in islice(cycle(enumerate(sets)), size):
        ids = [f"{name}-{seed}-{len(samples) + index}" for index in range(len(contrast_set))]
        samples += _generate_samples(contrast_set, sampler, split, ids, group=f"template {number}")
    return Task(f"composite:{name}", tuple(samples[:size]), score_answer)


def _templates_of(split: Split, templates: TemplateSet) -> tuple[Template, ...]:
    """Returns the templates of a split, after checking that it has such ones."""
    if templates not in ID_SUFFIXES:
        raise ConfigError(f"no templates {templates!r}: write one of {', '.join(ID_SUFFIXES)}")
    if templates == "usual":
        return HELDOUT_TEMPLATES if split == "heldout" else TRAINING_TEMPLATES
    if templates == "new_wordings":
        return HELDOUT_WORDINGS if split == "heldout" else TRAINING_WORDINGS
    if split != "heldout":
        raise ConfigError(
            f"templates {templates!r} need the split heldout, not {split}: training must not contain them"
        )
    return NEW_COMPOSITIONS


def _contrast_sets(templates: Sequence[Template], *, contrasts: bool) -> list[tuple[Template, ...]]:
    """Groups templates that ask about the same subject; groups of one without `contrasts`."""
    if not contrasts:
        return [(template,) for template in templates]
    return [(template, template.with_words) for template in templates if not template.in_words]


def _generate_samples(
    templates: tuple[Template, ...], sampler: QuestionSampler, split: Split, ids: list[str], *, group: str
) -> list[Sample]:
    """Generates the samples of one contrast set, which share their subject and differ in the answer format."""
    question, value = _generate_question(templates[-1], sampler, split)
    contrast = ids[0] if len(templates) > 1 else ""
    return [
        Sample(
            id=sample_id,
            question=f"{question} {sampler.choose_wording(template.answer_formats)}",
            answer=number_to_words(value) if template.in_words else str(value),
            domain=template.domain,
            depth=template.depth,
            contrast=contrast,
            details={"form": "words" if template.in_words else "figures", "group": group},
        )
        for template, sample_id in zip(templates, ids, strict=True)
    ]


def _generate_question(template: Template, sampler: QuestionSampler, split: Split) -> tuple[str, int]:
    """Returns a question without its answer format, and the number that answers it."""
    a, b, m = sampler.randint(12, 97), sampler.randint(11, 99), sampler.randint(53, 99)
    subjects = _generate_subjects(template, sampler, split)
    (subject, value), (other, other_value) = subjects[0], subjects[-1]
    if template.formula is None:
        phrases = template.phrases
        wordings = phrases.numbers if template.skills == (WORD,) else phrases.facts
        return sampler.choose_wording(wordings).format(subject=subject), value
    question = sampler.choose_wording(template.formula.wordings).format(x=subject, y=other, a=a, b=b, m=m)
    return question, template.formula.compute(Operands(value, other_value, a, b, m))


def _generate_subjects(template: Template, sampler: QuestionSampler, split: Split) -> list[tuple[str, int]]:
    """Returns the noun phrases that a question is about, with their numbers: one, or two of a pair."""
    if LOOK not in template.skills:
        number = sampler.randint(21, 99) if template.formula is None else sampler.randint(1_001, 9_999)
        return [(str(number), number)]
    entities = _entities(template.kind, split)
    entity = sampler.choice(entities)
    described, names = entity, template.phrases.entities[template.kind]
    if template.related:
        described, names = islands().town(entity.related_town), template.phrases.related[template.kind]
    facts = [
        fact
        for fact in FACTS[described.kind]
        if template.formula is not None or not template.in_words or fact in SMALL_FACTS
    ]
    fact = sampler.choice(facts)
    name = sampler.choose_wording(names).format(name=entity.name)
    subjects = [(f"the {fact_phrase(fact)} of {name}", described.facts[fact])]
    if template.paired:
        second = sampler.choice([candidate for candidate in entities if candidate != entity])
        name = sampler.choose_wording(names).format(name=second.name)
        subjects.append((f"the {fact_phrase(fact)} of {name}", second.facts[fact]))
    return subjects


def _entities(kind: str, split: Split) -> list[Entity]:
    country = islands()
    entities = country.towns if kind == "town" else country.ships
    return [entity for entity in entities if split_of(entity.name) == split]


async def score_answer(sample: Sample, text: str) -> Score:
    """Compares the whole reply with number words, or the last number of its first line with figures.

    The lines after the first one may explain the result.
    """
    if sample.details["form"] == "words":
        answer = text.strip()
        return compared(right=words_match(answer, sample.answer), answer=answer, expected=sample.answer)
    number = extract_last_number(text.strip().partition("\n")[0])
    is_right = number is not None and number == int(sample.answer)
    return compared(right=is_right, answer=None if number is None else str(number), expected=sample.answer)
