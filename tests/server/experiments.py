"""An experiment with a vendor's model as the baseline and a judge, for tests of shadow runs and canaries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from decimal import Decimal
from typing import Any

import pytest

from core.runs import SOON
from rl_conductor.models.scripted import ScriptedModel
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.worker import Worker
from rl_conductor.types import Price, Sampling
from rl_conductor_server.store import Pair
from server.conftest import ONE_STEP, At
from server.upstream import Vendor, vendor

QUESTION: list[Any] = [{"role": "user", "content": "What is 17 * 23?"}]
ASK: Any = {"model": "assistant", "messages": QUESTION}
CENT = Price(input=Decimal(0), output=Decimal(0), per_call=Decimal("0.01"))


def prefers(phrase: str) -> Callable[[dict[str, Any]], str]:
    """Make a judge that prefers the answer with this phrase, in either position."""

    def judge(body: dict[str, Any]) -> str:
        first, second = answers_in(body)
        better = "neither" if (phrase in first) == (phrase in second) else "first" if phrase in first else "second"
        return json.dumps({"reason": "It is right.", "better": better})

    return judge


def answers_in(body: dict[str, Any]) -> list[str]:
    """Return the two answers in a request to the judge."""
    text = body["messages"][-1]["content"]
    return [part.partition(">\n")[2].partition("\n</reply")[0] for part in text.split("<reply ")[1:]]


@pytest.fixture
async def upstream(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Vendor, None]:
    """A vendor of the baseline model and of a judge that prefers the answer of `a`."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret-of-the-vendor")
    async with vendor(old="It is 390.", judge=prefers("391")) as made:
        yield made


def at_vendor(upstream: Vendor, name: str, **options: Any) -> dict[str, Any]:
    price = {"input": "0", "output": "0", "per_call": "0.01"}
    sampling = {"max_tokens": 100}
    return {
        "model": f"openai:{name}",
        "options": {"base_url": upstream.url},
        "price": price,
        "sampling": sampling,
    } | options


def experiment(upstream: Vendor, *, canary: dict[str, Any] | None = None, **shadow: Any) -> dict[str, Any]:
    """Settings of an experiment that compares every answer."""
    judge = {name: value for name, value in at_vendor(upstream, "judge").items() if name != "sampling"}
    return {
        "released": "2026-11-01",
        "baseline": at_vendor(upstream, "old"),
        "conductor": "conductor-mini",
        "shadow": {"share": 1, "usd": "1", "judge": judge, "concurrency": 2} | shadow,
        "canary": canary or {},
    }


def conducting(answer: Any = "It is 391.") -> dict[str, Any]:
    """A pool and a planner whose calls cost a cent each."""
    a = answer if isinstance(answer, ScriptedModel) else ScriptedModel(answer, price=CENT)
    worker = Worker.of("a", a, sampling=Sampling(max_tokens=1))
    return {"pool": WorkerPool([worker]), "planner": ScriptedModel(ONE_STEP, price=CENT)}


async def pairs(at: At, n: int) -> list[Pair]:
    """Wait for this many pairs and return them."""
    async with asyncio.timeout(SOON):
        while len(found := list(await at.service.store.experiments.list_pairs())) < n:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found


async def found_in_metrics(at: At, line: str) -> None:
    async with asyncio.timeout(SOON):
        while line not in (await at.http.get("/metrics")).text:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
