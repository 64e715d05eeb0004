"""Converts LoRA adapters to GGUF files for llama.cpp, and back to train them further.

Run with `python -m rl_conductor_training.train.policy.gguf_adapter FOLDER FILE.gguf`. Supports Llama models,
such as SmolLM2, and Qwen2.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from rl_conductor._internal.io import reading_errors, writing_errors
from rl_conductor.errors import ConfigError

try:
    import gguf
    import numpy as np
    from peft import LoraConfig
    from safetensors import SafetensorError
    from safetensors.numpy import load_file, save_file
    from transformers import AutoConfig
except ImportError as missing:
    raise ConfigError(
        f"converting adapters needs {missing.name}: pip install 'rl-conductor-training[train]'"
    ) from missing

TENSOR_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""The matrices of a layer: the name in transformers, and the name in llama.cpp."""
ARCHITECTURES = ("llama", "qwen2")
PEFT_PREFIX = "base_model.model."
WEIGHTS_FILE = "adapter_model.safetensors"


def to_gguf(adapter: Path, file: Path, *, base: str) -> None:
    """Converts the LoRA adapter in the folder `adapter`, trained on top of `base`.

    Args:
        adapter: a folder saved by peft.
        file: the GGUF file; overwritten if it exists.
        base: the folder or hub name of the base model.

    Raises:
        ConfigError: `adapter` is not a plain LoRA adapter, the base model can't be read or its type is not supported,
            or the file can't be written.
    """
    adapter_config, matrices = _read_adapter_config(adapter), _read_matrices(adapter)
    config = _read_model_config(base)
    writer = gguf.GGUFWriter(file, config.model_type)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(adapter_config["lora_alpha"]))
    for name, matrix in matrices.items():
        tensor_name, tensor = _tensor_name(name), matrix.astype(np.float32)
        if heads := _interleaved_heads(tensor_name, config):
            tensor = _interleave_rows(tensor, heads)
        writer.add_tensor(tensor_name, tensor.astype(np.float16))
    with writing_errors(file):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def from_gguf(file: Path, adapter: Path, *, base: str) -> None:
    """Converts a GGUF file to a LoRA adapter in the folder `adapter`, which peft loads on top of `base`.

    Args:
        file: an adapter in the format that `to_gguf` writes.
        adapter: the folder; files in it are overwritten.
        base: the folder or hub name of the base model.

    Raises:
        ConfigError: the file or the base model can't be read, or the model type is not supported.
    """
    with reading_errors(file):
        reader = gguf.GGUFReader(file)
    config = _read_model_config(base)
    matrices: dict[str, np.ndarray[Any, Any]] = {}
    for tensor in reader.tensors:
        matrix = np.array(tensor.data, dtype=np.float32)
        if heads := _interleaved_heads(tensor.name, config):
            matrix = _separate_halves(matrix, heads)
        matrices[_peft_name(tensor.name)] = np.ascontiguousarray(matrix)
    adapter.mkdir(parents=True, exist_ok=True)
    LoraConfig(
        r=next(len(matrix) for name, matrix in matrices.items() if ".lora_A." in name),
        lora_alpha=float(reader.fields["adapter.lora.alpha"].contents()),
        target_modules=sorted({name.split(".lora_")[0].removeprefix(PEFT_PREFIX) for name in matrices}),
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
    ).save_pretrained(adapter)
    save_file(matrices, adapter / WEIGHTS_FILE, metadata={"format": "pt"})


def _read_model_config(base: str) -> Any:
    try:
        config = AutoConfig.from_pretrained(base)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the base model {base!r} can't be read: {error}") from error
    if config.model_type not in ARCHITECTURES:
        raise ConfigError(
            f"{base!r} is a {config.model_type} model; only adapters of {' and '.join(ARCHITECTURES)} can be converted"
        )
    return config


def _read_adapter_config(adapter: Path) -> dict[str, Any]:
    try:
        settings: dict[str, Any] = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{str(adapter)!r} contains no adapter: {error.strerror}") from error
    if settings.get("peft_type") != "LORA" or settings.get("use_rslora"):
        raise ConfigError(f"{str(adapter)!r} is not a plain LoRA adapter; only those can be converted")
    return settings


def _read_matrices(adapter: Path) -> dict[str, Any]:
    try:
        return load_file(adapter / WEIGHTS_FILE)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{str(adapter)!r} has no readable {WEIGHTS_FILE}: {error}") from error


def _tensor_name(name: str) -> str:
    """Translates a tensor name, such as `base_model.model.model.layers.3.mlp.up_proj.lora_A.weight`.

    In llama.cpp that is `blk.3.ffn_up.weight.lora_a`.
    """
    parts = name.removesuffix(".weight").split(".")
    part, half = ".".join(parts[-3:-1]), parts[-1].lower()
    if part not in TENSOR_NAMES or half not in ("lora_a", "lora_b"):
        raise ConfigError(f"the adapter changes {name!r}, which has no counterpart in llama.cpp")
    return f"blk.{parts[-4]}.{TENSOR_NAMES[part]}.weight.{half}"


def _peft_name(tensor_name: str) -> str:
    """Translates a tensor name back: the inverse of `_tensor_name`."""
    _, layer, matrix, _, half = tensor_name.split(".")
    part = next(part for part, name in TENSOR_NAMES.items() if name == matrix)
    return f"{PEFT_PREFIX}model.layers.{layer}.{part}.lora_{half[-1].upper()}.weight"


def _interleaved_heads(tensor_name: str, config: Any) -> int | None:
    """Returns the number of heads, if llama.cpp has their rows in another order; `None` for other matrices."""
    if config.model_type != "llama" or not tensor_name.endswith(("attn_q.weight.lora_b", "attn_k.weight.lora_b")):
        return None
    heads: int = config.num_attention_heads if "attn_q" in tensor_name else config.num_key_value_heads
    return heads


def _interleave_rows(matrix: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Reorders rows for RoPE: llama.cpp rotates neighbouring rows of a head, transformers its two halves."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _separate_halves(matrix: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Reorders rows back: the inverse of `_interleave_rows`."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def main() -> None:
    """Converts the adapter named on the command line, using the base model recorded by peft."""
    parser = ArgumentParser(description="Converts a LoRA adapter to a GGUF file for llama.cpp.")
    parser.add_argument("adapter", type=Path, metavar="FOLDER", help="the adapter, as saved by peft")
    parser.add_argument("file", type=Path, metavar="FILE.gguf", help="the new file")
    arguments = parser.parse_args()
    try:
        base = _read_adapter_config(arguments.adapter)["base_model_name_or_path"]
        to_gguf(arguments.adapter, arguments.file, base=base)
    except ConfigError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
