"""Toy models with predictable replies: an adder, a speller and a planner."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from rl_conductor.errors import ModelError
from rl_conductor.models.scripted import Scripted, ScriptedModel
from rl_conductor.types import Completion, Message, Price, Request, prompt_in

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MADE: dict[str, list[ScriptedModel]] = {}
"""Every toy that was made, by name, for counting what it was asked."""


def toy(name: str, *, price: Price | None = None) -> ScriptedModel:
    """Builds and records the model `toy:NAME`."""
    price = price or Price(input=1_000_000, output=0, per_call=0)
    toy = ScriptedModel(SAYS[name], name=name, price=price, delay=DELAYS.get(name, 0))
    MADE.setdefault(name, []).append(toy)
    return toy


def unpriced(name: str) -> ScriptedModel:
    """Builds the toy `unpriced:NAME`, whose price is unknown."""
    model = toy(name)
    model.price = None
    return model


def calls(name: str | None = None) -> int:
    """Counts the calls of a toy; without a name, of all of them."""
    return sum(len(toy.requests) for key, toys in MADE.items() if name in (None, key) for toy in toys)


def add(request: Request) -> str:
    """The sum that is asked for; `?` when none is."""
    match = re.search(r"add (\d) (\d)", prompt_in(request.messages))
    return str(int(match[1]) + int(match[2])) if match else "?"


def spell(request: Request) -> str:
    """The word of the number that another worker found, or that is to be spelled; `?` when there is none."""
    prompt = prompt_in(request.messages)
    match = re.search(r"^(\d)$", prompt, re.MULTILINE) or re.search(r"spell (\d)", prompt)
    return WORDS[int(match[1])] if match else "?"


def flip(request: Request) -> str:
    """The sum, but one too many for every third seed: a worker that is right two times in three."""
    right, seed = add(request), request.sampling.seed
    return right if right == "?" or seed is None or seed % 3 else str(int(right) + 1)


def fail(_: Request) -> ModelError:
    """An error that says nothing about what the call cost."""
    return ModelError("the server is overloaded", model="toy:failing")


def fail_to_add(request: Request) -> str | ModelError:
    """An error for sums, else the word that is asked for."""
    return fail(request) if "add" in prompt_in(request.messages) else spell(request)


def cut(request: Request) -> Completion:
    """The sum, cut off before its end."""
    return Completion(message=Message.assistant(add(request)), finish_reason="length", model="toy:cutter")


def judge(request: Request) -> str | Exception:
    """Whether both texts are the same; no reply at all where one of them is `two`."""
    texts = [text.strip() for text in re.findall(r"<reply[^>]*>(.*?)</reply", prompt_in(request.messages), re.DOTALL)]
    if "two" in texts:
        return ModelError("the judge is down", model="toy:judge")
    return "yes" if len(set(texts)) == 1 else "no"


def plan(request: Request) -> str:
    """A good plan, of as many steps as the question has skills; a fence's mark may hold `add` by chance."""
    question = prompt_in(request.messages).rpartition("uestion:\n")[2]
    workers = [number for number, skill in enumerate(("add", "spell")) if re.search(rf"\b{skill}\b", question)]
    return lists(workers)


def stumble(request: Request) -> str:
    """A plan that no one can run for every question with a 3, else a good one."""
    return "no plan" if "3" in prompt_in(request.messages).rpartition("\n")[2] else plan(request)


def lists(workers: list[int]) -> str:
    """A plan in three lists, in which each step sees all before it."""
    access: list[Any] = [["all"] if index else [] for index in range(len(workers))]
    subtasks = [f"Do part {index + 1}." for index in range(len(workers))]
    return f"model_id = {workers}\nsubtasks = {json.dumps(subtasks)}\naccess_list = {json.dumps(access)}"


SAYS: dict[str, Callable[[Request], Scripted]] = {
    "adder": add,
    "speller": spell,
    "flipper": flip,
    "cutter": cut,
    "failing": fail,
    "unsteady": fail_to_add,
    "judge": judge,
    "lenient": lambda _: "yes",
    "planner": plan,
    "stumbler": stumble,
    "ponderer": plan,
}
DELAYS = {"ponderer": 60.0}
"""Seconds before each reply."""
