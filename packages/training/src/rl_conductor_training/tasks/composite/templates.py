"""Templates of the composite questions: wordings, formulas and the skills that each template takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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
FACT: Wordings = ("What is {subject}?", "Look up {subject}.", "I would like to know {subject}.", "Tell me {subject}.")
NUMBER: Wordings = ("Consider the number {subject}.", "Take the number {subject}.", "Here is a number: {subject}.")


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
    heldout: bool = False

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
        if not self.in_words:
            return IN_FIGURES
        return IN_WORDS_HELDOUT if self.heldout else IN_WORDS

    @property
    def with_words(self) -> Template:
        """The same template, to be answered in words."""
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
    Template((LOOK, LOOK, CALC), TIMES, related=True),
    Template((LOOK, LOOK, CALC, WORD), TIMES, related=True),
    Template((LOOK, LOOK, CALC, WORD), SQUARE, related=True),
    Template((LOOK,), kind="ship", heldout=True),
    Template((CALC,), SUM, heldout=True),
    Template((WORD,), heldout=True),
    Template((LOOK, CALC), TWICE, kind="ship", heldout=True),
    Template((LOOK, CALC), SUM, kind="ship", heldout=True),
    Template((LOOK, WORD), kind="ship", heldout=True),
    Template((CALC, WORD), SUM, heldout=True),
    Template((LOOK, CALC, WORD), TWICE, kind="ship", heldout=True),
    Template((LOOK, CALC, WORD), SUM, kind="ship", heldout=True),
    Template((LOOK, LOOK, CALC), SUM, kind="ship", related=True, heldout=True),
    Template((LOOK, LOOK, CALC, WORD), TWICE, kind="ship", related=True, heldout=True),
    Template((LOOK, LOOK, CALC, WORD), SUM, kind="ship", related=True, heldout=True),
)
NEW_COMPOSITIONS = (
    Template((LOOK, LOOK), related=True, heldout=True),
    Template((LOOK, LOOK), kind="ship", related=True, heldout=True),
    Template((LOOK, LOOK, WORD), related=True, heldout=True),
    Template((LOOK, LOOK, WORD), kind="ship", related=True, heldout=True),
    Template((LOOK, LOOK, CALC), PAIR, kind="ship", paired=True, heldout=True),
    Template((LOOK, LOOK, CALC, WORD), PAIR, kind="ship", paired=True, heldout=True),
)
"""Templates whose sequences of skills, or pairs of look-ups, training does not contain."""
RELATED_NAMES: dict[str, Wordings] = {
    "town": ("the twin town of {name}", "the town that is twinned with {name}", "the twin of the town {name}"),
    "ship": ("the town that is the home port of the ship {name}",),
}
ENTITY_NAMES: dict[str, Wordings] = {
    "town": ("the town {name}", "{name}", "the town called {name}"),
    "ship": ("the ship {name}",),
}
SMALL_FACTS = ("bridges", "windmills", "lifeboats", "crew")
"""Facts below 100, whose number words are short."""
