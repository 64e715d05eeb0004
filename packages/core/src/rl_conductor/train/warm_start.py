"""Supervised steps before the first update, on plans that gave right answers: so that plans can be read at all.

What is learnt from is told in the run's record: a warm start is no reinforcement learning.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from datasets import Dataset
from transformers import PrinterCallback
from trl import SFTConfig, SFTTrainer

from rl_conductor.parser import render
from rl_conductor.tasks.base import Sample
from rl_conductor.train.config import TrainConfig, WarmStart
from rl_conductor.train.course import Course
from rl_conductor.train.exercises import exercise, subset
from rl_conductor.train.folder import Folder, Warmth
from rl_conductor.train.known import KnownPlan, known_plans
from rl_conductor.train.lines import write_lines
from rl_conductor.train.loading import Loaded, load, lora_of
from rl_conductor.train.rollouts import Rollouts

Row = dict[str, list[int]]


def warm_up(course: Course, entry: WarmStart, folder: Folder) -> Warmth:
    """Make the model that training begins with, unless it is there; what was done for it.

    Raises:
        ConfigError: there is not one right plan to learn from.
    """
    done = folder.warm_start / "warmth.json"
    if done.exists():
        return Warmth.model_validate_json(done.read_text(encoding="utf-8"))
    loaded = load(course.config.model, dtype=course.config.dtype)
    plans = known_plans(course, entry, loaded)
    trainer = _Trainer(
        model=loaded.model,
        processing_class=loaded.tokenizer,
        train_dataset=Dataset.from_list(rows(course, entry, loaded, plans)),
        peft_config=lora_of(course.config),
        args=_arguments(course.config, entry, folder),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    trainer.save_model(str(folder.warm_start))
    warmth = Warmth(
        plans=len(plans),
        source=str(entry.plans) if entry.plans else f"drawn by {entry.draw}, kept when right",
        steps=entry.steps,
        loss=next(logs["loss"] for logs in reversed(trainer.state.log_history) if "loss" in logs),
    )
    if trainer.is_world_process_zero():
        write_lines(folder.warm_start / "plans.jsonl", plans)
        done.write_text(warmth.model_dump_json(), encoding="utf-8")
    trainer.accelerator.wait_for_everyone()  # all of them load what one has saved
    return warmth


def rows(course: Course, entry: WarmStart, loaded: Loaded, plans: Sequence[KnownPlan]) -> list[Row]:
    """Tokens to learn from, as many as all steps take; a plan that comes again comes over another pool."""
    rollouts = Rollouts(loaded.tokenizer, None, name=loaded.name)
    chance = random.Random(f"{course.config.seed} warm start order")  # noqa: S311
    made: list[Row] = []
    while len(made) < entry.steps * entry.batch:
        made += [_row(course, plan, chance, rollouts, loaded) for plan in chance.sample(plans, len(plans))]
    return made[: entry.steps * entry.batch]


def _row(course: Course, plan: KnownPlan, chance: random.Random, rollouts: Rollouts, loaded: Loaded) -> Row:
    """The prompt, of which nothing is learnt, and the plan with its end."""
    assert plan.workflow is not None
    needed = {step.worker for step in plan.workflow.steps}
    pool = subset(course.pool, course.config.curriculum, chance, needed=needed)
    one = exercise(Sample(id="", question=plan.question), pool, course.config.plan)
    told = rollouts.tokens(one.messages)
    text = render(plan.workflow, one.space, one.form, reasoning=plan.reasoning)
    written = [*loaded.tokenizer(text, add_special_tokens=False)["input_ids"], loaded.ends[0]]
    return {"input_ids": told + written, "labels": [-100] * len(told) + written}


class _Trainer(SFTTrainer):  # type: ignore[misc, unused-ignore]
    def _send_telemetry(self) -> None:
        """As in `ConductorTrainer`."""


def _arguments(config: TrainConfig, entry: WarmStart, folder: Folder) -> SFTConfig:
    cuda = torch.cuda.is_available()
    return SFTConfig(
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
    )
