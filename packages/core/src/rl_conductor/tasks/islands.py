"""An invented country: towns and ships whose facts no model can know by heart, and the passages that tell them.

Everything follows from a seed. The facts are ours, so they carry no licence of others.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from rl_conductor.retrieval import Passage

SEED = 20_26
TOWNS, SHIPS = 240, 160


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_STARTS = _words("Al Bar Cor Dun El Fen Gal Har Ist Jor Kel Lun Mar Nor Ost Pel Quen Ros Sel Tor Ul Var Wen Yar")
_MIDDLES = ("", "a", "an", "bel", "den", "e", "il", "mar", "o", "ra", "ten", "wi")
_ENDS = _words("bridge burg by dale ford gate holm mouth port stead ton wick")
_ADJECTIVES = _words("Amber Brave Calm Distant Early Faithful Golden Hidden Iron Jolly Kindly Lucky Merry Noble")
_NOUNS = _words("Anchor Badger Comet Dolphin Eagle Falcon Gull Heron Ibis Jackdaw Kestrel Lantern Magpie Otter")


@dataclass(frozen=True)
class Thing:
    """A town or a ship, and its facts in numbers."""

    name: str
    kind: str
    """`town` or `ship`."""
    facts: dict[str, int]
    """Numbers by what they say, as in `FACTS`."""
    other: str
    """The twin of a town, the home port of a ship: the name of a town."""


FACTS = {
    "town": ("population", "bridges", "year of foundation", "height in metres", "windmills"),
    "ship": ("length in metres", "crew", "year of launch", "lifeboats", "cabins"),
}
COUNTED = ("bridges", "windmills", "lifeboats", "cabins")
RANGES = {
    "population": (1_000, 9_999),
    "bridges": (3, 79),
    "year of foundation": (1_100, 1_890),
    "height in metres": (12, 890),
    "windmills": (2, 60),
    "length in metres": (21, 190),
    "crew": (5, 88),
    "year of launch": (1_880, 1_999),
    "lifeboats": (2, 30),
    "cabins": (11, 240),
}
OTHERS = {"town": "Twin town", "ship": "Home port"}


@dataclass(frozen=True)
class Islands:
    """The whole country."""

    towns: tuple[Thing, ...]
    ships: tuple[Thing, ...]

    @property
    def passages(self) -> tuple[Passage, ...]:
        """A passage for each fact."""
        return tuple(Passage(one.name, fact) for one in (*self.towns, *self.ships) for fact in _told(one))

    def town(self, name: str) -> Thing:
        """The town of that name."""
        return next(town for town in self.towns if town.name == name)


@cache
def islands(seed: int = SEED) -> Islands:
    """The country that follows from `seed`."""
    draw = random.Random(seed)  # noqa: S311
    names = [a + b + c for a in _STARTS for b in _MIDDLES for c in _ENDS]
    towns = draw.sample(names, TOWNS)
    ships = draw.sample([f"{a} {b}" for a in _ADJECTIVES for b in _NOUNS], SHIPS)
    twins = [*towns[1:], towns[0]]
    return Islands(
        towns=tuple(_thing(draw, name, "town", twin) for name, twin in zip(towns, twins, strict=True)),
        ships=tuple(_thing(draw, name, "ship", draw.choice(towns)) for name in ships),
    )


def _thing(draw: random.Random, name: str, kind: str, other: str) -> Thing:
    return Thing(name, kind, {fact: draw.randint(*RANGES[fact]) for fact in FACTS[kind]}, other)


def _told(thing: Thing) -> list[str]:
    numbers = [f"{phrase(fact).capitalize()}: {number}." for fact, number in thing.facts.items()]
    return [*numbers, f"{OTHERS[thing.kind]}: {thing.other}."]


def phrase(fact: str) -> str:
    """A fact as it is spoken of."""
    return f"number of {fact}" if fact in COUNTED else fact
