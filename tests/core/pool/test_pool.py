"""Workers, pools, and pool files whose mistakes are named."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConfigError
from rl_conductor.models import Capabilities, Model
from rl_conductor.models.scripted import ALL, ScriptedModel
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import AnyWorker, WorkerPool
from rl_conductor.pool.pool_file import read_pool_file
from rl_conductor.pool.worker import Worker
from rl_conductor.types import FREE, Card, Price, Sampling
from rl_conductor.workflow.request_tokens import DEFAULT_OUTPUT_TOKENS

FULL = """
[planner]
model = "vllm-server:conductor"
options = { base_url = "http://127.0.0.1:9/v1" }
instructions = "Check sums."

[workers.strong]
model = "ollama:big"
strengths = "reasoning"
instructions = "Be exact."
accuracy = { math = 0.9 }
price = { input = 1.25, output = "10" }
latency = 2.5
tags = ["internal"]
region = "eu"
sampling = { temperature = 0.2 }
timeout = 60
hedge_after = 5
concurrency = 3

[workers.quick]
model = "ollama:small"
"""

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a pool file."""

    def written(text: str) -> Path:
        path = tmp_path / "pool.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


# -------------------------------------------------------------------------------------------- code


def test_a_pool_is_made_of_workers_or_of_models_by_name() -> None:
    model = ScriptedModel("ok")
    by_name: dict[str, Model | str] = {"a": model, "b": "ollama:small"}
    pool = WorkerPool(by_name)

    assert list(pool) == ["a", "b"]
    assert (len(pool), "a" in pool, pool["a"].model) == (2, True, model)
    assert pool["b"].model.name == "ollama:small"
    assert [card.name for card in pool.cards] == ["a", "b"]
    assert list(WorkerPool(pool.values())) == ["a", "b"]


def test_a_worker_takes_name_and_price_where_its_card_says_none() -> None:
    price = Price(input=Decimal(1), output=Decimal(2))
    model = ScriptedModel("ok", price=price)

    assert Worker.of("a", model).card == Card(name="a", price=price)
    assert Worker.of("a", model, card=Card(name="x", price=FREE)).card == Card(name="a", price=FREE)


def test_a_workers_output_is_always_bounded() -> None:
    model = ScriptedModel("ok")

    assert Worker.of("a", model).sampling.max_tokens == DEFAULT_OUTPUT_TOKENS
    assert Worker.of("a", model, sampling=Sampling(seed=1)).sampling == Sampling(
        seed=1, max_tokens=DEFAULT_OUTPUT_TOKENS
    )
    assert Worker.of("a", model, sampling=Sampling(max_tokens=5)).sampling.max_tokens == 5


@pytest.mark.parametrize("concurrency", [0, -1])
def test_a_worker_that_could_never_work_is_refused(concurrency: int) -> None:
    with pytest.raises(ConfigError, match="write 1 or more"):
        Worker.of("a", ScriptedModel("ok"), concurrency=concurrency)


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one worker"):
        WorkerPool({})


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\x00", "a\u202eb", 3])
def test_a_name_that_is_not_one_printable_line_is_refused(name: Any) -> None:
    for workers in ({name: ScriptedModel("x")}, {name: {"model": "ollama:x"}}):
        with pytest.raises(ConfigError, match=f"^a worker is named {re.escape(repr(name))}; write a name of letters"):
            WorkerPool(workers)
    if isinstance(name, str):
        with pytest.raises(ConfigError, match=r"^a worker is named"):
            WorkerPool([Worker.of(name, ScriptedModel("x"))])


def test_wrapped_models_replace_those_of_the_workers_and_everything_else_stays() -> None:
    pool = WorkerPool([Worker.of("a", ScriptedModel("")), Worker.of("b", ScriptedModel(""), description="checks")])
    others = {name: ScriptedModel("", name=name) for name in "ab"}

    wrapped = pool.wrap_models(lambda model, name: others[name] if model is pool[name].model else model)

    assert [worker.model for worker in wrapped.values()] == list(others.values())
    assert wrapped.cards == pool.cards


def test_two_workers_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two workers are named 'a'"):
        WorkerPool([Worker.of("a", ScriptedModel("x")), Worker.of("a", ScriptedModel("y"))])


async def test_closing_a_pool_closes_every_model() -> None:
    class Closing(ScriptedModel):
        closed = 0

        async def aclose(self) -> None:
            self.closed += 1

    models = {"a": Closing("x"), "b": Closing("y")}

    await WorkerPool(models).aclose()

    assert [model.closed for model in models.values()] == [1, 1]


# ------------------------------------------------------------------------------------------- files


def test_a_pool_file_says_everything_about_its_workers(write: Write) -> None:
    path = write(FULL)

    pool = WorkerPool.from_toml(path)

    strong, quick = pool.values()
    assert strong.card == Card(
        name="strong",
        strengths="reasoning",
        accuracy={"math": 0.9},
        price=Price(input=Decimal("1.25"), output=Decimal(10)),
        latency=2.5,
        tags=frozenset({"internal"}),
        region="eu",
    )
    assert strong.model.name == "ollama:big"
    assert (strong.instructions, quick.instructions) == ("Be exact.", "")
    assert strong.sampling == Sampling(temperature=0.2, max_tokens=DEFAULT_OUTPUT_TOKENS)
    assert (strong.timeout, strong.hedge_after, strong.slots is None) == (60, 5, False)
    assert (quick.timeout, quick.hedge_after, quick.slots, quick.card.price) == (300, None, None, FREE)
    planner = read_pool_file(path).planner
    assert planner is not None
    assert planner.instructions == "Check sums."
    assert planner.build().name == "vllm-server:conductor"


def test_the_name_of_a_model_is_a_whole_entry_of_a_pool_file(write: Write) -> None:
    path = write('planner = "ollama:big"\n[workers]\nquick = "ollama:small"\n[workers.strong]\nmodel = "ollama:big"\n')
    pool = WorkerPool.from_toml(path)
    planner = read_pool_file(path).planner
    assert planner is not None
    assert (pool["quick"].model.name, pool["strong"].model.name, planner.model) == (
        "ollama:small",
        "ollama:big",
        "ollama:big",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[workers.a]\n", 'workers.a.model: missing; write model = "openai:'),
        ("", r"workers: missing; write a table \[workers.NAME\] for each worker"),
        ("workers = 1", "workers: "),
        ("[workers]\n", r"is wrong: a pool needs at least one worker; write a table \[workers.NAME\]"),
        (
            '[workers.a]\nmodel = "ollama:x"\nstrenghts = "typo"',
            "workers.a.strenghts: there is no such setting; did you mean 'strengths'",
        ),
        (
            '[workers.a]\nmodel = "ollama:x"\nbase_url = "x"',
            r"workers.a.base_url: an argument of the model; write options = { base_url = ... }",
        ),
        ("[workers]\na = 1", "workers.a: write a table or a dict of settings"),
        ('[workers.a]\nmodel = "ollama:x"\nconcurrency = 0', "workers.a.concurrency: .* greater than or equal to 1"),
        ('[workers.a]\nmodel = "ollama:x"\ntimeout = -1', "workers.a.timeout: .* greater than 0"),
        ('[workers.a]\nmodel = "ollama:x"\ntimeout = inf', "workers.a.timeout: write a finite number"),
        ('[workers.a]\nmodel = "ollama:x"\nlatency = nan', "workers.a.latency: write a finite number"),
        (
            '[workers.a]\nmodel = "ollama:x"\nsampling = {temperature = nan}',
            "workers.a.sampling.temperature: write a finite number",
        ),
        ('[workers.a]\nmodel = "ollama:x"\naccuracy = { math = "good" }', "workers.a.accuracy.math"),
        ('[workers.a]\nmodel = "ollama:x"\ntags = "eu"', r"workers.a.tags: write a list of names: \['eu'\]"),
        ('[workers.a]\nmodel = "nonsense"', "no model 'nonsense'"),
        ('[workers.a]\nmodel = "ollama:x"\noptions = { api_key = "sk-1" }', "options.api_key is not allowed in a file"),
        (
            '[workers.a]\nmodel = "ollama:x"\noptions = { bas_url = "x" }',
            "no option 'bas_url'; did you mean 'base_url'",
        ),
        (
            '[workers.a]\nmodel = "ollama:x"\noptions = { colour = 1 }',
            "ollama:x: invalid options: there is no option 'colour'; write one of base_url, price, ",
        ),
        ('[workers.a]\nmodel = "embedded:smollm2-135m"\noptions = { contxt = 1 }', "there is no option 'contxt'"),
        ('[workers.a]\nmodel = "ollama:x"\naccuracy = { math = 91 }', "accuracy.math: .* less than or equal to 1"),
        ('[workers.a]\nmodel = "olama:x"', "did you mean 'ollama:x'"),
        ('[workers.a]\nmodel = "gpt-6-sol"', r"did you mean 'openai:gpt-6-sol'\?"),
        ("[workers.a", "is not TOML"),
        (f"a = {'[' * 5000}", "is nested too deeply"),
        ('[workers."a\\nb"]\nmodel = "ollama:x"', r"a worker is named 'a\\nb'; write a name of letters"),
        (
            'planner = "coder"\n[workers]\ncoder = "ollama:qwen3"',
            """the planner is 'coder', which is a worker; name a model, .* planner = "ollama:qwen3\"""",
        ),
        (
            '[workers]\nx = "ollama"',
            "no model 'ollama': ollama is a provider; name one of its models as 'ollama:MODEL'",
        ),
    ],
)
def test_a_mistake_in_a_pool_file_is_named(write: Write, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as wrong:
        WorkerPool.from_toml(write(text))

    assert "sk-1" not in str(wrong.value)


def test_all_mistakes_in_a_pool_file_are_named_at_once(write: Write) -> None:
    with pytest.raises(ConfigError) as wrong:
        WorkerPool.from_toml(write('[workers.a]\nbase_url = "x"\napi_key = "sk-1"\nmodle = "ollama:x"'))
    assert str(wrong.value).partition(" is wrong: ")[2].split("; workers.") == [
        'workers.a.model: missing; write model = "openai:gpt-6-sol"',
        "a.base_url: an argument of the model; write options = { base_url = ... }",
        'a.api_key: keys are not written in files; name the environment variable: api_key_env = "MY_API_KEY"',
        "a.modle: there is no such setting; did you mean 'model'?",
    ]


def test_a_pool_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml.*No such file"):
        WorkerPool.from_toml(tmp_path / "nowhere.toml")


def test_a_pool_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    path.write_bytes(b"\xff\xfe")

    with pytest.raises(ConfigError, match="it is not text"):
        WorkerPool.from_toml(path)


async def test_one_model_that_can_not_be_closed_does_not_keep_the_others_open() -> None:
    closed: list[str] = []

    class Closing(ScriptedModel):
        async def aclose(self) -> None:
            closed.append(self.name)
            if self.name == "scripted:a":
                raise OSError("busy")

    with pytest.raises(OSError, match="busy"):
        await WorkerPool({name: Closing("", name=name) for name in "abc"}).aclose()
    assert closed == ["scripted:a", "scripted:b", "scripted:c"]


def test_a_worker_goes_by_the_name_that_it_is_given_in_the_pool() -> None:
    pool = WorkerPool({"fast": Worker.of("x", ScriptedModel(""))})

    assert (list(pool), pool["fast"].name, pool["fast"].card.name) == (["fast"], "fast", "fast")


@pytest.mark.parametrize(
    ("given", "said"), [(["openai:gpt"], "has no name"), ({"a": object()}, "'provider:model'")], ids=["list", "mapping"]
)
def test_what_is_no_worker_is_refused_with_what_to_write(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        WorkerPool(given)


# ------------------------------------------------------------------------------- what the planner reads


def described_models(pool: Any) -> list[str]:
    """The lines about the workers in the planner's prompt, by the default planner."""
    planner = ScriptedModel('model_id = [0]\nsubtasks = ["Answer."]\naccess_list = [[]]', name="planner")
    Conductor(planner, pool).run_sync("What is it?")
    _, _, models = planner.requests[0].messages[0].text.partition("The models ($ per million tokens in/out):\n")
    return models.splitlines()


class Agent(ScriptedModel):
    """A model that says itself what it is for."""

    description = "Solves equations."


def test_the_planner_reads_names_and_descriptions_without_more_ado() -> None:
    pool = WorkerPool({"research_expert": ScriptedModel("R"), "math_expert": Agent("M")})

    assert described_models(pool) == [
        "0 research_expert: free",
        "1 math_expert: Solves equations; free",
    ]


def test_a_description_can_be_given_wherever_a_worker_is(write: Write) -> None:
    expected = "0 a: Looks up prices; free"

    assert described_models({"a": {"model": ScriptedModel("A"), "description": "Looks up prices."}}) == [expected]
    assert described_models({"a": {"model": Agent("A"), "description": "Looks up prices."}}) == [expected]
    assert described_models([Worker.of("a", ScriptedModel("A"), description="Looks up prices.")]) == [expected]
    assert described_models({"a": Worker.of("b", Agent("A"), card=Card(name="b", description="Looks up prices."))}) == [
        expected
    ]
    entry = {"model": "ollama:x", "description": "Looks up prices."}
    in_file = write('[workers.a]\nmodel = "ollama:x"\ndescription = "Looks up prices."')
    for pool in (WorkerPool({"a": entry}), WorkerPool.from_toml(in_file)):
        assert pool["a"].card.description == "Looks up prices."


def test_an_entry_s_other_keys_are_those_of_a_pool_file() -> None:
    entry = {
        "model": ScriptedModel("A"),
        "strengths": "sums",
        "accuracy": {"math": 0.9},
        "tags": ["internal"],
        "timeout": 9,
        "sampling": {"temperature": 0.5},
        "concurrency": 2,
    }
    worker = WorkerPool({"a": entry})["a"]

    assert worker.card == Card(
        name="a", strengths="sums", accuracy={"math": 0.9}, tags=frozenset({"internal"}), price=FREE
    )
    assert (worker.timeout, worker.hedge_after) == (9, None)
    assert worker.sampling == Sampling(temperature=0.5, max_tokens=DEFAULT_OUTPUT_TOKENS)
    assert worker.slots is not None


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"description": "Looks."}, r"worker 'a' is invalid: model: missing; write model = "),
        (
            {"model": "ollama:x", "describes": "x"},
            r"worker 'a' is invalid: describes: there is no such setting; did you mean 'description'",
        ),
        (
            {"model": ScriptedModel("A"), "describes": "x"},
            r"worker 'a' is invalid: describes: there is no such setting; did you mean 'description'",
        ),
        ({"model": ScriptedModel("A"), "timeout": "soon"}, r"worker 'a' is invalid: timeout: write a number"),
        ({"model": 3}, r"worker 'a': 3 is not a model"),
    ],
)
def test_what_is_wrong_in_an_entry_is_named(entry: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        WorkerPool({"a": entry})


def test_workers_that_the_planner_can_not_tell_apart_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    alike: dict[str, AnyWorker] = {"agent_8": ScriptedModel("A"), "agent_9": ScriptedModel("B")}
    known: dict[str, AnyWorker] = {
        "agent_8": ScriptedModel("A"),
        "agent_9": {"model": ScriptedModel("B"), "description": "Looks up prices."},
    }

    for _ in range(2):
        Conductor(ScriptedModel("never"), alike)
    Conductor(ScriptedModel("never"), known)
    Conductor(
        Planner(model=ScriptedModel("never"), roster="ordinals"), {f"agent_1{i}": ScriptedModel("") for i in "01"}
    )

    (record,) = [record for record in caplog.records if record.name == "rl_conductor"]
    assert record.levelname == "WARNING"
    assert "workers 'agent_8', 'agent_9' have equal descriptions" in record.getMessage()


def test_a_worker_with_every_option_is_restored_from_its_setup() -> None:
    model = ScriptedModel("", capabilities=ALL.model_copy(update={"context": 9}))
    worker = Worker.of("a", model, sampling=Sampling(seed=7), instructions="Be exact.")
    setup = worker.setup
    default = Worker.of("b", ScriptedModel("", name="other", capabilities=Capabilities())).setup
    recorded_model = ScriptedModel("", capabilities=setup.capabilities)

    assert [name for name, value in default if value == getattr(setup, name)] == []
    assert Worker.from_setup(setup, recorded_model).setup == setup
