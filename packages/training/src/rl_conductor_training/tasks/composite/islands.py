"""An invented country: towns and ships, their facts, which no model has memorised, and passages that state them.

Everything is generated from one seed, so the facts carry no third-party licence.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from rl_conductor_training.tasks.passage import Passage

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
class Entity:
    """A town or a ship, and its facts in numbers."""

    name: str
    kind: str
    """`town` or `ship`."""
    facts: dict[str, int]
    """Numbers by fact, with the keys of `FACTS`."""
    related_town: str
    """Name of the twin town of a town, or of the home port of a ship."""


FACTS = {
    "town": ("population", "bridges", "year of foundation", "height in metres", "windmills"),
    "ship": ("length in metres", "crew", "year of launch", "lifeboats", "cabins"),
}
COUNTED_FACTS = ("bridges", "windmills", "lifeboats", "cabins")
FACT_RANGES = {
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
RELATION_LABELS = {"town": "Twin town", "ship": "Home port"}


@dataclass(frozen=True)
class Islands:
    """The towns and ships of the country."""

    towns: tuple[Entity, ...]
    ships: tuple[Entity, ...]

    @property
    def passages(self) -> tuple[Passage, ...]:
        """One passage per fact."""
        return tuple(
            Passage(entity.name, fact) for entity in (*self.towns, *self.ships) for fact in _fact_sentences(entity)
        )

    def town(self, name: str) -> Entity:
        """Returns the town called `name`."""
        return next(town for town in self.towns if town.name == name)


@cache
def islands() -> Islands:
    """Generates the towns and ships of the country, the same ones every time."""
    generator = random.Random(SEED)  # noqa: S311
    names = [a + b + c for a in _STARTS for b in _MIDDLES for c in _ENDS]
    towns = generator.sample(names, TOWNS)
    ships = generator.sample([f"{a} {b}" for a in _ADJECTIVES for b in _NOUNS], SHIPS)
    twins = [*towns[1:], towns[0]]
    return Islands(
        towns=tuple(_generate_entity(generator, name, "town", twin) for name, twin in zip(towns, twins, strict=True)),
        ships=tuple(_generate_entity(generator, name, "ship", generator.choice(towns)) for name in ships),
    )


def _generate_entity(generator: random.Random, name: str, kind: str, related_town: str) -> Entity:
    return Entity(name, kind, {fact: generator.randint(*FACT_RANGES[fact]) for fact in FACTS[kind]}, related_town)


def _fact_sentences(entity: Entity) -> list[str]:
    numbers = [f"{fact_phrase(fact).capitalize()}: {number}." for fact, number in entity.facts.items()]
    return [*numbers, f"{RELATION_LABELS[entity.kind]}: {entity.related_town}."]


def fact_phrase(fact: str) -> str:
    """Returns the noun phrase of a fact, such as `number of bridges`."""
    return f"number of {fact}" if fact in COUNTED_FACTS else fact
