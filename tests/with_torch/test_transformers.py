from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import random_model
from engine_behaviours import (
    CALL,
    SCHEMA,
    SPACES,
    CallingBehaviours,
    EngineBehaviours,
    SeeingBehaviours,
    ThinkingBehaviours,
    asking,
    offering,
)
from rl_conductor import models
from rl_conductor._internal.sync import run_sync
from rl_conductor.errors import BadRequestError, ConfigError, ModelError
from rl_conductor.models.llamacpp.weights import fetch
from rl_conductor.models.transformers.adapter import TransformersModel
from rl_conductor.models.transformers.causal_lm import CausalLM
from rl_conductor.plan_text.grammar import constraint
from rl_conductor.plan_text.parser import parse
from rl_conductor.types import JsonFormat, Message, Sampling


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model.make(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def engine(tiny: Path) -> Iterator[TransformersModel]:
    model = TransformersModel(str(tiny))
    yield model
    run_sync(model.aclose())


class TestTransformers(EngineBehaviours, CallingBehaviours):
    pass


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TransformersModel]:
    model = TransformersModel(str(random_model.make_seeing(tmp_path_factory.mktemp("seeing"))))
    yield model
    run_sync(model.aclose())


class TestSeeing(SeeingBehaviours):
    pass


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TransformersModel]:
    folder = random_model.make(tmp_path_factory.mktemp("thinking"), template=random_model.THINKING)
    model = TransformersModel(str(folder))
    yield model
    run_sync(model.aclose())


class TestThinking(ThinkingBehaviours):
    pass


async def test_a_closed_model_loads_again(tiny: Path) -> None:
    model = models.model(f"transformers:{tiny}")
    before = await model.complete(asking())
    await model.aclose()
    assert (await model.complete(asking())).text == before.text
    await model.aclose()


async def test_a_lora_adapter_changes_the_reply(engine: TransformersModel, tiny: Path, tmp_path: Path) -> None:
    adapted = TransformersModel(str(tiny), adapter=str(random_model.make_adapter(tiny, tmp_path)))
    assert (await adapted.complete(asking())).text != (await engine.complete(asking())).text
    await adapted.aclose()


async def test_constrained_json_has_no_optional_whitespace(engine: TransformersModel) -> None:
    request = asking(form=JsonFormat(json_schema=SCHEMA), temperature=1.0, max_tokens=300)
    for reply in [(await engine.complete(request)).text for _ in range(8)]:
        assert reply == json.dumps(json.loads(reply))


def test_a_missing_path_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing at"):
        TransformersModel(str(tmp_path / "missing"))


async def test_a_hub_name_that_cannot_be_loaded_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="can't be loaded"):
        await TransformersModel("no-such-owner/no-such-model").complete(asking())


@pytest.fixture
def copied(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "copied"))


async def test_a_tokenizer_without_a_chat_template_is_refused(copied: Path) -> None:
    (copied / "chat_template.jinja").unlink()
    with pytest.raises(BadRequestError, match="chat template"):
        await TransformersModel(str(copied)).complete(asking())


async def test_a_template_without_tools_is_detected_before_loading(copied: Path) -> None:
    (copied / "chat_template.jinja").write_text(random_model.CHATML)
    model = TransformersModel(str(copied))
    assert not model.capabilities.tools
    with pytest.raises(BadRequestError, match="can't take tools"):
        await model.complete(offering())


def test_tool_call_tags_that_are_special_tokens_reach_the_parser(copied: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(copied)
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"], special_tokens=True)
    tokenizer.save_pretrained(copied)
    loaded = CausalLM(str(copied), gguf_file=None, adapter=None, device="cpu", dtype="auto")
    assert loaded.chat.has_special_delimiters
    assert loaded.decode(tokenizer(f"{CALL}<|im_end|>")["input_ids"]) == CALL


async def test_the_checkpoints_own_sampling_is_the_default(copied: Path) -> None:
    (copied / "generation_config.json").write_text('{"do_sample": true, "temperature": 1.0, "top_k": 1}')
    model = TransformersModel(str(copied))
    request = asking().model_copy(update={"sampling": Sampling(max_tokens=12)})
    assert (await model.complete(request)).text == (await model.complete(asking(max_tokens=12))).text
    await model.aclose()


async def test_the_conversation_reaches_the_model_in_order(engine: TransformersModel) -> None:
    messages = (Message.system("Be brief."), Message.user("Hi"), Message.assistant("Hello"), Message.user("Bye"))
    longer = await engine.complete(asking().model_copy(update={"messages": messages}))
    shorter = await engine.complete(asking("Bye"))
    assert longer.usage.input_tokens > shorter.usage.input_tokens
    assert longer.text != shorter.text


# ------------------------------------------------------------------------------------- real weights


@pytest.fixture(scope="module")
def smollm2() -> Iterator[TransformersModel]:
    model = TransformersModel(str(fetch("smollm2-135m")))
    yield model
    run_sync(model.aclose())


@pytest.mark.slow
async def test_a_gguf_file_generates_text(smollm2: TransformersModel) -> None:
    reply = await smollm2.complete(asking("Name three colours.", max_tokens=40))
    assert "red" in reply.text.lower()


@pytest.mark.slow
async def test_real_weights_write_a_valid_plan(smollm2: TransformersModel) -> None:
    space = SPACES["a verifier forced"]
    form = constraint(space, "lists", reasoning_chars=60)
    reply = await smollm2.complete(asking("Plan how to add 2 and 2.", form=form, max_tokens=400))
    assert parse(reply.text, space, form="lists", repair=False).workflow is not None
