"""`rl-conductor learn` and what its folder does in other commands."""

from __future__ import annotations

import json
import logging
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from rl_conductor import Conductor, ModelError
from rl_conductor.cli.main import app
from rl_conductor.models import PROVIDERS
from rl_conductor.types import Completion, Message, Request
from rl_conductor_training.tasks import load_task
from training.learn import skills


class Finished(NamedTuple):
    """A folder in which a command has finished."""

    folder: Path
    output: str


@pytest.fixture(scope="module")
def finished_command(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A command that has finished in a folder of its own, which tests copy."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PROVIDERS, "skill", skills.PROVIDER)
        patch.setenv("COLUMNS", "200")
        write_inputs(folder)
        return Finished(folder, run(folder, "--usd", "5"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with questions and a pool file; models named `skill:NAME` exist."""
    monkeypatch.setitem(PROVIDERS, "skill", skills.PROVIDER)
    monkeypatch.setenv("COLUMNS", "200")
    write_inputs(tmp_path)
    return tmp_path


@pytest.fixture
def finished(finished_command: Finished, folder: Path) -> Finished:
    """The same folder after a command."""
    shutil.copytree(finished_command.folder, folder, dirs_exist_ok=True)
    return Finished(folder, finished_command.output.replace(str(finished_command.folder), str(folder)))


def write_inputs(folder: Path) -> None:
    (folder / "pool.toml").write_text(skills.POOL)
    lines = [
        sample.model_dump(include={"id", "question", "answer", "domain"}) | {"group": sample.id}
        for sample in skills.build_task().samples
    ]
    (folder / "questions.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def run(folder: Path, *arguments: str) -> str:
    questions, pool, out = (str(folder / name) for name in ("questions.jsonl", "pool.toml", "learned"))
    result = CliRunner().invoke(app, ["learn", questions, "--pool", pool, "--out", out, *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_prints_the_proof_and_its_folder_answers(finished: Finished) -> None:
    folder, output = finished
    assert "expected: about" in output
    assert "Held-out questions (n = 6, seed 0)" in output
    for system in ("best single", "best fixed", "linear *", "prompted planner", "examples", "oracle"):
        assert f"\n{system} " in output
    assert re.search(r"\nsingle worker +right ± se \(95 %\) +\$ per question +time *\natlas +0\.\d\d ", output)
    assert f"Recommended, and saved in {folder / 'learned'}: linear" in output

    question = "Spell backwards the population of the city of Rome."
    answer = CliRunner().invoke(app, ["ask", "--conductor", str(folder / "learned"), question])
    assert (answer.exit_code, answer.stdout) == (0, "1pop\n")
    assert "learned workflow, no planning" in answer.stderr
    same = CliRunner().invoke(app, ["ask", "--pool", str(folder / "learned"), question])
    assert same.stdout == "1pop\n"
    both = CliRunner().invoke(app, ["ask", "--conductor", str(folder), "--pool", str(folder / "pool.toml"), question])
    assert (both.exit_code, "pass one of them" in both.output) == (2, True)


def test_workers_with_failed_calls_are_printed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skills, "speller", fail)
    table = r"Calls that failed\nworker +most frequent reason +failed calls *\nspeller +down +4 of 4 *\n"
    assert re.search(table, run(folder))


def test_workers_with_replies_that_were_cut_off_are_printed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skills, "speller", cut_off)
    title = "Replies that were cut off, which usually count as wrong"
    assert re.search(rf"{title}\nworker .*\nspeller +max_tokens was reached: raise it .* \(100%\) *\n", run(folder))


def cut_off(_request: Request) -> Completion:
    return Completion(message=Message.assistant("?"), finish_reason="length", model="speller")


def fail(_request: Request) -> str:
    raise ModelError("down", model="speller")


def test_a_judge_scores_the_questions_that_need_one(folder: Path) -> None:
    questions = folder / "questions.jsonl"
    pool, out = ["--pool", str(folder / "pool.toml")], folder / "learned"
    lines = [json.loads(line) | {"scoring": "judge"} for line in questions.read_text().splitlines()]

    refused = CliRunner().invoke(app, ["learn", str(questions), *pool, "--out", str(out), "--judge", "skill:judge"])
    assert (refused.exit_code, "and there is none; leave it out" in refused.output) == (2, True)
    questions.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    refused = CliRunner().invoke(app, ["learn", str(questions), *pool, "--out", str(out)])
    assert (refused.exit_code, "--judge provider:model" in refused.output) == (2, True)

    output = run(folder, "--judge", "skill:judge", "--usd", "5")
    assert "Held-out questions (n = 6, seed 0)" in output
    rows = [json.loads(line) for line in (out / "experience.jsonl").read_text().splitlines()]
    assert {row["score"] for row in rows} == {0, 1}
    judged = [row["scoring"]["calls"] for row in rows if "scoring" in row]
    assert judged == [2] * len({row["score_key"] for row in rows})


def test_a_file_gives_the_judge_its_price(folder: Path) -> None:
    questions, judge = folder / "questions.jsonl", folder / "judge.toml"
    lines = [json.loads(line) | {"scoring": "judge"} for line in questions.read_text().splitlines()]
    questions.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    judge.write_text('model = "skill:judge"\nprice = { input = "100", output = "100" }\n')

    def dollars(name: str) -> float:
        found = re.search(r"\$([\d.]+)", run(folder, "--estimate", "--judge", name))
        assert found is not None
        return float(found[1])

    assert dollars(str(judge)) > dollars("skill:judge") * 10


def write_version(folder: Path, name: str, version: str) -> None:
    """Writes the model `skill:NAME` to a judge's file, with an option that its name does not show."""
    (folder / "judge.toml").write_text(f'model = "skill:{name}"\noptions = {{ version = "{version}" }}\n')


def test_another_judge_of_the_same_name_scores_again(folder: Path) -> None:
    questions = folder / "questions.jsonl"
    (folder / "pool.toml").write_text(skills.PAIR)
    lines = [json.loads(line) | {"scoring": "judge"} for line in questions.read_text().splitlines()]
    questions.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    keys = []
    for version in ("1", "1", "2"):
        write_version(folder, "judge", version)
        run(folder, "--judge", str(folder / "judge.toml"))
        rows = (folder / "learned" / "experience.jsonl").read_text().splitlines()
        keys.append({json.loads(row)["score_key"] for row in rows})
    assert keys[0] == keys[1]
    assert len(keys[2]) == 2 * len(keys[1])


@pytest.mark.parametrize("entry", ["[planner]", "[workers.first]"])
def test_another_planner_of_the_same_name_plans_again(folder: Path, entry: str) -> None:
    counts = []
    for version in ("1", "1", "2"):
        model = f'{entry}\nmodel = "skill:atlas"\noptions = {{ version = "{version}" }}\n'
        (folder / "pool.toml").write_text(model + skills.PAIR)
        run(folder)
        rows = map(json.loads, (folder / "learned" / "experience.jsonl").read_text().splitlines())
        counts.append(sum(row["system"] == "prompted planner" and "the planner" in row["outcomes"] for row in rows))
    assert counts == [6, 6, 12]


def test_ctrl_c_before_anything_is_stored_names_no_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "slow_tasks.py").write_text("def capitals():\n    raise KeyboardInterrupt\n", encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    command = ["learn", "slow_tasks:capitals", "--pool", str(folder / "pool.toml"), "--out", str(folder / "learned")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 130
    assert "interrupted after 0 runs; nothing was spent or stored" in result.stderr
    assert not (folder / "learned").exists()


def test_the_estimate_spends_nothing(folder: Path) -> None:
    output = run(folder, "--estimate")
    assert not (folder / "learned").exists()
    assert "expected: about" in output
    assert "no cap is set" in output
    assert "never more than $0.01, 2 minutes" in run(folder, "--estimate", "--usd", "0.01", "--minutes", "2")


def test_a_terminal_shows_a_stage_from_the_beginning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert re.search(r"^\W*(\x1b\[\S*)?reading the questions · 0 runs", run(folder, "--estimate"))


def test_the_estimate_for_a_finished_folder_changes_none_of_its_files(finished: Finished) -> None:
    def contents() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in (finished.folder / "learned").rglob("*") if path.is_file()}

    before = contents()
    assert "expected: about" in run(finished.folder, "--estimate", "--seed", "1")
    assert contents() == before


def test_the_estimate_includes_the_search_for_instructions(folder: Path) -> None:
    def calls(*arguments: str) -> int:
        found = re.search(r"about ([\d,]+) calls", run(folder, "--estimate", *arguments))
        assert found is not None
        return int(found[1].replace(",", ""))

    assert calls("--instructions") == calls("--reflection-model", "skill:atlas") == calls() + 450


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
@pytest.mark.parametrize("arguments", [["--weights"], ["--weights-model", "embedded:smollm2-135m"]])
def test_weights_without_torch_say_what_to_install(folder: Path, arguments: list[str]) -> None:
    options = ["--pool", str(folder / "pool.toml"), "--out", str(folder / "learned"), *arguments]
    result = CliRunner().invoke(app, ["learn", str(folder / "questions.jsonl"), *options])
    assert result.exit_code == 2
    assert "learning weights needs torch: pip install 'rl-conductor-training[train]'" in result.output


def test_a_changed_pool_file_is_reported(finished: Finished, caplog: pytest.LogCaptureFixture) -> None:
    folder = finished.folder
    (folder / "pool.toml").write_text(skills.POOL + 'description = "points"\n')
    with caplog.at_level(logging.WARNING, "rl_conductor"):
        Conductor.load(folder / "learned")
    assert "was learned for another pool (worker 'pointer' has changed)" in caplog.text


def test_questions_keep_their_group(folder: Path) -> None:
    task = load_task(f"jsonl:{folder / 'questions.jsonl'}")
    assert task.samples[0].details["group"] == task.samples[0].id
