from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_behaviours import EngineBehaviours, asking
from rl_conductor.errors import ConfigError
from rl_conductor.models.vllm import VLLMModel
from rl_conductor.sync import run_sync

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def engine(tiny: Path) -> Iterator[VLLMModel]:
    model = VLLMModel(str(tiny), enforce_eager=True)
    yield model
    run_sync(model.aclose())


class TestVLLM(EngineBehaviours):
    pass


async def test_a_second_model_of_the_same_checkpoint_shares_the_engine(engine: VLLMModel, tiny: Path) -> None:
    await engine.complete(asking())
    second = VLLMModel(str(tiny), enforce_eager=True)
    assert (await second.complete(asking(timeout=10))).text
    await second.aclose()
    assert (await engine.complete(asking(timeout=10))).text


async def test_a_repeated_prompt_is_read_from_the_cache(engine: VLLMModel) -> None:
    long = asking("word " * 300)
    await engine.complete(long)
    usage = (await engine.complete(long)).usage
    assert 0 < usage.cached_tokens < usage.input_tokens


def test_an_unknown_engine_option_is_told_at_once(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="no_such_option"):
        VLLMModel(str(tiny), no_such_option=1)
