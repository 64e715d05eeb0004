"""48 held-out templates in four voices, each with a request or calculation of its own.

The usual held-out split has 12 templates, and the variance between them limits what a comparison can show there.
"""

from __future__ import annotations

from collections.abc import Iterator

from rl_conductor_training.tasks.composite.templates import (
    HELDOUT_TEMPLATES,
    Formula,
    Phrases,
    Template,
    Wordings,
)
from rl_conductor_training.tasks.composite.voices import editor, harbour_clerk, student, teacher


def _templates_of_voice(phrases: Phrases, formulas: tuple[Formula, ...]) -> Iterator[Template]:
    """Words the skills of the usual held-out templates anew, half of them about towns and half about ships."""
    unused = iter(formulas)
    for number, usual in enumerate(HELDOUT_TEMPLATES):
        yield Template(
            usual.skills,
            formula=usual.formula and next(unused),
            kind=("town", "ship")[number % 2],
            related=usual.related,
            phrases=_choose_phrases(phrases, number),
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


NEW_WORDINGS = tuple(
    template
    for voice in (harbour_clerk, student, teacher, editor)
    for template in _templates_of_voice(voice.PHRASES, voice.FORMULAS)
)
