"""A pool of scripted workers with known skills, and questions of two kinds that need different workflows."""

from __future__ import annotations

import re

from rl_conductor import Planner, ScriptedModel, WorkerPool
from rl_conductor.scoring import Sample, Task
from rl_conductor.types import Price, Request, prompt_in
from rl_conductor_training.tasks.scorers.text import exact

CITIES = ("Oslo", "Rome", "Lima", "Bonn", "Cork", "Nice", "Bern", "Kiel", "Pisa", "Graz", "Linz", "York")
PLACES = ("north", "south", "east", "west")
ENTRIES = {name: f'[workers.{name}]\nmodel = "skill:{name}"\n' for name in ("atlas", "speller", "pointer")}
"""The entry of each worker in a pool file; the models are those of `PROVIDER`."""
POOL = "".join(ENTRIES.values())
"""A pool file of all workers."""
PAIR = ENTRIES["atlas"] + ENTRIES["speller"]
"""A pool file of the workers that a `chain` needs; a search over two takes a fraction of the time."""
PROVIDER = "training.learn.skills:build_model"
"""The provider of the models `skill:NAME`."""


def atlas(request: Request) -> str:
    """Knows the population of every city, and nothing else."""
    city = re.search(r"city of (\w+)", prompt_in(request.messages))
    return f"pop{CITIES.index(city[1])}" if city else "?"


def speller(request: Request) -> str:
    """Reverses the last `pop...` in its prompt, once another worker has found it."""
    found = re.findall(r"\bpop\d+", prompt_in(request.messages))
    return found[-1][::-1] if found else "?"


def pointer(request: Request) -> str:
    """Repeats the direction in a question about directions."""
    match = re.search(r"walk towards the (\w+)", prompt_in(request.messages))
    return match[1] if match else "?"


def judge(request: Request) -> str:
    """Says whether two texts are equal."""
    first, second = re.findall(r"<reply [^>]*>\n(.*?)\n</reply", request.messages[-1].text, flags=re.DOTALL)
    return "yes" if first == second else "no"


def build_model(name: str, *, price: Price | None = None, version: str = "") -> ScriptedModel:
    """Builds the model `skill:NAME`; a `version` is an option that its name does not show."""
    return ScriptedModel(globals()[name], name=name, price=price or Price(input=1, output=1))


def build_pool(price: Price | None = None) -> WorkerPool:
    """Builds the pool; every token costs a dollar per million unless `price` says otherwise."""
    names = ("atlas", "speller", "pointer")
    return WorkerPool({name: {"model": build_model(name, price=price), "description": name} for name in names})


def build_planner() -> Planner:
    """Builds a planner whose plans always ask the pointer."""
    reply = "One.\nmodel_id = [2]\nsubtasks = ['Answer.']\naccess_list = [[]]"
    return Planner(model=ScriptedModel(reply, name="planner", price=Price(input=1, output=1)))


def build_task(kinds: str = "direction chain", count: int = 10) -> Task:
    """Builds a task of two kinds of questions, each in a group of its own.

    A `direction` needs the pointer; a `chain` needs the atlas, then the speller.
    """
    samples: list[Sample] = []
    for number in range(count):
        place, city = PLACES[number % len(PLACES)], CITIES[number % len(CITIES)]
        if "direction" in kinds:
            question = f"After tour {number}, where do we go if we walk towards the {place}?"
            samples.append(_sample(f"direction-{number}", question, place))
        if "chain" in kinds:
            question = f"Spell backwards the population of the city of {city}."
            samples.append(_sample(f"chain-{number}", question, f"pop{number}"[::-1]))
    return Task("skills", tuple(samples), exact)


def _sample(name: str, question: str, answer: str) -> Sample:
    domain = name.partition("-")[0]
    return Sample(id=name, question=question, answer=answer, domain=domain, details={"group": name})


def count_calls(pool: WorkerPool) -> int:
    """Counts the calls to the scripted workers."""
    models = [worker.model for worker in pool.values()]
    return sum(len(model.requests) for model in models if isinstance(model, ScriptedModel))
