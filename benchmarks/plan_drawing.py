"""Measures how long a CPU takes to sample the plans of a step, for each attention implementation.

Run with `uv run python benchmarks/plan_drawing.py`. It samples from the embedded SmolLM2-135M for prompts of
`recipes/composite.toml`, as training does but without a grammar, with each implementation in turn. No worker is called
and nothing is spent.
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

from rl_conductor_training.train.config import TrainConfig, read_config
from rl_conductor_training.train.policy import grouped_attention
from rl_conductor_training.train.policy.model_loading import LoadedModel, load_model, lora_config
from rl_conductor_training.train.policy.sampling import generate
from rl_conductor_training.train.setup import TrainingSetup
from rl_conductor_training.workers.reply_cache import ReplyCache

RECIPE = Path(__file__).parents[1] / "recipes" / "composite.toml"
KINDS = (grouped_attention.NAME, "eager", "sdpa")


def prompts(config: TrainConfig, loaded: LoadedModel, questions: int) -> list[list[int]]:
    """Builds the prompts of a step, one for each plan."""
    setup = TrainingSetup(config, config.pool.build(ReplyCache(None)))
    instances = setup.prompt_instances(questions)
    unique = [loaded.plan_tokenizer.encode_prompt(instance.messages) for instance in instances]
    return [prompt for prompt in unique for _ in range(config.grpo.rollouts)]


def seconds(model: Any, plan_prompts: list[list[int]], ends: list[int], tokens: int) -> float:
    """Measures the sampling of `tokens` tokens for each prompt."""
    torch.manual_seed(0)
    length = {"max_new_tokens": tokens, "min_new_tokens": tokens}
    generation_config = GenerationConfig(do_sample=True, top_k=0, eos_token_id=ends, pad_token_id=ends[0], **length)
    began = time.perf_counter()
    generate(model, plan_prompts, generation_config, None)
    return time.perf_counter() - began


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--questions", type=int, default=6)
    options.add_argument("--tokens", type=int, default=40, help="of each plan")
    options.add_argument("--rounds", type=int, default=3)
    arguments = options.parse_args()
    transformers.utils.logging.set_verbosity_error()
    config = read_config(RECIPE)
    loaded = load_model(config.model, dtype=config.dtype)
    plan_prompts = prompts(config, loaded, arguments.questions)
    loaded.model.add_adapter(lora_config(config))
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(arguments.rounds):
        for kind in KINDS:
            loaded.model.set_attn_implementation(kind)
            took[kind].append(seconds(loaded.model, plan_prompts, loaded.end_tokens, arguments.tokens))
    medians = {kind: statistics.median(times) for kind, times in took.items()}
    table = Table("attention", "seconds", "times ours", box=None, pad_edge=False)
    for kind, median in medians.items():
        table.add_row(
            "ours" if kind == grouped_attention.NAME else kind, f"{median:.1f}", f"{median / medians[KINDS[0]]:.2f}"
        )
    console = Console()
    console.print(table)
    console.print(
        f"\nn = {arguments.rounds} rounds, medians; {len(plan_prompts)} plans of {arguments.tokens} tokens after"
        f" prompts of {len(plan_prompts[0])}; {config.model} with LoRA, {config.dtype}; torch {torch.__version__} on "
        f"{torch.get_num_threads()} threads, Python {platform.python_version()}; nothing spent",
        style="dim",
    )


if __name__ == "__main__":
    main()
