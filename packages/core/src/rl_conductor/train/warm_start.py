"""Supervised steps before the first update, on plans that gave right answers: so that plans can be read at all.

The plans come from a file, or are drawn (by chance, or by the model under the grammar), run, and kept when the answer
is right: rejection sampling. What is learnt from is told in the run's record.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from pydantic import ConfigDict
from transformers import GenerationConfig, PrinterCallback
from trl import SFTConfig, SFTTrainer

from rl_conductor.errors import ConfigError
from rl_conductor.parser import render
from rl_conductor.pool import WorkerPool
from rl_conductor.sync import run_sync
from rl_conductor.tasks.base import Sample, Task
from rl_conductor.train.config import TrainConfig, WarmStart
from rl_conductor.train.exercises import Exercise, exercise, exercises, subset
from rl_conductor.train.folder import Folder, Warmth
from rl_conductor.train.lines import read_lines, write_lines
from rl_conductor.train.loading import ends_of, held_to, load, lora_of
from rl_conductor.train.outcomes import Judge
from rl_conductor.train.rollouts import Rollouts, draw
from rl_conductor.types import Value
from rl_conductor.workflow import PlanSpace, Step, Workflow

BATCH = 16
"""Plans drawn at once by the model."""


class KnownPlan(Value):
    """A plan that gave a right answer: a line of `warm_start.plans`. The plans that a run keeps can be read as such."""

    model_config = ConfigDict(extra="ignore")

    question: str
    workflow: Workflow | None
    """By the names of the pool's workers; without one, or with another score than 1, the line is passed over."""
    reasoning: str = ""
    score: float | None = 1.0


def warm_up(config: TrainConfig, folder: Folder, asked: Task, pool: WorkerPool, judge: Judge) -> Warmth:
    """Make the model that training begins with, unless it is there; what was done for it.

    Raises:
        ConfigError: there is not one right plan to learn from.
    """
    done = folder.warm_start / "warmth.json"
    if done.exists():
        return Warmth.model_validate_json(done.read_text(encoding="utf-8"))
    entry = config.warm_start
    assert entry is not None
    model, tokenizer = load(config.model, dtype=config.dtype)
    plans = _plans(config, entry, asked, pool, judge, model, tokenizer)
    trainer = _trainer(config, entry, folder, model, tokenizer, _rows(config, entry, plans, pool, tokenizer, model))
    trainer.train()
    trainer.save_model(str(folder.warm_start))
    loss = next(logs["loss"] for logs in reversed(trainer.state.log_history) if "loss" in logs)
    source = str(entry.plans) if entry.plans else f"drawn by {entry.draw}, kept when right"
    warmth = Warmth(plans=len(plans), source=source, steps=entry.steps, loss=loss)
    write_lines(folder.warm_start / "plans.jsonl", plans)
    done.write_text(warmth.model_dump_json(), encoding="utf-8")
    return warmth


# ----------------------------------------------------------------------------------------- the plans


def _plans(
    config: TrainConfig,
    entry: WarmStart,
    asked: Task,
    pool: WorkerPool,
    judge: Judge,
    model: Any,
    tokenizer: Any,
) -> list[KnownPlan]:
    if entry.plans is not None:
        found = read_lines(entry.plans, KnownPlan)
    else:
        few = config.model_copy(update={"plan": config.plan.model_copy(update={"examples": 3})})
        chosen = exercises(
            asked,
            pool,
            plan=few.plan if entry.draw == "model" else config.plan,
            curriculum=config.curriculum,
            seed=config.seed,
            size=entry.questions,
        )
        repeated = [one for one in chosen for _ in range(entry.samples)]
        texts = _by_model(config, repeated, model, tokenizer) if entry.draw == "model" else _by_chance(config, repeated)
        outcomes = run_sync(judge.outcomes(repeated, texts))
        found = [
            KnownPlan(question=one.sample.question, workflow=outcome.workflow, score=outcome.score)
            for one, outcome in zip(repeated, outcomes, strict=True)
        ]
    plans = shortest(found)
    if not plans:
        raise ConfigError("the warm start has no plan that gave a right answer: draw more, or name a file of plans")
    return plans


def shortest(plans: Sequence[KnownPlan]) -> list[KnownPlan]:
    """The right plans, for each question those with the fewest steps, each once."""
    best: dict[str, list[KnownPlan]] = {}
    for plan in plans:
        if plan.workflow is None or plan.score != 1:
            continue
        kept = best.setdefault(plan.question, [])
        known = len(kept[0].workflow.steps) if kept and kept[0].workflow else None
        if known is None or len(plan.workflow.steps) < known:
            best[plan.question] = [plan]
        elif len(plan.workflow.steps) == known and plan not in kept:
            kept.append(plan)
    return [plan for kept in best.values() for plan in kept]


def _by_chance(config: TrainConfig, asked: Sequence[Exercise]) -> list[str]:
    assert config.warm_start is not None
    subtasks = config.warm_start.subtasks
    draw = random.Random(f"{config.seed} warm start")  # noqa: S311
    return [render(random_workflow(one.space, subtasks, draw), one.space, one.form) for one in asked]


def random_workflow(space: PlanSpace, subtasks: Sequence[str], draw: random.Random) -> Workflow:
    """A workflow of random length, workers and subtasks; a step sees all earlier steps or none."""
    return Workflow(
        steps=tuple(
            Step(
                subtask=draw.choice(subtasks),
                worker=draw.choice(space.choices),
                access=frozenset(range(index)) if draw.random() < 0.8 else frozenset(),
            )
            for index in range(draw.randint(space.min_steps, space.max_steps))
        )
    )


def _by_model(config: TrainConfig, asked: Sequence[Exercise], model: Any, tokenizer: Any) -> list[str]:
    held = held_to(asked[0].space, asked[0].form, model, tokenizer)
    rollouts = Rollouts(tokenizer, held, name=config.model)
    ends = ends_of(model, tokenizer)
    torch.manual_seed(config.seed)
    how = GenerationConfig(
        do_sample=True,
        top_k=0,
        temperature=config.grpo.temperature,
        max_new_tokens=config.plan.max_tokens,
        eos_token_id=ends,
        pad_token_id=ends[0],
    )
    prompts = [rollouts.tokens(one.messages) for one in asked]
    batches = [prompts[start : start + BATCH] for start in range(0, len(prompts), BATCH)]
    return [rollouts.text(plan) for batch in batches for plan in draw(model, batch, how, held)]


# --------------------------------------------------------------------------------------- the learning


def _rows(
    config: TrainConfig, entry: WarmStart, plans: Sequence[KnownPlan], pool: WorkerPool, tokenizer: Any, model: Any
) -> list[dict[str, list[int]]]:
    """Tokens to learn from, of as many plans as there are places in all steps; each time over another pool."""
    rollouts = Rollouts(tokenizer, None, name=config.model)
    draw = random.Random(f"{config.seed} warm start order")  # noqa: S311
    rows = []
    while len(rows) < entry.steps * entry.batch:
        for plan in draw.sample(plans, len(plans)):
            assert plan.workflow is not None
            needed = {step.worker for step in plan.workflow.steps}
            there = subset(pool, config.curriculum, draw, needed=needed)
            one = exercise(Sample(id="", question=plan.question), there, config.plan)
            told = rollouts.tokens(one.messages)
            text = render(plan.workflow, one.space, one.form, reasoning=plan.reasoning)
            written = [*tokenizer(text, add_special_tokens=False)["input_ids"], ends_of(model, tokenizer)[0]]
            rows.append({"input_ids": told + written, "labels": [-100] * len(told) + written})
    return rows[: entry.steps * entry.batch]


class _Quiet(SFTTrainer):  # type: ignore[misc, unused-ignore]
    def _send_telemetry(self) -> None:
        """As in `ConductorTrainer`."""


def _trainer(
    config: TrainConfig, entry: WarmStart, folder: Folder, model: Any, tokenizer: Any, rows: list[dict[str, list[int]]]
) -> SFTTrainer:
    cuda = torch.cuda.is_available()
    trainer = _Quiet(
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        peft_config=lora_of(config),
        args=SFTConfig(
            output_dir=str(folder.warm_start),
            max_steps=entry.steps,
            per_device_train_batch_size=entry.batch,
            learning_rate=entry.learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=max(1, entry.steps // 10),
            max_length=None,
            seed=config.seed,
            use_cpu=not cuda,
            bf16=config.dtype == "bfloat16",
            dataloader_pin_memory=cuda,
            gradient_checkpointing=config.gradient_checkpointing,
            logging_steps=1,
            disable_tqdm=True,
            report_to="none",
            save_strategy="no",
        ),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer
