"""Questions that no single worker of the small pool can answer: look facts up, compute with them, write the result.

They are about an invented country (`islands`), so the facts stand in the reader's library and in no model's memory;
the sums are too long for a small model's head; and number words are what a program without libraries lacks. `depth`
counts the different things to be done one after the other: 1 to 4.

The held-out split has other templates (wording, formulas, kinds of things) and other towns and ships than training;
validation has the templates of training, about other towns and ships. These two can be put in more than one way.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Final, Literal

from rl_conductor.errors import ConfigError
from rl_conductor.tasks.answers import last_number, same_words, spelled
from rl_conductor.tasks.base import SHARES, Sample, Score, Split, Task, compared, split_of
from rl_conductor.tasks.islands import FACTS, Thing, islands, phrase

Skill = Literal["lookup", "compute", "write"]

Wordings = tuple[str, ...]
"""Ways to say the same."""

IN_FIGURES: Wordings = (
    "Reply with the number only.",
    "Give the result in digits.",
    "Answer in figures, without a sentence.",
    "Just the number, please.",
)
IN_WORDS: Wordings = (
    "Reply with that number in English words, in lower case, and nothing else.",
    "Give the answer as an English number word in small letters, without any other text.",
    "The answer must be the number's name in English, in lower case, alone.",
    "Answer in letters, not in digits: the English name of the number and nothing more.",
    "Write it as one says it in English, all in lower case; no figures, no other text.",
)
IN_WORDS_HELDOUT: Wordings = ("Spell the resulting number out in lower-case English words. Write only these words.",)
FACT: Wordings = ("What is {subject}?", "Look up {subject}.", "I would like to know {subject}.", "Tell me {subject}.")
NUMBER: Wordings = ("Consider the number {subject}.", "Take the number {subject}.", "Here is a number: {subject}.")


@dataclass(frozen=True)
class Numbers:
    """What a formula is about (`x`), and the numbers that were drawn for it."""

    x: int
    a: int
    b: int
    m: int


@dataclass(frozen=True)
class Formula:
    """A sum that is too long for the head, with a result below 100."""

    texts: Wordings
    """In words, about `{x}`."""
    result: Callable[[Numbers], int]


TIMES = Formula(
    (
        "Multiply {x} by {a} and add {b}. What is the remainder when the result is divided by {m}?",
        "Take {x} times {a}, then add {b}. What is left over when the result is divided by {m}?",
        "Compute the product of {a} and {x}, increase it by {b}, and give the result modulo {m}.",
    ),
    lambda n: (n.x * n.a + n.b) % n.m,
)
SQUARE = Formula(
    (
        "Take the square of {x} and subtract {b} from it. What is the remainder when the result is divided by {m}?",
        "Multiply {x} by itself and take {b} away. What is left over when the result is divided by {m}?",
        "Square {x}, decrease the result by {b}, and give what is then left modulo {m}.",
    ),
    lambda n: (n.x**2 - n.b) % n.m,
)
SUM = Formula(
    ("Add {b} to {x} and multiply the sum by {a}. Which remainder does the result leave when it is divided by {m}?",),
    lambda n: (n.x + n.b) * n.a % n.m,
)
TWICE = Formula(
    ("Subtract {b} from twice {x}. Which remainder does the result leave when it is divided by {m}?",),
    lambda n: (2 * n.x - n.b) % n.m,
)


@dataclass(frozen=True)
class Template:
    """A way to ask. `hop` asks about the twin town or home port of what is named."""

    skills: tuple[Skill, ...]
    formula: Formula | None = None
    kind: str = "town"
    hop: bool = False
    heldout: bool = False

    @property
    def depth(self) -> int:
        """How many different things have to be done one after the other."""
        return len(self.skills)

    @property
    def domain(self) -> str:
        """The skills it takes, in order."""
        return "+".join(self.skills)

    @property
    def in_words(self) -> bool:
        """Whether it asks for words, and not for figures."""
        return WORD in self.skills

    @property
    def forms(self) -> Wordings:
        """Ways to say in which form the answer is wanted."""
        if not self.in_words:
            return IN_FIGURES
        return IN_WORDS_HELDOUT if self.heldout else IN_WORDS

    @property
    def worded(self) -> Template:
        """The same, to be answered in words."""
        return replace(self, skills=(*self.skills, WORD))


LOOK: Final = "lookup"
CALC: Final = "compute"
WORD: Final = "write"
TEMPLATES = (
    Template((LOOK,)),
    Template((CALC,), TIMES),
    Template((WORD,)),
    Template((LOOK, CALC), TIMES),
    Template((LOOK, CALC), SQUARE),
    Template((LOOK, WORD)),
    Template((CALC, WORD), SQUARE),
    Template((LOOK, CALC, WORD), TIMES),
    Template((LOOK, CALC, WORD), SQUARE),
    Template((LOOK, LOOK, CALC), TIMES, hop=True),
    Template((LOOK, LOOK, CALC, WORD), TIMES, hop=True),
    Template((LOOK, LOOK, CALC, WORD), SQUARE, hop=True),
    Template((LOOK,), kind="ship", heldout=True),
    Template((CALC,), SUM, heldout=True),
    Template((WORD,), heldout=True),
    Template((LOOK, CALC), TWICE, kind="ship", heldout=True),
    Template((LOOK, CALC), SUM, kind="ship", heldout=True),
    Template((LOOK, WORD), kind="ship", heldout=True),
    Template((CALC, WORD), SUM, heldout=True),
    Template((LOOK, CALC, WORD), TWICE, kind="ship", heldout=True),
    Template((LOOK, CALC, WORD), SUM, kind="ship", heldout=True),
    Template((LOOK, LOOK, CALC), SUM, kind="ship", hop=True, heldout=True),
    Template((LOOK, LOOK, CALC, WORD), TWICE, kind="ship", hop=True, heldout=True),
    Template((LOOK, LOOK, CALC, WORD), SUM, kind="ship", hop=True, heldout=True),
)
HOPS: dict[str, Wordings] = {
    "town": ("the twin town of {name}", "the town that is twinned with {name}", "the twin of the town {name}"),
    "ship": ("the town that is the home port of the ship {name}",),
}
NAMED: dict[str, Wordings] = {
    "town": ("the town {name}", "{name}", "the town called {name}"),
    "ship": ("the ship {name}",),
}
SMALL = ("bridges", "windmills", "lifeboats", "crew")
"""Facts below 100: their number words are short."""


class Draw(random.Random):
    """What follows from a seed; how things are put follows from it apart, so that the same things can be put anew."""

    def __init__(self, seed: str, *, wordings: int) -> None:
        super().__init__(seed)
        self._put = random.Random(f"{seed} wording")  # noqa: S311
        self._wordings = wordings

    def put(self, ways: Wordings) -> str:
        """One of the first few of `ways`."""
        return self._put.choice(ways[: self._wordings])


def composite(
    split: Split = "train",
    *,
    size: int = 120,
    seed: int = 0,
    depths: tuple[int, ...] = (1, 2, 3, 4),
    wordings: int = 1,
    contrasts: bool = False,
) -> Task:
    """`size` questions of one split, its templates in turn.

    Args:
        split: `train`, `validation` or `heldout`.
        size: how many.
        seed: draws the things asked about and the numbers.
        depths: which depths to ask.
        wordings: in how many ways a thing may be put, at most, in the splits that training may see.
        contrasts: ask everything twice, for figures and for words: contrast sets that differ in the last sentence.

    Raises:
        ConfigError: there is no such split, no template has any of these depths, or there would be no wording.
    """
    if split not in SHARES:
        raise ConfigError(f"no split {split!r}: write one of {', '.join(SHARES)}")
    if wordings < 1:
        raise ConfigError(f"wordings must be at least 1, not {wordings}")
    sets = [kin for kin in _sets(split, contrasts=contrasts) if all(one.depth in depths for one in kin)]
    if not sets:
        raise ConfigError(f"no composite question has a depth of {depths!r}; depths are 1 to 4")
    draw = Draw(f"{split} {seed}", wordings=1 if split == "heldout" else wordings)
    samples: list[Sample] = []
    for kin in islice(cycle(sets), size):
        samples += _samples(kin, draw, split, [f"{split}-{seed}-{len(samples) + place}" for place in range(len(kin))])
    return Task(f"composite:{split}", tuple(samples[:size]), _score)


def _sets(split: Split, *, contrasts: bool) -> list[tuple[Template, ...]]:
    """What is asked about the same thing: one template, or a contrast set of them."""
    templates = [one for one in TEMPLATES if one.heldout == (split == "heldout")]
    if not contrasts:
        return [(one,) for one in templates]
    return [(one, one.worded) for one in templates if not one.in_words]


def _samples(kin: tuple[Template, ...], draw: Draw, split: Split, names: list[str]) -> list[Sample]:
    """The same thing, asked for by each template of `kin`, the last of which may ask for words."""
    asked, value = _asked(kin[-1], draw, split)
    contrast = names[0] if len(kin) > 1 else ""
    return [
        Sample(
            id=name,
            question=f"{asked} {draw.put(template.forms)}",
            answer=spelled(value) if template.in_words else str(value),
            domain=template.domain,
            depth=template.depth,
            contrast=contrast,
            details={"form": "words" if template.in_words else "figures"},
        )
        for template, name in zip(kin, names, strict=True)
    ]


def _asked(template: Template, draw: Draw, split: Split) -> tuple[str, int]:
    """What is asked for, and the number that answers it."""
    a, b, m = draw.randint(12, 97), draw.randint(11, 99), draw.randint(53, 99)
    subject, value = _subject(template, draw, split)
    if template.formula is None:
        return draw.put(NUMBER if template.skills == (WORD,) else FACT).format(subject=subject), value
    asked = draw.put(template.formula.texts).format(x=subject, a=a, b=b, m=m)
    return asked, template.formula.result(Numbers(value, a, b, m))


def _subject(template: Template, draw: Draw, split: Split) -> tuple[str, int]:
    """What the question is about, and the number behind it."""
    if LOOK not in template.skills:
        drawn = draw.randint(21, 99) if template.formula is None else draw.randint(1_001, 9_999)
        return str(drawn), drawn
    thing = draw.choice(_things(template.kind, split))
    told, named = thing, NAMED[template.kind]
    if template.hop:
        told, named = islands().town(thing.other), HOPS[template.kind]
    facts = [
        fact for fact in FACTS[told.kind] if template.formula is not None or not template.in_words or fact in SMALL
    ]
    fact = draw.choice(facts)
    return f"the {phrase(fact)} of {draw.put(named).format(name=thing.name)}", told.facts[fact]


def _things(kind: str, split: Split) -> list[Thing]:
    country = islands()
    return [one for one in (country.towns if kind == "town" else country.ships) if split_of(one.name) == split]


async def _score(sample: Sample, text: str) -> Score:
    """Words must be the whole reply; of figures, the last number of the first line: what follows may explain it."""
    if sample.details["form"] == "words":
        answer = text.strip()
        return compared(right=same_words(answer, sample.answer), answer=answer, expected=sample.answer)
    found = last_number(text.strip().partition("\n")[0])
    right = found is not None and found == int(sample.answer)
    return compared(right=right, answer=None if found is None else str(found), expected=sample.answer)
