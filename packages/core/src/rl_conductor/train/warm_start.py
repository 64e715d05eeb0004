"""Supervised steps before the first update, on plans that gave right answers: so that plans can be read at all.

What is learnt is the distribution that plans are drawn from (see `held`): of what the grammar forces, nothing. What is
learnt from is told in the run's record: a warm start is no reinforcement learning.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from accelerate import PartialState
from peft import get_peft_model
from transformers import PrinterCallback, Trainer, TrainingArguments

from rl_conductor.plan import render
from rl_conductor.pool import WorkerPool
from rl_conductor.tasks.base import Sample
from rl_conductor.train.config import TrainConfig, WarmStart
from rl_conductor.train.course import Course
from rl_conductor.train.exercises import Exercise, subset
from rl_conductor.train.folder import Folder, Warmth, newest_whole
from rl_conductor.train.held import Held
from rl_conductor.train.known import KnownPlan, known_plans, thought
from rl_conductor.train.lines import read_lines, read_value, write_lines, write_value
from rl_conductor.train.loading import Loaded, load, lora_of
from rl_conductor.train.marking import Marking
from rl_conductor.train.scoring import score

RISING = 4
"""Steps over which the learning rate rises."""


class Lesson(NamedTuple):
    """What one step learns from once, as tokens."""

    prompt: list[int]
    plan: list[int]
    """With its end."""


def warm_up(course: Course, entry: WarmStart, folder: Folder) -> Warmth:
    """Make the model that training begins with, unless it is there; what was done for it. Goes on where it was killed.

    Raises:
        ConfigError: there is not one right plan to learn from.
    """
    done = folder.warm_start / "warmth.json"
    if done.exists():
        return read_value(done, Warmth)
    loaded = load(course.config.model, dtype=course.config.weights)
    plans = _plans(course, entry, folder, loaded)
    trainer = _trainer(course, entry, folder, loaded, plans)
    checkpoint = newest_whole(folder.warm_start)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    trainer.save_model(str(folder.warm_start))
    warmth = Warmth(
        plans=len(plans),
        source=str(entry.plans) if entry.plans else f"drawn by {entry.draw}, kept when right",
        steps=entry.steps,
        loss=next(logs["loss"] for logs in reversed(trainer.state.log_history) if "loss" in logs),
    )
    if trainer.is_world_process_zero():
        write_value(done, warmth)
    trainer.accelerator.wait_for_everyone()  # all of them load what one has saved
    return warmth


def lessons(course: Course, entry: WarmStart, loaded: Loaded, plans: Sequence[KnownPlan]) -> list[Lesson]:
    """What to learn from, as many lessons as all steps take; each time a plan comes over a pool drawn for it."""
    chance = random.Random(f"{course.config.seed} warm start order")  # noqa: S311
    drawn: list[tuple[KnownPlan, WorkerPool]] = []
    while len(drawn) < entry.steps * entry.batch:
        drawn += [(plan, _pool(course, plan, chance)) for plan in chance.sample(plans, len(plans))]
    made: list[Lesson] = []
    for plan, pool in drawn[: entry.steps * entry.batch]:
        one = Exercise(Sample(id="", question=plan.question), pool, course.config.plan)
        written = loaded.tokenizer(_text(plan, one, entry.thoughts), add_special_tokens=False)["input_ids"]
        made.append(Lesson(loaded.tokens.prompt(one.messages), [*written, loaded.ends[0]]))
    return made


def _pool(course: Course, plan: KnownPlan, chance: random.Random) -> WorkerPool:
    needed = {step.worker for step in plan.workflow.steps} if plan.workflow else ()
    return subset(course.pool, course.config.curriculum, chance, needed=needed)


def _text(plan: KnownPlan, one: Exercise, does: Mapping[str, str]) -> str:
    assert plan.workflow is not None  # only right plans are learnt from
    reasoning = thought(plan.workflow, tuple(one.pool), does) if does else plan.reasoning
    return render(plan.workflow, one.space, one.plan.form, reasoning=reasoning)


def _plans(course: Course, entry: WarmStart, folder: Folder, loaded: Loaded) -> list[KnownPlan]:
    """What is learnt from: found once, by one of the processes, so that a killed run goes on with the same."""
    kept = folder.warm_start / "plans.jsonl"
    with PartialState().main_process_first():
        if not kept.exists():
            write_lines(kept, known_plans(course, entry, loaded))
    return read_lines(kept, KnownPlan)


def _trainer(course: Course, entry: WarmStart, folder: Folder, loaded: Loaded, plans: Sequence[KnownPlan]) -> _Trainer:
    config, lora = course.config, lora_of(course.config)
    one = course.exercises(1)[0]
    trainer = _Trainer(
        held=loaded.held_to(one.space, one.plan.form) if config.plan.grammar else None,
        model=get_peft_model(loaded.model, lora) if lora else loaded.model,
        processing_class=loaded.tokenizer,
        train_dataset=lessons(course, entry, loaded, plans),
        data_collator=_batch,
        args=_arguments(config, entry, folder),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Marking())
    return trainer


class _Trainer(Trainer):  # type: ignore[misc, unused-ignore]
    """Makes plans likelier, under the grammar that they are drawn by."""

    def __init__(self, *, held: Held | None, **options: Any) -> None:
        super().__init__(**options)
        self._held = held

    def compute_loss(self, model: Any, inputs: dict[str, list[list[int]]], **_: Any) -> torch.Tensor:
        """What a token of a plan costs, on average; one that the grammar forces costs nothing."""
        share = not self.args.gradient_checkpointing
        scored = score(model, **inputs, temperature=1.0, held=self._held, share=share)
        return -torch.cat([one.log_probs for one in scored]).mean()


def _batch(lessons: Sequence[Lesson]) -> dict[str, list[list[int]]]:
    return {"prompts": [one.prompt for one in lessons], "plans": [one.plan for one in lessons]}


def _arguments(config: TrainConfig, entry: WarmStart, folder: Folder) -> TrainingArguments:
    cuda = torch.cuda.is_available()
    return TrainingArguments(
        output_dir=str(folder.warm_start),
        max_steps=entry.steps,
        per_device_train_batch_size=entry.batch,
        learning_rate=entry.learning_rate,
        lr_scheduler_type=entry.schedule,
        warmup_steps=RISING,
        seed=config.seed,
        use_cpu=not cuda,
        bf16=config.dtype == "bfloat16",
        dataloader_pin_memory=cuda,
        gradient_checkpointing=config.gradient_checkpointing,
        remove_unused_columns=False,
        logging_steps=1,
        disable_tqdm=True,
        report_to="none",
        save_steps=config.keep.every,
        save_total_limit=2,
    )
