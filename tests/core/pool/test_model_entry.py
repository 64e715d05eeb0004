"""Models in pool files that are not a vendor's: classes and functions of one's own, and other pool files."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_conductor import Conductor, ConfigError, Limits, RunError, WorkerPool, model
from rl_conductor.models import Model

MODELS = '''
from rl_conductor import Completion, Message, Model, Request

class Echo(Model):
    name = "echo"

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix

    async def complete(self, request: Request) -> Completion:
        return Completion(message=Message.assistant(self.prefix + request.messages[-1].text), model=self.name)

class Planner(Model):
    name = "planner"

    async def complete(self, request: Request) -> Completion:
        plan = 'model_id = [0]\\nsubtasks = ["Say it."]\\naccess_list = [[]]'
        return Completion(message=Message.assistant(plan), model=self.name)

class Incomplete:
    name = "incomplete"

def shout(subtask: str) -> str:
    """Shouts."""
    return subtask.upper()
'''


@pytest.fixture(autouse=True)
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pool_file_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_a_class_of_ones_own_is_created_with_its_options(tmp_path: Path) -> None:
    text = '[workers.e]\nmodel = "pool_file_models:Echo"\noptions = { prefix = "> " }\n'
    text += '[workers.s]\nmodel = "pool_file_models:shout"\n[planner]\nmodel = "pool_file_models:Planner"\n'
    conductor = Conductor.from_env(pool_file=write(tmp_path / "pool.toml", text))

    trace = conductor.run_sync("Hello?")

    assert trace.text.startswith("> ")
    assert conductor.pool["s"].card.description == "Shouts."


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pool_file_models:Nothing", "module 'pool_file_models' has no 'Nothing'"),
        ("no_such_module_here:Echo", "write 'provider:model' with a provider of a2a, anthropic, .* or 'module:Class'"),
        ("pool_file_models:Incomplete", "is not a subclass of rl_conductor.Model, nor a function"),
        ("opnai:gpt-5", "write 'provider:model'"),
    ],
)
def test_a_name_that_is_neither_model_nor_class_says_what_to_write(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorkerPool.from_toml(write(tmp_path / "pool.toml", f'[workers.e]\nmodel = "{name}"\n'))


def test_wrong_options_of_a_class_are_a_configuration_error(tmp_path: Path) -> None:
    text = '[workers.e]\nmodel = "pool_file_models:Echo"\noptions = { color = "red" }\n'
    with pytest.raises(ConfigError, match="invalid options"):
        WorkerPool.from_toml(write(tmp_path / "pool.toml", text))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("headers = { X = 5 }", "options.headers.X: write a string"),
        ("base_url = 5", "options.base_url: write a string"),
        ("context = 'x'", "options.context: write an integer"),
    ],
)
def test_an_option_of_a_wrong_type_is_named_with_its_worker(tmp_path: Path, options: str, says: str) -> None:
    text = f"[workers.ann]\nmodel = 'ollama:x'\noptions = {{ {options} }}\n"
    with pytest.raises(ConfigError) as caught:
        WorkerPool.from_toml(write(tmp_path / "pool.toml", text))
    assert str(caught.value) == f"worker 'ann': ollama:x: {says}"


INNER = '[workers.echo]\nmodel = "pool_file_models:Echo"\n[planner]\nmodel = "pool_file_models:Planner"\n'


def test_a_pool_file_names_the_conductor_of_another_one(tmp_path: Path) -> None:
    write(tmp_path / "teams" / "inner.toml", INNER)
    outer = INNER.replace("echo]", "team]").replace("pool_file_models:Echo", "conductor:teams/inner.toml")
    conductor = Conductor.from_env(pool_file=write(tmp_path / "outer.toml", outer))

    trace = conductor.run_sync("Hello?")

    assert conductor.pool["team"].model.name == "conductor:inner"
    (call,) = trace.rounds[0].results[0].calls
    assert call.nested is not None
    assert [run.planner for run in call.nested.runs] == ["planner"]
    assert call.nested.runs[0].rounds[0].results[0].step.worker == "echo"
    assert trace.usage.calls == 3, "two plans and one reply, each counted once"
    with pytest.raises(RunError, match="depth"):
        conductor.run_sync("Hello?", limits=Limits(depth=1))


def test_conductor_files_are_models_by_name(tmp_path: Path) -> None:
    inner = model(f"conductor:{write(tmp_path / 'inner.toml', INNER)}")
    assert isinstance(inner, Model)
    assert inner.name == "conductor:inner"


def test_files_that_name_one_another_in_a_circle_are_refused(tmp_path: Path) -> None:
    first = write(tmp_path / "a.toml", INNER.replace("pool_file_models:Echo", "conductor:b.toml"))
    write(tmp_path / "b.toml", INNER.replace("pool_file_models:Echo", "conductor:a.toml"))
    with pytest.raises(ConfigError, match=r"in a circle: \S+b\.toml -> \S+a\.toml -> \S+b\.toml; remove"):
        Conductor.from_env(pool_file=first)
