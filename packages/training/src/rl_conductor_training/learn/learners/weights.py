"""`PlannerWeights`: a small local model that is trained on the table of experience and plans by itself.

The training is that of `rl_conductor_training.train.reward_table`: supervised steps on right plans, then a policy
gradient or expert iteration. It makes no call, because the scores of all plans are in the table. Only this learner
needs torch; the learned conductor runs without it if the model is an embedded one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from rl_conductor.conductor import Conductor
from rl_conductor.errors import ConfigError
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool_file import PlannerEntry
from rl_conductor.scoring import Sample
from rl_conductor.types import Card
from rl_conductor_training.learn.experience import ScoreTable, cost_order
from rl_conductor_training.learn.learners.base import SearchingLearner
from rl_conductor_training.learn.production.stored_runs import request_of
from rl_conductor_training.learn.runner import Runner, add_call_seconds
from rl_conductor_training.learn.search.explore import score_table
from rl_conductor_training.learn.workspace import REPLIES_FILE
from rl_conductor_training.row_file import fingerprint
from rl_conductor_training.train.reward_table.prompt import PlanPrompt
from rl_conductor_training.train.reward_table.table import ScoredWorkflow, TableQuestion, TableSettings
from rl_conductor_training.workers.cached_model import CachedModel
from rl_conductor_training.workers.pool_settings import EMBEDDED_PREFIX

FOLDER, GGUF_FILE = "weights", "adapter.gguf"
MAX_PLANS = 16
"""Maximum number of plans per question that are trained on."""
CHARS_PER_TOKEN, SPARE_TOKENS = 2, 64
"""Characters per token, at least, and further tokens: a plan may be as long as the longest one in the table."""
NEEDED = ("torch", "transformers", "peft", "accelerate", "xgrammar")
"""Modules of the `train` extra."""


class PlannerWeights(SearchingLearner):
    """Trains a LoRA adapter on the table, and plans with the best one on the validation questions."""

    name = "weights"
    description = "planner trained on the table"

    def __init__(self, settings: TableSettings | None = None) -> None:
        """Creates the learner; nothing is trained before `search`.

        Raises:
            ConfigError: torch or another library of the `train` extra is missing.
        """
        _require_torch()
        self.settings = settings or TableSettings()
        self.training_seconds = self.settings.expected_seconds
        self.planner: Planner | None = None
        """The trained planner; `None` before the training, or if its time did not suffice for the supervised steps."""

    async def search(self, runner: Runner, train: Sequence[Sample], validation: Sequence[Sample]) -> None:
        """Trains on the plans that ran on the questions, until the training or the stage's time ends."""
        # Imports torch.
        from rl_conductor_training.train.reward_table.training import (  # noqa: PLC0415
            BEST,
            TableData,
            train_on_table,
        )

        entry = base_entry(runner.conductor, self.settings)
        prompt = PlanPrompt.of(runner.conductor.replaced(planner=Planner.from_entry(entry)))
        data = TableData(
            build_questions(score_table(runner, train, with_production=True), prompt),
            build_questions(score_table(runner, validation), prompt),
            prompt,
        )
        identity = _identify(self.settings, data.train, data.validation, prompt)
        folder = runner.experience.path.with_name(FOLDER) / identity
        stop = _Stop(runner)
        loop = asyncio.get_running_loop()
        try:
            training = await asyncio.to_thread(
                train_on_table,
                data,
                self.settings,
                folder,
                report=lambda text: loop.call_soon_threadsafe(runner.on_status, text),
                is_over=stop.is_over,
            )
        finally:
            stop.set()
        runner.is_exhausted = runner.is_exhausted or not training.is_complete
        if training.best is not None:
            options = await asyncio.to_thread(_export, self.settings.model, folder / BEST, folder)
            changes = {"options": entry.options | options, "max_tokens": _max_tokens(data.train, prompt)}
            self._open(runner, entry.model_copy(update=changes), identity)

    def apply(self, conductor: Conductor) -> Conductor:
        """Returns a copy with the trained model as its planner."""
        return conductor if self.planner is None else conductor.replaced(planner=self.planner)

    def _open(self, runner: Runner, entry: PlannerEntry, identity: str) -> None:
        """Opens the trained planner; its plans are cached like all replies."""
        planner = Planner.from_entry(entry)
        cache = runner.experience.path.with_name(REPLIES_FILE)
        model = CachedModel(planner.model, cache, version=f"{FOLDER} {identity}", on_reply=add_call_seconds)
        runner.opened.append(model)
        # The card's name tells the rows of this adapter from those of others.
        self.planner = replace(planner, model=model, card=Card(name=f"{FOLDER} {identity}"))
        self.planner_entry = entry


def base_entry(conductor: Conductor, settings: TableSettings) -> PlannerEntry:
    """Returns the untrained planner: the conductor's instructions and limits, no examples, and greedy plans."""
    is_embedded = settings.model.startswith(EMBEDDED_PREFIX)
    return PlannerEntry(
        model=settings.model if is_embedded else f"transformers:{settings.model}",
        form="lists",
        examples=0,
        access=conductor.config.access,
        steps=conductor.limits.steps,
        temperature=0.0,
        instructions=conductor.planner.instructions,
    )


def build_questions(table: ScoreTable, prompt: PlanPrompt) -> list[TableQuestion]:
    """Builds the questions with at least one plan that the planner may write."""
    questions = []
    for sample in table.samples:
        rows = [row for row in table.by_question[sample.id] if row.workflow is not None and prompt.allows(row.workflow)]
        rows = sorted(rows, key=lambda row: (cost_order(row.usd, row.tokens, row.unpriced_calls), row.calls))
        best = sorted(rows, key=lambda row: -row.score)[:MAX_PLANS]
        plans = [
            ScoredWorkflow(workflow=row.workflow, score=row.score)
            for row in rows
            if row in best and row.workflow is not None
        ]
        if plans:
            questions.append(TableQuestion(id=sample.id, conversation=request_of(sample).messages, plans=tuple(plans)))
    return questions


def _identify(
    settings: TableSettings,
    train: Sequence[TableQuestion],
    validation: Sequence[TableQuestion],
    prompt: PlanPrompt,
) -> str:
    """Identifies a training, so that another one begins anew for other questions, plans, workers or settings."""
    questions = (question.model_dump_json() for question in (*train, *validation))
    cards = (card.model_dump_json() for card in prompt.cards)
    texts = (prompt.settings.instructions, prompt.settings.wording, *cards, *questions)
    return fingerprint(settings.model_dump_json(), *texts)[:12]


def _max_tokens(questions: Sequence[TableQuestion], prompt: PlanPrompt) -> int:
    """Returns a limit that the plans of the table keep by far, so that a plan that does not end costs little."""
    chars = max(len(prompt.text(plan.workflow)) for question in questions for plan in question.plans)
    return chars // CHARS_PER_TOKEN + SPARE_TOKENS


def _export(base: str, adapter: Path, folder: Path) -> dict[str, str]:
    """Returns the options with which the model is served; for an embedded one, the adapter is converted to GGUF."""
    if not base.startswith(EMBEDDED_PREFIX):
        return {"adapter": str(adapter)}
    from rl_conductor_training.train.policy.gguf_adapter import to_gguf  # noqa: PLC0415  imports transformers
    from rl_conductor_training.train.policy.model_loading import base_folder  # noqa: PLC0415  imports torch

    file = folder / GGUF_FILE
    to_gguf(adapter, file, base=base_folder(base))
    return {"lora": str(file)}


@dataclass
class _Stop:
    """Tells the training's thread when to stop: when the search is cancelled, or when its time is over."""

    runner: Runner

    def __post_init__(self) -> None:
        self._event = threading.Event()
        deadline = self.runner.budget.shared_deadline()
        self._deadline = None if deadline is None else deadline.time

    def set(self) -> None:
        self._event.set()

    def is_over(self) -> bool:
        """Returns whether the training was stopped or has used up its time."""
        return self._event.is_set() or (self._deadline is not None and time.monotonic() >= self._deadline)


def _require_torch() -> None:
    missing = next((name for name in NEEDED if find_spec(name) is None), None)
    if missing is not None:
        raise ConfigError(f"learning weights needs {missing}: pip install 'rl-conductor-training[train]'")
