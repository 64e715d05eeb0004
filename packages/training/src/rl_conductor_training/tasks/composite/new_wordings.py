"""Templates in four voices for training and in four others for the held-out split, with calculations of their own.

The usual held-out split has 12 templates, and the variance between them limits what a comparison can show there.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from rl_conductor_training.tasks.composite.templates import (
    HELDOUT_TEMPLATES,
    TRAINING_TEMPLATES,
    Phrases,
    Template,
    Wordings,
)
from rl_conductor_training.tasks.composite.voices import (
    accountant,
    editor,
    engineer,
    harbour_clerk,
    quizmaster,
    student,
    teacher,
    traveller,
)


def _templates_of_voice(voice: ModuleType, templates: tuple[Template, ...]) -> Iterator[Template]:
    """Words the skills of the usual templates anew, half of them about towns and half about ships."""
    unused = iter(voice.FORMULAS)
    for number, usual in enumerate(templates):
        yield Template(
            usual.skills,
            formula=usual.formula and next(unused),
            kind=("town", "ship")[number % 2],
            related=usual.related,
            phrases=_choose_phrases(voice.PHRASES, number),
        )


def _choose_phrases(phrases: Phrases, number: int) -> Phrases:
    """Returns phrases with one wording of each, so that a template always has the same ones."""

    def choose(wordings: Wordings) -> Wordings:
        return (wordings[number % len(wordings)],)

    return Phrases(
        facts=choose(phrases.facts),
        numbers=choose(phrases.numbers),
        figures=choose(phrases.figures),
        words=choose(phrases.words),
        entities={kind: choose(wordings) for kind, wordings in phrases.entities.items()},
        related={kind: choose(wordings) for kind, wordings in phrases.related.items()},
    )


TRAINING_WORDINGS, HELDOUT_WORDINGS = (
    tuple(template for voice in voices for template in _templates_of_voice(voice, templates))
    for voices, templates in (
        ((traveller, accountant, quizmaster, engineer), TRAINING_TEMPLATES),
        ((harbour_clerk, student, teacher, editor), HELDOUT_TEMPLATES),
    )
)
"""48 templates each, which share the skills of the usual ones."""
