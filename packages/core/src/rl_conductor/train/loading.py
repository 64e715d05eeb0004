"""The model to train and its tokenizer: from a folder, the hub, or the embedded weights unpacked."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rl_conductor.errors import ConfigError
from rl_conductor.grammar import constraint
from rl_conductor.plan import Form
from rl_conductor.train.config import TrainConfig
from rl_conductor.types import Grammar
from rl_conductor.workflow import PlanSpace

try:
    import torch
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    from rl_conductor.train import attention
    from rl_conductor.train.held import Held
    from rl_conductor.train.tokens import Tokens
except ImportError as missing:
    raise ConfigError(f"training needs {missing.name}: pip install 'rl-conductor[train]'") from missing

EMBEDDED = "embedded:"


@dataclass(frozen=True)
class Loaded:
    """A model and its tokenizer."""

    name: str
    model: Any
    tokenizer: Any

    @property
    def ends(self) -> list[int]:
        """The tokens that end a plan."""
        declared = self.model.generation_config.eos_token_id
        others = [] if declared is None else [declared] if isinstance(declared, int) else list(declared)
        return list(dict.fromkeys([self.tokenizer.eos_token_id, *others]))

    @cached_property
    def tokens(self) -> Tokens:
        """How prompts and plans are spelled for it."""
        return Tokens(self.tokenizer, name=self.name)

    def held_to(self, space: PlanSpace, form: Form) -> Held:
        """The grammar of the plans in `space`, for this model."""
        vocab_size = self.model.config.get_text_config().vocab_size
        return Held(self.tokenizer, vocab_size=vocab_size, ends=self.ends, gbnf=grammar_of(space, form))


def load(name: str, *, dtype: str) -> Loaded:
    """The model of that name: a folder, a name on the hub, or `embedded:NAME`.

    Raises:
        ConfigError: there is no such model, or its folder can't be read.
    """
    source = str(unpacked(name.removeprefix(EMBEDDED))) if name.startswith(EMBEDDED) else name
    try:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation=_attention())
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as failed:
        raise ConfigError(f"model {name!r} can't be loaded: {failed}") from failed
    if not torch.cuda.is_available():
        attention.group(model)
    # A checkpoint's own habits, such as a penalty on repetition, would make it draw from what is not trained.
    loaded = Loaded(name, model, tokenizer)
    model.generation_config = GenerationConfig(eos_token_id=loaded.ends)
    return loaded


def _attention() -> str:
    """The kind of attention. Plans that share a prompt are scored under a mask that flash attention can't take.

    On a processor the plain kind is the quicker one for drawing, which adds one token at a time to long prompts.
    """
    return "sdpa" if torch.cuda.is_available() else "eager"


def unpacked(name: str) -> Path:
    """The folder with embedded weights as transformers reads them fast, beside the packed file; made when missing."""
    # The `local` extra, which those who train a folder or hub model can do without.
    from filelock import FileLock  # noqa: PLC0415

    from rl_conductor.weights import fetch  # noqa: PLC0415

    packed = fetch(name)
    folder = packed.with_name(f"{packed.stem}.unpacked")
    with FileLock(packed.with_name(f"{folder.name}.lock")):
        if not folder.exists():
            _unpack(packed, folder)
    return folder


def _unpack(packed: Path, folder: Path) -> None:
    half = folder.with_name(f"{folder.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    options: dict[str, Any] = {"gguf_file": packed.name, "dtype": torch.float32}
    options["quantization_config"] = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(packed.parent, **options)
    model.config.tie_word_embeddings = True  # as the originals are: packing made two slightly different copies
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(half)
    AutoTokenizer.from_pretrained(packed.parent, gguf_file=packed.name).save_pretrained(half)
    half.rename(folder)


def grammar_of(space: PlanSpace, form: Form) -> str:
    """The grammar of the plans in `space`, as in serving but for the lengths of texts, which the parser counts.

    Raises:
        ConfigError: the form has none.
    """
    made = constraint(space, form, counted=False)
    if not isinstance(made, Grammar):
        raise ConfigError("plan.form 'object' has no grammar: write 'lists' or 'lines', or plan.grammar = false")
    return made.gbnf


def lora_of(config: TrainConfig) -> LoraConfig | None:
    """The addition that is trained in place of the model."""
    lora = config.lora
    return lora and LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.targets,
        task_type="CAUSAL_LM",
    )
