"""Templates of the composite questions: wordings, formulas and the skills that each template takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

Skill = Literal["lookup", "compute", "write"]

Wordings = tuple[str, ...]
"""Alternative wordings of the same text."""

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


@dataclass(frozen=True)
class Phrases:
    """Wordings of everything in a question but its calculation."""

    facts: Wordings
    """Requests for a fact, with the placeholder `{subject}`."""
    numbers: Wordings
    """Introductions of a number to be written in words, with the placeholder `{subject}`."""
    figures: Wordings
    """Requests for an answer in figures."""
    words: Wordings
    """Requests for an answer in words."""
    entities: dict[str, Wordings] = field(hash=False)
    """Names of an entity by its kind, with the placeholder `{name}`."""
    related: dict[str, Wordings] = field(hash=False)
    """Names of the twin town of a town, and of the home port of a ship, by the kind of the named entity."""


TRAINING = Phrases(
    facts=("What is {subject}?", "Look up {subject}.", "I would like to know {subject}.", "Tell me {subject}."),
    numbers=("Consider the number {subject}.", "Take the number {subject}.", "Here is a number: {subject}."),
    figures=IN_FIGURES,
    words=IN_WORDS,
    entities={"town": ("the town {name}", "{name}", "the town called {name}"), "ship": ("the ship {name}",)},
    related={
        "town": ("the twin town of {name}", "the town that is twinned with {name}", "the twin of the town {name}"),
        "ship": ("the town that is the home port of the ship {name}",),
    },
)
HELDOUT = replace(TRAINING, words=IN_WORDS_HELDOUT)


@dataclass(frozen=True)
class Operands:
    """The subjects of a formula (`x`, `y`) and its random numbers."""

    x: int
    y: int
    """The second subject of a pair; otherwise `x` again."""
    a: int
    b: int
    m: int


@dataclass(frozen=True)
class Formula:
    """A calculation that is too long for a small model without a tool, with a result below 100."""

    wordings: Wordings
    """Texts with the placeholders `{x}`, `{y}`, `{a}`, `{b}` and `{m}`."""
    compute: Callable[[Operands], int]


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
PAIR = Formula(
    ("Add {x} to {y}. Which remainder does the sum leave when it is divided by {m}?",),
    lambda n: (n.x + n.y) % n.m,
)


@dataclass(frozen=True)
class Template:
    """A kind of question: its skills, formula and subject."""

    skills: tuple[Skill, ...]
    formula: Formula | None = None
    kind: str = "town"
    """Kind of the named entity: `town` or `ship`."""
    related: bool = False
    """Whether it asks about the twin town or home port of the named entity."""
    paired: bool = False
    """Whether the formula takes the same fact of two entities."""
    phrases: Phrases = TRAINING

    @property
    def depth(self) -> int:
        """Number of skills that have to be applied one after the other."""
        return len(self.skills)

    @property
    def domain(self) -> str:
        """The skills in order, joined by `+`."""
        return "+".join(self.skills)

    @property
    def in_words(self) -> bool:
        """Whether the answer has to be written in words instead of figures."""
        return WORD in self.skills

    @property
    def answer_formats(self) -> Wordings:
        """Wordings of the requested answer format."""
        return self.phrases.words if self.in_words else self.phrases.figures

    @property
    def with_words(self) -> Template:
        """The same template, to be answered in words."""
        return replace(self, skills=(*self.skills, WORD))


LOOK: Final = "lookup"
CALC: Final = "compute"
WORD: Final = "write"
TRAINING_TEMPLATES = (
    Template((LOOK,)),
    Template((CALC,), TIMES),
    Template((WORD,)),
    Template((LOOK, CALC), TIMES),
    Template((LOOK, CALC), SQUARE),
    Template((LOOK, WORD)),
    Template((CALC, WORD), SQUARE),
    Template((LOOK, CALC, WORD), TIMES),
    Template((LOOK, CALC, WORD), SQUARE),
    Template((LOOK, LOOK, CALC), TIMES, related=True),
    Template((LOOK, LOOK, CALC, WORD), TIMES, related=True),
    Template((LOOK, LOOK, CALC, WORD), SQUARE, related=True),
)
HELDOUT_TEMPLATES = (
    Template((LOOK,), kind="ship", phrases=HELDOUT),
    Template((CALC,), SUM, phrases=HELDOUT),
    Template((WORD,), phrases=HELDOUT),
    Template((LOOK, CALC), TWICE, kind="ship", phrases=HELDOUT),
    Template((LOOK, CALC), SUM, kind="ship", phrases=HELDOUT),
    Template((LOOK, WORD), kind="ship", phrases=HELDOUT),
    Template((CALC, WORD), SUM, phrases=HELDOUT),
    Template((LOOK, CALC, WORD), TWICE, kind="ship", phrases=HELDOUT),
    Template((LOOK, CALC, WORD), SUM, kind="ship", phrases=HELDOUT),
    Template((LOOK, LOOK, CALC), SUM, kind="ship", related=True, phrases=HELDOUT),
    Template((LOOK, LOOK, CALC, WORD), TWICE, kind="ship", related=True, phrases=HELDOUT),
    Template((LOOK, LOOK, CALC, WORD), SUM, kind="ship", related=True, phrases=HELDOUT),
)
NEW_COMPOSITIONS = (
    Template((LOOK, LOOK), related=True, phrases=HELDOUT),
    Template((LOOK, LOOK), kind="ship", related=True, phrases=HELDOUT),
    Template((LOOK, LOOK, WORD), related=True, phrases=HELDOUT),
    Template((LOOK, LOOK, WORD), kind="ship", related=True, phrases=HELDOUT),
    Template((LOOK, LOOK, CALC), PAIR, kind="ship", paired=True, phrases=HELDOUT),
    Template((LOOK, LOOK, CALC, WORD), PAIR, kind="ship", paired=True, phrases=HELDOUT),
)
"""Templates whose sequences of skills, or pairs of look-ups, training does not contain."""
SMALL_FACTS = ("bridges", "windmills", "lifeboats", "crew")
"""Facts below 100, whose number words are short."""
