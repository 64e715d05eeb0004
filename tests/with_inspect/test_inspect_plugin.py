"""Evals that inspect-ai itself runs, over conductors of scripted workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import Task, eval  # noqa: A004
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.model import ChatMessageUser, ContentAudio, ContentImage, ContentText, GenerateConfig
from inspect_ai.scorer import match
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import Tool, tool

from rl_conductor import ScriptedModel
from rl_conductor.models import PROVIDERS
from rl_conductor.types import Completion, Message, Price, Request, ToolCall, Usage
from skilled_folder import Learned

PLAN = 'model_id = [0]\nsubtasks = ["Say it."]\naccess_list = [[]]'
MODELS: dict[str, ScriptedModel] = {}
"""The models of the pool file of a test, by name."""


def scripted(name: str, *, price: Price | None = None) -> ScriptedModel:
    """Returns the model `own:NAME`."""
    del price
    return MODELS[name]


@pytest.fixture
def pool_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pool of one worker, and a planner that lets it answer."""
    monkeypatch.setitem(PROVIDERS, "own", "with_inspect.test_inspect_plugin:scripted")
    monkeypatch.setattr("with_inspect.test_inspect_plugin.MODELS", MODELS, raising=False)
    path = tmp_path / "own.toml"
    path.write_text('[planner]\nmodel = "own:planner"\n[workers.clerk]\nmodel = "own:clerk"\n')
    MODELS["planner"] = ScriptedModel(PLAN, name="planner", price=Price(input=1, output=1))
    return path


def run(task: Task | str, model: str | Path, tmp_path: Path, **options: Any) -> EvalLog:
    """Runs an eval as `inspect eval` does."""
    (log,) = eval(
        task, model=f"conductor/{model}", log_dir=str(tmp_path / "logs"), display="none", fail_on_error=False, **options
    )
    return log


def test_a_learned_conductor_is_graded_by_the_scorers_of_the_questions(learned: Learned, tmp_path: Path) -> None:
    arguments = {"file": str(learned.questions), "heldout_of": str(learned.folder)}
    log = run("rl_conductor_training/questions", learned.folder, tmp_path, task_args=arguments)
    assert log.status == "success", log.error
    assert log.results is not None
    assert log.samples is not None
    held_out = json.loads((learned.folder / "heldout.json").read_text())["samples"]
    assert {sample.id for sample in log.samples} == set(held_out)
    metrics = log.results.scores[0].metrics
    assert metrics["accuracy"].value == 1
    assert metrics["stderr"].value == 0
    assert log.results.scores[0].scorer == "conductor_questions"
    chain = next(sample for sample in log.samples if str(sample.id).startswith("chain"))
    assert chain.metadata == {"group": chain.id}
    steps = chain.output.metadata["rl_conductor"]["steps"] if chain.output.metadata else []
    assert [step["worker"] for step in steps] == ["atlas", "speller"]
    assert chain.output.usage is not None
    assert chain.output.usage.total_tokens > 0
    assert chain.output.usage.total_cost == pytest.approx(chain.output.usage.total_tokens / 1e6)


def test_questions_of_few_templates_are_groups_of_their_own_as_in_learning(pool_file: Path, tmp_path: Path) -> None:
    MODELS["clerk"] = ScriptedModel("4", name="clerk")
    lines = [json.dumps({"id": f"q{n}", "question": f"What is 2 + {n}?", "answer": f"{2 + n}"}) for n in range(2)]
    lines.append(json.dumps({"id": "q2", "question": "How many legs does a cat have?", "answer": "4"}))
    (tmp_path / "sums.jsonl").write_text("\n".join(lines))
    log = run("rl_conductor_training/questions", pool_file, tmp_path, task_args={"file": str(tmp_path / "sums.jsonl")})
    assert [sample.metadata["group"] for sample in log.samples or []] == ["q0", "q1", "q2"]


def test_wrong_answers_are_wrong_and_explained(learned: Learned, pool_file: Path, tmp_path: Path) -> None:
    MODELS["clerk"] = ScriptedModel("north", name="clerk")
    arguments = {"file": str(learned.questions), "limit": 4}
    log = run("rl_conductor_training/questions", pool_file, tmp_path, task_args=arguments)
    assert log.samples is not None
    scores = {sample.id: (sample.scores or {})["conductor_questions"] for sample in log.samples}
    assert len(scores) == 4
    assert {name for name, score in scores.items() if score.value == 1} == {"direction-0"}
    assert "'north' was found" in str(scores["chain-0"].explanation)


def test_any_task_of_inspect_is_graded_as_inspect_does(pool_file: Path, tmp_path: Path) -> None:
    MODELS["clerk"] = ScriptedModel(lambda request: "Oslo" if "Norway" in request.messages[-1].text else "?")
    samples = [Sample(input="The capital of Norway?", target="Oslo"), Sample(input="Of Peru?", target="Lima")]
    log = run(Task(dataset=samples, scorer=match()), pool_file, tmp_path)
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 0.5


def test_messages_and_options_reach_the_worker(pool_file: Path, tmp_path: Path) -> None:
    clerk = MODELS["clerk"] = ScriptedModel("A cat.", name="clerk")
    image = ContentImage(image="data:image/png;base64,iVBORw0KGgo=")
    sample = Sample(input=[ChatMessageUser(content=[ContentText(text="What is it?"), image])], target="A cat.")
    config = GenerateConfig(system_message="Be brief.", temperature=0.5, max_tokens=20, stop_seqs=["."], seed=3)
    log = run(Task(dataset=[sample], scorer=match()), pool_file, tmp_path, **config.model_dump(exclude_none=True))
    assert log.status == "success", log.error
    request = clerk.requests[-1]
    assert "Be brief." in request.messages[0].text
    assert [part.type for part in request.messages[-1].content] == ["text", "image"]
    sampling = request.sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.stop, sampling.seed) == (0.5, 20, (".",), 3)


@tool  # type: ignore[untyped-decorator, unused-ignore]
def lookup() -> Tool:
    async def execute(city: str) -> str:
        """Look up the population.

        Args:
            city: The name of the city.
        """
        return f"{city} has 700,000 people."

    return execute


def test_a_turn_with_tool_results_continues_with_the_same_worker(pool_file: Path, tmp_path: Path) -> None:
    def reply(request: Request) -> Completion | str:
        if request.messages[-1].role == "tool":
            return f"Answer: {request.messages[-1].text}"
        call = ToolCall(id="call-1", name="lookup", arguments='{"city": "Oslo"}')
        message = Message.assistant(tool_calls=[call])
        return Completion(message=message, usage=Usage(calls=1), finish_reason="tool_calls", model="clerk")

    MODELS["clerk"] = ScriptedModel(reply, name="clerk")
    solver = [use_tools(lookup()), generate()]
    task = Task(dataset=[Sample(input="How many live in Oslo?", target="people.")], solver=solver, scorer=match())
    log = run(task, pool_file, tmp_path)
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1
    assert len(MODELS["planner"].requests) == 1
    assert len(MODELS["clerk"].requests) == 2
    assert MODELS["clerk"].requests[0].tools[0].parameters["required"] == ["city"]


def test_arguments_that_are_no_json_are_shown_to_the_model(pool_file: Path, tmp_path: Path) -> None:
    def reply(request: Request) -> Completion | str:
        if request.messages[-1].role == "tool":
            return request.messages[-1].text
        call = ToolCall(id="call-1", name="lookup", arguments="Oslo")
        return Completion(
            message=Message.assistant(tool_calls=[call]), usage=Usage(calls=1), finish_reason="tool_calls", model="c"
        )

    MODELS["clerk"] = ScriptedModel(reply, name="clerk")
    task = Task(dataset=[Sample(input="How many?", target="x")], solver=[use_tools(lookup()), generate()])
    log = run(task, pool_file, tmp_path)
    assert log.samples is not None
    assert "the arguments of lookup are not a JSON object: Oslo" in log.samples[0].output.completion


@pytest.mark.parametrize(
    ("options", "content", "message"),
    [
        ({"num_choices": 3}, "Hi?", "a conductor has no option 'num_choices'"),
        ({"logprobs": True}, "Hi?", "a conductor has no option 'logprobs'"),
        ({}, [ContentAudio(audio="data:audio/wav;base64,UklGRg==", format="wav")], "content of type 'audio'"),
    ],
)
def test_what_no_worker_can_take_is_an_error_of_the_sample(
    pool_file: Path, tmp_path: Path, options: dict[str, Any], content: Any, message: str
) -> None:
    clerk = MODELS["clerk"] = ScriptedModel("Hello.", name="clerk")
    log = run(Task(dataset=[Sample(input=[ChatMessageUser(content=content)])]), pool_file, tmp_path, **options)
    assert log.samples is not None
    assert log.samples[0].error is not None
    assert message in log.samples[0].error.message
    assert not clerk.requests


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"missing\.toml"):
        run(Task(dataset=[Sample(input="Hi?")]), tmp_path / "missing.toml", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-T", "file=questions.jsonl", "--model", "conductor/nowhere.toml"], "nowhere.toml"),
        (["-T", "file=nowhere.jsonl", "--model", "mockllm/model"], "no task 'nowhere.jsonl': there is no such file"),
        (["-T", "file=questions.jsonl", "--model", "conductor/pool.toml"], "[planner] with model"),
    ],
)
def test_the_command_prints_a_mistake_without_a_traceback(tmp_path: Path, arguments: list[str], problem: str) -> None:
    (tmp_path / "questions.jsonl").write_text('{"question": "What is 1 + 1?", "answer": "2"}\n', encoding="utf-8")
    (tmp_path / "pool.toml").write_text('[workers.dedenter]\nmodel = "textwrap:dedent"\n', encoding="utf-8")
    command = [str(Path(sys.executable).with_name("inspect")), "eval", "rl_conductor_training/questions", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert problem in " ".join(done.stdout.split())
    assert "Traceback" not in done.stdout + done.stderr
