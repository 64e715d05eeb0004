from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from rl_conductor import ConfigError
from rl_conductor.pool.model_entry import ModelEntry
from rl_conductor_training.bench.settings import TaskSettings, read_settings
from rl_conductor_training.bench.systems import AnySystem
from rl_conductor_training.bench.systems.base import SystemEntry
from rl_conductor_training.workers.reply_cache import cache_version

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("recipe", sorted((ROOT / "recipes").glob("bench-*.toml")), ids=lambda path: path.stem)
def test_the_recipe_is_a_valid_bench_file(recipe: Path) -> None:
    settings = read_settings(recipe)
    assert set(settings.against) <= settings.systems.keys()
    assert all(name.startswith("embedded:") for name in settings.models)


def test_the_docs_show_a_valid_bench_file(tmp_path: Path) -> None:
    block = re.search(r"```toml\n(.*?)```", (ROOT / "docs" / "benchmark.md").read_text(), re.DOTALL)
    assert block is not None
    (tmp_path / "bench.toml").write_text(block[1])
    (tmp_path / "pool.toml").write_text(
        '[workers.fast]\nmodel = "toy:adder"\n[workers.strong]\nmodel = "toy:speller"\n'
    )
    settings = read_settings(tmp_path / "bench.toml")
    small = ("embedded:qwen2.5-coder-0.5b", "embedded:qwen2.5-coder-1.5b", "embedded:qwen2.5-coder-0.5b")
    workers = ("toy:adder", "toy:speller")
    assert settings.models == ("openai:gpt-6-sol", "vllm-server:my-planner", *workers, *small, *workers)


@pytest.mark.parametrize("entry", get_args(get_args(AnySystem)[0]), ids=lambda entry: entry.__name__)
def test_the_docs_list_the_keys_and_defaults_of_each_kind(entry: type[SystemEntry]) -> None:
    (kind,) = get_args(entry.model_fields["kind"].annotation)
    (row,) = re.findall(rf"^\| `{kind}` \|.*\| (.*)\|$", (ROOT / "docs" / "benchmark.md").read_text(), re.MULTILINE)
    for name, field in entry.model_fields.items():
        if row.strip() != "the same" and name not in SystemEntry.model_fields and name != "kind":
            assert f"`{name}`" in row
            if isinstance(field.default, int | float):
                assert f"{field.default:,g}" in row


def test_paths_are_relative_to_the_bench_file(tmp_path: Path) -> None:
    file = tmp_path / "bench.toml"
    lines = (
        'cache = "replies.sqlite"',
        "[tasks]",
        'mine = { task = "jsonl:mine.jsonl" }',
        'math = { task = "math-500", options = { path = "math.jsonl" } }',
        'elsewhere = { task = "gsm8k:/data/gsm8k.jsonl" }',
        'made = { task = "composite:heldout" }',
        '[calibration]\ntask = "jsonl:learn.jsonl"',
    )
    file.write_text("\n".join(lines) + f"\n{POOL}{SYSTEMS}")
    settings = read_settings(file)
    assert settings.cache == tmp_path / "replies.sqlite"
    assert {name: entry.name for name, entry in settings.tasks.items()} == {
        "mine": f"jsonl:{tmp_path / 'mine.jsonl'}",
        "math": "math-500",
        "elsewhere": "gsm8k:/data/gsm8k.jsonl",
        "made": "composite:heldout",
    }
    assert settings.tasks["math"].options == {"path": str(tmp_path / "math.jsonl")}
    assert settings.calibration is not None
    assert settings.calibration.name == f"jsonl:{tmp_path / 'learn.jsonl'}"
    assert settings.tasks["mine"].identity == TaskSettings(name="jsonl:moved.jsonl").identity


TASKS = '[tasks.t]\ntask = "composite"\n'
SYSTEMS = '[systems.s]\nkind = "alone"\n'
POOL = "[pools.p.small]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = [", "is not TOML"),
        (
            TASKS + POOL + '[systems.s]\nkind = "magic"\n',
            r"systems.s: no kind is 'magic'; write one of 'alone'",
        ),
        (TASKS + POOL + "[systems.s]\nlayers = 2\n", r"systems.s: kind is missing$"),
        (TASKS + POOL + SYSTEMS + "seeds = 3\n", "systems.s.alone.seeds: there is no such setting"),
        (TASKS + SYSTEMS + "[pools.p]\n", "write one of file, workers and small, not none"),
        (TASKS + SYSTEMS + '[pools.p]\nfile = "x.toml"\n[pools.p.small]\n', "not file and small"),
        (TASKS + POOL + SYSTEMS + 'against = "best"\n', "against"),
        (
            TASKS + POOL + '[systems.o]\nkind = "oracle"\nchains = [["who"]]\n',
            "chains name roles that are not in roles: who",
        ),
        ('against = ["s"]\n' + TASKS + POOL + SYSTEMS, "against names s, but it may name no system"),
    ],
)
def test_an_invalid_setting_is_reported_by_its_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bench.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_settings(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"can't read '.*bench\.toml'"):
        read_settings(tmp_path / "bench.toml")


def test_another_adapter_under_the_same_name_is_another_model(tmp_path: Path) -> None:
    weights, adapter = tmp_path / "base.gguf", tmp_path / "lora.gguf"
    weights.write_bytes(b"base")
    adapter.write_bytes(b"one")
    trained = ModelEntry(model=f"llamacpp:{weights}", options={"lora": str(adapter), "threads": 2})
    before = cache_version(trained)
    assert before == cache_version(trained.model_copy(update={"options": {"lora": str(adapter), "threads": 4}}))
    assert before != cache_version(trained.model_copy(update={"options": {}}))
    adapter.write_bytes(b"another")
    assert cache_version(trained) != before
    assert cache_version(ModelEntry(model="embedded:smollm2-135m", options={"threads": 1})) == ""


def test_cached_replies_depend_on_the_embedded_adapter() -> None:
    assert "conductor-135m.gguf" in cache_version(ModelEntry(model="embedded:conductor-135m"))
    assert not cache_version(ModelEntry(model="embedded:smollm2-135m"))


def test_a_limit_inside_of_the_options_of_a_task_is_refused() -> None:
    with pytest.raises(ValidationError, match="limit is not an option of the task: write it beside options"):
        TaskSettings.model_validate({"task": "mmlu-pro", "options": {"limit": 3}})
