"""How long a processor takes to draw a step's plans, by the kind of attention.

Run with `uv run python benchmarks/plan_drawing.py`. It draws from the embedded SmolLM2-135M for prompts
of `recipes/composite.toml`, as training does but without a grammar, all kinds in turn. No worker is asked and nothing
is spent.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table
from transformers import GenerationConfig

from rl_conductor.train import attention
from rl_conductor.train.config import TrainConfig, read_config
from rl_conductor.train.course import Course
from rl_conductor.train.drawing import draw
from rl_conductor.train.loading import Loaded, load, lora_of
from rl_conductor.workers.source import Memory

RECIPE = Path(__file__).parents[1] / "recipes" / "composite.toml"
KINDS = (attention.NAME, "eager", "sdpa")


def prompts(config: TrainConfig, loaded: Loaded, questions: int) -> list[list[int]]:
    """The prompts of a step, one for each plan."""
    course = Course(config, config.pool.build(Memory(None)))
    told = [loaded.tokens.prompt(one.messages) for one in course.exercises(questions)]
    return [prompt for prompt in told for _ in range(config.grpo.rollouts)]


def seconds(model: Any, asked: list[list[int]], ends: list[int], tokens: int) -> float:
    """Of drawing `tokens` tokens for each prompt."""
    torch.manual_seed(0)
    length = {"max_new_tokens": tokens, "min_new_tokens": tokens}
    how = GenerationConfig(do_sample=True, top_k=0, eos_token_id=ends, pad_token_id=ends[0], **length)
    began = time.perf_counter()
    draw(model, asked, how, None)
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--questions", type=int, default=6)
    options.add_argument("--tokens", type=int, default=40, help="of each plan")
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    transformers.utils.logging.set_verbosity_error()
    config = read_config(RECIPE)
    loaded = load(config.model, dtype=config.dtype)
    asked = prompts(config, loaded, given.questions)
    loaded.model.add_adapter(lora_of(config))
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(given.rounds):
        for kind in KINDS:
            loaded.model.set_attn_implementation(kind)
            took[kind].append(seconds(loaded.model, asked, loaded.ends, given.tokens))
    medians = {kind: statistics.median(times) for kind, times in took.items()}
    table = Table("attention", "seconds", "times ours", box=None, pad_edge=False)
    for kind, median in medians.items():
        table.add_row("ours" if kind == attention.NAME else kind, f"{median:.1f}", f"{median / medians[KINDS[0]]:.2f}")
    console = Console()
    console.print(table)
    console.print(
        f"\nn = {given.rounds} rounds, medians; {len(asked)} plans of {given.tokens} tokens after prompts of "
        f"{len(asked[0])}; {config.model} with LoRA, {config.dtype}; torch {torch.__version__} on "
        f"{torch.get_num_threads()} threads, Python {platform.python_version()}; nothing spent",
        style="dim",
    )


if __name__ == "__main__":
    main()
