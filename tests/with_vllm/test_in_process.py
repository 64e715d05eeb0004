from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

import random_model
from engine_behaviours import ENDLESS, CallingBehaviours, EngineBehaviours, SeeingBehaviours, ThinkingBehaviours, asking
from rl_conductor import Conductor, Limits, Planner, Worker, WorkerPool
from rl_conductor._internal.sync import run_sync
from rl_conductor.errors import ConfigError
from rl_conductor.models.llamacpp.weights import fetch
from rl_conductor.models.vllm.adapter import VLLMModel
from rl_conductor.types import Sampling

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def engine(tiny: Path) -> Iterator[VLLMModel]:
    model = VLLMModel(str(tiny), enforce_eager=True)
    yield model
    run_sync(model.aclose())


class TestVLLM(EngineBehaviours, CallingBehaviours):
    pass


@pytest.fixture(scope="class")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMModel]:
    model = VLLMModel(str(random_model.make_seeing(tmp_path_factory.mktemp("seeing"))), enforce_eager=True)
    yield model
    run_sync(model.aclose())


class TestSeeing(SeeingBehaviours):
    pass


@pytest.fixture(scope="class")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMModel]:
    folder = random_model.make(tmp_path_factory.mktemp("thinking"), template=random_model.THINKING)
    model = VLLMModel(str(folder), enforce_eager=True)
    yield model
    run_sync(model.aclose())


class TestThinking(ThinkingBehaviours):
    pass


async def test_a_second_model_of_the_same_checkpoint_shares_the_engine(engine: VLLMModel, tiny: Path) -> None:
    await engine.complete(asking())
    second = VLLMModel(str(tiny), enforce_eager=True)
    assert (await second.complete(asking(timeout=10))).text
    await second.aclose()
    assert (await engine.complete(asking(timeout=10))).text


async def test_cancelled_requests_are_aborted_in_the_engine(engine: VLLMModel) -> None:
    await engine.complete(asking())
    calls = [asyncio.create_task(engine.complete(ENDLESS)) for _ in range(3)]
    assert await _has_running(engine, 3)
    for call in calls:
        call.cancel()
    assert await _has_running(engine, 0)


async def _has_running(model: VLLMModel, count: int) -> bool:
    """Whether the engine comes to have `count` requests running, long before an endless reply ends."""
    assert model._engine is not None
    llm = model._engine.start("")
    for _ in range(100):
        if llm.get_num_unfinished_requests() == count:
            return True
        await asyncio.sleep(0.01)
    return False


async def test_adapters_share_an_engine_and_reply_differently(engine: VLLMModel, tiny: Path, tmp_path: Path) -> None:
    first, second = (random_model.make_adapter(tiny, tmp_path / name) for name in ("first", "second"))
    adapted = [VLLMModel(str(tiny), lora=str(folder), enforce_eager=True) for folder in (first, second)]
    replies = await asyncio.gather(*(model.complete(asking(max_tokens=12)) for model in (engine, *adapted)))
    alone = [await model.complete(asking(max_tokens=12)) for model in adapted]
    for model in adapted:
        await model.aclose()
    assert len({reply.text for reply in replies}) == 3
    assert [reply.text for reply in replies[1:]] == [reply.text for reply in alone]


def test_a_base_model_with_adapters_is_rejected_on_a_cpu(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="remove enable_lora"):
        VLLMModel(str(tiny), enable_lora=True)


async def test_a_repeated_prompt_uses_the_prefix_cache(engine: VLLMModel) -> None:
    long = asking("word " * 300)
    await engine.complete(long)
    usage = (await engine.complete(long)).usage
    assert 0 < usage.cached_tokens < usage.input_tokens


def test_an_unknown_engine_option_is_reported_at_once(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="no_such_option"):
        VLLMModel(str(tiny), no_such_option=1)


# ------------------------------------------------------------------------------------- real weights


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMModel]:
    packed, folder = fetch("smollm2-135m"), tmp_path_factory.mktemp("smollm2")
    AutoTokenizer.from_pretrained(packed.parent, gguf_file=packed.name).save_pretrained(folder)
    unpacked = AutoModelForCausalLM.from_pretrained(
        packed.parent,
        gguf_file=packed.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    unpacked.save_pretrained(folder)
    model = VLLMModel(str(folder), enforce_eager=True, max_model_len=4096)
    yield model
    run_sync(model.aclose())


@pytest.mark.slow
@pytest.mark.timeout(480)
async def test_real_weights_plan_and_answer(smollm2: VLLMModel) -> None:
    greedy = Sampling(max_tokens=400, temperature=0.0)
    pool = WorkerPool([Worker.of(name, smollm2, sampling=greedy) for name in ("thinker", "writer")])
    planner = Planner(model=smollm2, examples=1, samples=1, sampling=greedy, timeout=None)
    trace = await Conductor(planner, pool, limits=Limits(steps=2, rounds=1)).run("What is the capital of France?")
    assert trace.rounds[0].plan.workflow is not None
    assert "Paris" in trace.text
