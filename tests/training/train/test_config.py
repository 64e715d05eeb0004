from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rl_conductor import ConfigError
from rl_conductor_training.tasks.mixture import parse_parts
from rl_conductor_training.train.config import RecursionSettings, TrainConfig, read_config
from rl_conductor_training.train.reference import meanings_of, reference, table_of

RECIPES = Path(__file__).parents[3] / "recipes"
LEAST = 'model = "m"\n[task]\nname = "composite:train"\n[pool.small]\n'


def write_config(folder: Path, text: str) -> Path:
    file = folder / "train.toml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize("name", ["composite.toml", "cpu.toml", "small.toml", "open-7b-lora.toml", "paper-7b.toml"])
def test_recipes_are_valid(name: str) -> None:
    read_config(RECIPES / name)


def test_the_recipe_from_chance_reads_the_plans_that_its_script_selects(tmp_path: Path) -> None:
    script = RECIPES.parent / "benchmarks" / "composite_chance.py"
    subprocess.run([sys.executable, script, tmp_path / "chance-plans.jsonl", "--size", "24"], check=True)
    config = read_config(Path(shutil.copy(RECIPES / "composite-chance.toml", tmp_path)))
    assert config.warm_start is not None
    assert config.warm_start.plans is not None
    picked = [json.loads(line) for line in config.warm_start.plans.read_text(encoding="utf-8").splitlines()]
    assert len({line["question"] for line in picked}) == len(picked) == 24
    assert {len(line["workflow"]["steps"]) for line in picked} == {1, 2, 3, 4}
    assert not any("score" in line for line in picked)


def test_the_page_of_keys_is_what_the_configuration_says_now() -> None:
    page = (RECIPES.parent / "docs" / "training-keys.md").read_text(encoding="utf-8")
    command = "python -m rl_conductor_training.train.reference > docs/training-keys.md"
    assert page == reference(), f"run: {command}"


def test_every_key_of_a_training_file_has_a_meaning() -> None:
    tables = {name: table for name in TrainConfig.model_fields if (table := table_of(TrainConfig, name))}
    keys = {name: meaning for name, meaning in meanings_of(TrainConfig).items() if name not in tables}
    keys |= {f"{name}.{key}": meaning for name, table in tables.items() for key, meaning in meanings_of(table).items()}
    assert [key for key, meaning in keys.items() if not meaning] == []


def test_the_papers_recipe_has_the_papers_numbers() -> None:
    config = read_config(RECIPES / "paper-7b.toml")
    grpo = config.grpo
    assert (grpo.steps, grpo.questions, grpo.rollouts) == (200, 4, 64)
    assert (grpo.learning_rate, grpo.warmup, grpo.schedule) == (1e-6, 0.03, "cosine")
    assert (grpo.temperature, grpo.clip, grpo.kl, grpo.loss, grpo.scale) == (1.0, 0.2, 0.0, "bnpo", "group")
    assert (config.plan.max_steps, config.plan.max_tokens, config.plan.access) == (5, 1024, "binary")
    assert config.lora is None
    assert config.warm_start is None
    assert config.reward.kind == "paper"
    assert not config.pool.remember  # a cached reply would hide the workers' temperature


def test_the_papers_recipe_has_the_papers_questions_and_its_seven_workers() -> None:
    config = read_config(RECIPES / "paper-7b.toml")
    parts = parse_parts(config.task.options)
    assert [part.name for part in parts.values()] == ["math-500", "mmlu", "rlpr", "livecodebench"]
    assert sum(part.limit or 0 for part in parts.values()) == 960
    workers = config.pool.workers
    assert len(workers) == 7
    assert {worker.sampling.max_tokens for worker in workers.values()} == {4096}
    thinking = [worker.options["extra_body"]["reasoning"] for name, worker in workers.items() if "qwen-" in name]
    assert thinking == [{"enabled": False}, {"enabled": True}]


def test_steps_of_the_small_recipe_contain_complete_contrast_sets() -> None:
    config = read_config(RECIPES / "small.toml")
    sets = Counter(sample.contrast for sample in config.task.build().samples)
    assert {config.grpo.questions % size for size in sets.values()} == {0}
    assert "" not in sets


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "plans.jsonl").touch()
    (tmp_path / "m").mkdir()
    own = LEAST.replace("composite:train", "jsonl:tasks.jsonl")
    config = read_config(write_config(tmp_path, f'{own}[warm_start]\nplans = "plans.jsonl"\n'))
    assert config.warm_start is not None
    assert config.warm_start.plans == tmp_path / "plans.jsonl"
    assert config.task.name == f"jsonl:{tmp_path / 'tasks.jsonl'}"
    assert config.model == str(tmp_path / "m")


def test_paths_in_a_mixture_are_relative_to_the_file_too(tmp_path: Path) -> None:
    mixed = '[task]\nname = "mixture"\n[task.options.mine]\nname = "jsonl:mine.jsonl"\nlimit = 3\n[task.options.sums]\n'
    mixed += 'name = "gsm8k"\noptions = { path = "sums.jsonl" }\n'
    options = read_config(
        write_config(tmp_path, LEAST.replace('[task]\nname = "composite:train"\n', mixed))
    ).task.options
    assert options["mine"] == {"name": f"jsonl:{tmp_path / 'mine.jsonl'}", "limit": 3}
    assert options["sums"]["options"] == {"path": str(tmp_path / "sums.jsonl")}


def test_a_task_without_a_file_keeps_its_name(tmp_path: Path) -> None:
    assert read_config(write_config(tmp_path, LEAST)).task.name == "composite:train"


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-7B-Instruct", "embedded:smollm2-135m"])
def test_a_model_without_a_folder_keeps_its_name(tmp_path: Path, name: str) -> None:
    assert read_config(write_config(tmp_path, LEAST.replace('"m"', f'"{name}"'))).model == name


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{LEAST}[grpo]\nlearning = 1\n", "grpo.learning: there is no such setting"),
        (
            f"{LEAST}[grpo]\nmicro_batch = 7\n",
            "micro_batch = 7 must divide the 256 plans per step; write 4, for example",
        ),
        (
            f"{LEAST}[recursion]\n[grpo]\nmicro_batch = 256\n",
            "grpo.micro_batch = 256 must divide the 384 plans per step of both rounds",
        ),
        (f"{LEAST}[recursion]\nshare = 0.4\n", "recursion.share = 0.4 of grpo.questions = 4 is 1.6 questions per step"),
        (
            f"{LEAST}[recursion]\nshare = 0.001\n",
            "recursion.share = 0.001 of grpo.questions = 4 is 0.004 questions",
        ),
        (f"{LEAST}[recursion]\ndiscount = 1.5\n", "recursion.discount: write a number less than or equal to 1"),
        (LEAST.replace("[pool.small]\n", "[pool]\n"), "one of file, workers and small, not none"),
        (f'{LEAST}[pool]\nfile = "pool.toml"\n', "not file and small"),
        (f'{LEAST}[warm_start]\nplans = "missing.jsonl"\n', "names 'missing.jsonl', but there is no file"),
        (LEAST.replace("[pool", "options = { limit = 3 }\n[pool"), "task: limit is not an option of the task"),
        (LEAST.replace('"m"', '"./m"'), "names the model './m', but there is no folder"),
        (
            LEAST.replace('"m"', '"openai:gpt-5"'),
            "the model 'openai:gpt-5' can't be trained: write a folder, a name on",
        ),
        ("model = ", "is not TOML"),
    ],
)
def test_an_invalid_setting_is_reported_by_its_key(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_config(write_config(tmp_path, text))
    assert problem in str(error.value)


def test_trained_weights_are_stored_in_full_precision(tmp_path: Path) -> None:
    halved = f'dtype = "bfloat16"\n{LEAST}'
    assert read_config(write_config(tmp_path, halved)).weight_dtype == "float32"
    assert (
        read_config(write_config(tmp_path, f"{halved}[lora]\n")).weight_dtype == "bfloat16"
    )  # the addition is of float32


def test_a_run_of_an_older_release_resumes_without_recursion(tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path, LEAST))
    assert config.recursion is None
    assert TrainConfig.model_validate(config.model_dump(exclude={"recursion"})) == config


def test_the_papers_recursion() -> None:
    recursion = RecursionSettings()
    assert (recursion.share, recursion.discount) == (0.5, 0.25)


def test_a_configuration_round_trips_through_json(tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path, f"{LEAST}[lora]\nrank = 4\n"))
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config
