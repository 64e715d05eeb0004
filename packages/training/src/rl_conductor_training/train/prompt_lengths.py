"""Checks that prompts and plans fit into the context of the model to train."""

from __future__ import annotations

from rl_conductor.errors import ConfigError
from rl_conductor_training.train.policy.model_loading import LoadedModel
from rl_conductor_training.train.prompt_instances import PromptInstance
from rl_conductor_training.train.setup import TrainingSetup


def check_prompts(setup: TrainingSetup, loaded: LoadedModel) -> None:
    """Checks the prompts of all questions; those of second rounds are unknown yet, because they quote replies.

    Raises:
        ConfigError: a prompt and a plan are longer than the context, in which serving could not write that plan.
    """
    config = setup.config
    sampled = config.warm_start.questions if config.warm_start and not config.warm_start.plans else 0
    instances = setup.prompt_instances(max(config.grpo.steps * config.grpo.questions, sampled))
    for instance in (*instances, *setup.validation_instances):
        if problem := describe_overflow(setup, loaded, instance):
            cut = ". With the model's context as plan.context, prompts leave out the middle of long questions"
            raise ConfigError(
                f"the question {instance.sample.question!r:.80} does not fit: {problem}; shorten or remove it, or lower"
                f" plan.max_tokens{cut if config.plan.context is None else ''}"
            )


def describe_overflow(setup: TrainingSetup, loaded: LoadedModel, instance: PromptInstance) -> str | None:
    """Explains why the prompt and a plan are longer than the context; `None` if they are not, or it is unknown."""
    plan, vllm = setup.config.plan, setup.config.vllm
    limits = (loaded.context, plan.context, None if vllm is None else vllm.context_length)
    context = min((limit for limit in limits if limit is not None), default=None)
    tokens, max_tokens = len(loaded.plan_tokenizer.encode_prompt(instance.messages)), plan.max_tokens
    if context is None or tokens + max_tokens <= context:
        return None
    return f"its prompt has {tokens:,} tokens and a plan up to {max_tokens:,}, but the context is {context:,}"
