"""From a trained LoRA adapter to the GGUF file that llama.cpp puts on top of the embedded weights.

Run with `python -m rl_conductor.train.adapter FOLDER FILE.gguf`. Knows the names and the layout of Llama models, which
SmolLM2 is one of, and of Qwen2.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rl_conductor.errors import ConfigError

try:
    import gguf
    import numpy as np
    from safetensors.numpy import load_file
    from transformers import AutoConfig
except ImportError as missing:
    raise ConfigError(f"converting adapters needs {missing.name}: pip install 'rl-conductor[train]'") from missing

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""What transformers and llama.cpp call the same matrix of a layer."""
ARCHITECTURES = ("llama", "qwen2")


def to_gguf(adapter: Path, file: Path, *, base: str) -> None:
    """Write the adapter in the folder `adapter`, trained on top of `base`, into `file`.

    Args:
        adapter: as peft saves it.
        file: the GGUF file, written anew.
        base: the folder or hub name of the model below.

    Raises:
        ConfigError: it is no LoRA adapter, or one of another kind of model.
    """
    settings = _settings(adapter)
    config = AutoConfig.from_pretrained(base)
    if config.model_type not in ARCHITECTURES:
        raise ConfigError(
            f"{base!r} is a {config.model_type} model; adapters of {', '.join(ARCHITECTURES)} are converted"
        )
    writer = gguf.GGUFWriter(file, config.model_type)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(settings["lora_alpha"]))
    for name, matrix in load_file(adapter / "adapter_model.safetensors").items():
        where, told = _place(name), matrix.astype(np.float32)
        if config.model_type == "llama" and where.endswith(("attn_q.weight.lora_b", "attn_k.weight.lora_b")):
            told = _interleaved(told, config.num_attention_heads if "attn_q" in where else config.num_key_value_heads)
        writer.add_tensor(where, told.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _settings(adapter: Path) -> dict[str, Any]:
    try:
        settings: dict[str, Any] = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{str(adapter)!r} holds no adapter: {error.strerror}") from error
    if settings.get("peft_type") != "LORA" or settings.get("use_rslora"):
        raise ConfigError(f"{str(adapter)!r} is no plain LoRA adapter; only those are converted")
    return settings


def _place(name: str) -> str:
    """`base_model.model.model.layers.3.mlp.up_proj.lora_A.weight` is `blk.3.ffn_up.weight.lora_a`."""
    parts = name.removesuffix(".weight").split(".")
    part, half = ".".join(parts[-3:-1]), parts[-1].lower()
    if part not in NAMES or half not in ("lora_a", "lora_b"):
        raise ConfigError(f"the adapter changes {name!r}, for which llama.cpp has no place")
    return f"blk.{parts[-4]}.{NAMES[part]}.weight.{half}"


def _interleaved(matrix: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows in llama.cpp's order: it turns neighbouring rows of a head together, transformers the two halves."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def main() -> None:
    """Convert the adapter that the command line names; peft has written down what it was trained on."""
    adapter, file = map(Path, sys.argv[1:])
    to_gguf(adapter, file, base=_settings(adapter)["base_model_name_or_path"])


if __name__ == "__main__":
    main()
