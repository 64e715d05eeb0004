"""A model and a task for inspect-ai, which finds this module by its entry point.

`inspect eval TASK --model conductor/FOLDER` runs a learned conductor, or that of a pool file, on any task of
inspect-ai. `inspect eval rl_conductor_training/questions -T file=questions.jsonl --model ...` runs any model on your
questions, with their own scorers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.markup import escape

from rl_conductor.errors import ConfigError

try:
    from inspect_ai import Task, task
    from inspect_ai._util.error import PrerequisiteError  # has no public name
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ChatMessage, GenerateConfig, ModelAPI, ModelCall, ModelOutput, modelapi
    from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer, stderr
    from inspect_ai.solver import TaskState, generate
    from inspect_ai.tool import ToolChoice, ToolInfo
except ImportError as missing:
    raise ConfigError("evals of inspect-ai need it: pip install 'rl-conductor-training[inspect]'") from missing

from rl_conductor.conductor import Conductor
from rl_conductor.config.discovery import discover
from rl_conductor.trace.trace import Trace
from rl_conductor_training.evals.inspect_messages import core_request, inspect_output
from rl_conductor_training.evals.record_check import held_out_questions
from rl_conductor_training.learn.data import load_questions, name_groups
from rl_conductor_training.tasks import Task as ConductorTask

DISCOVERED = "auto"
"""The model name `conductor/auto`: the conductor of the models that are found on this machine."""
GROUP = "group"
"""The key of a sample's metadata by which the standard error is clustered."""


class MistakeError(ConfigError, PrerequisiteError):  # type: ignore[misc, unused-ignore]
    """A `ConfigError` that `inspect` prints without a traceback."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = escape(message)


@contextmanager
def _mistakes_without_traceback() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise MistakeError(str(error)) from error


class ConductorAPI(ModelAPI):  # type: ignore[misc, unused-ignore]
    """A conductor as a model of inspect-ai."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008
        profile: str | None = None,
    ) -> None:
        """Creates the conductor; `-M profile=mini` chooses a profile.

        Raises:
            ConfigError: there is no such folder or pool file, or it is invalid.
        """
        super().__init__(model_name, base_url, api_key, [], config)
        pool_file = None if model_name == DISCOVERED else model_name
        with _mistakes_without_traceback():
            self.conductor = Conductor.from_discovered(discover(pool_file=pool_file), profile=profile)

    async def generate(
        self,
        input: list[ChatMessage],  # noqa: A002
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> tuple[ModelOutput, ModelCall]:
        """Runs the conductor on a conversation; the log shows its workflow as the metadata of the output."""
        request = core_request(input, tools, tool_choice, config)
        trace = await self.conductor.run(request)
        assert trace.completion is not None  # `run` raises where there is no answer
        metadata = {"rl_conductor": {"run": trace.id, "steps": _describe_steps(trace)}}
        output = inspect_output(trace.completion, trace.usage, metadata)
        return output, ModelCall.create(request.model_dump(mode="json"), trace.completion.model_dump(mode="json"))

    async def aclose(self) -> None:
        """Closes the connections of the workers."""
        await self.conductor.aclose()

    def connection_key(self) -> str:
        """Returns the name under which inspect-ai limits concurrent requests."""
        return f"conductor/{self.model_name}"


def _describe_steps(trace: Trace) -> list[dict[str, Any]]:
    return [
        {
            "worker": result.step.worker,
            "subtask": result.step.subtask,
            "access": sorted(result.step.access),
            "status": result.status,
            "reply": result.text,
        }
        for result in trace.results
    ]


@modelapi(name="conductor")  # type: ignore[untyped-decorator, unused-ignore]
def conductor() -> type[ModelAPI]:
    """The provider of `--model conductor/FOLDER`, `conductor/POOL.toml` and `conductor/auto`."""
    return ConductorAPI


@task  # type: ignore[untyped-decorator, unused-ignore]
def questions(file: str, judge: str | None = None, heldout_of: str | None = None, limit: int | None = None) -> Task:
    """Your own questions, with the scoring method of each.

    Args:
        file: one JSON object per line, as for `rl-conductor learn`, or the name of a task such as `composite:heldout`.
        judge: the model that scores questions with scoring `judge`, as `provider:name` or a file like `judge.toml`.
        heldout_of: the folder of a learned conductor; keeps only the questions that were held out from it.
        limit: keep only the first questions.
    """
    with _mistakes_without_traceback():
        loaded = load_questions(file, judge=judge)
        groups: Mapping[str, str] = name_groups(loaded.samples)
        if heldout_of is not None:
            loaded, groups = held_out_questions(heldout_of, loaded)
    loaded = loaded if limit is None else loaded.first(limit)
    if len({groups[sample.id] for sample in loaded.samples}) == 1:  # a single cluster has no standard error
        groups = {name: name for name in groups}
    samples = [
        Sample(input=sample.question, target=sample.answer, id=sample.id, metadata={GROUP: groups[sample.id]})
        for sample in loaded.samples
    ]
    return Task(dataset=MemoryDataset(samples, name=loaded.name), solver=generate(), scorer=own_scorer(loaded))


def own_scorer(loaded: ConductorTask) -> Scorer:
    """Returns a scorer that scores each question as its line of the file says."""
    by_id = {sample.id: sample for sample in loaded.samples}

    @scorer(metrics=[accuracy(), stderr(cluster=GROUP)], name="conductor_questions")  # type: ignore[untyped-decorator, unused-ignore]
    def conductor_questions() -> Scorer:
        async def score(state: TaskState, _target: Target) -> Score:
            result = await loaded.score(by_id[str(state.sample_id)], state.output.completion)
            return Score(value=result.value, answer=result.answer, explanation=result.explanation)

        return score

    return conductor_questions()


__all__ = ["ConductorAPI", "conductor", "questions"]
