from __future__ import annotations

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from rl_conductor.errors import ConfigError
from rl_conductor_training.train.policy.gguf_adapter import from_gguf, main, to_gguf


def trained(folder: Path, **lora: object) -> Path:
    """A tiny Llama and an adapter on top of it, with numbers of its own in every matrix."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=32,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder / "base")
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, init_lora_weights=False, **lora))
    adapted.save_pretrained(folder / "adapter")
    return folder / "adapter"


def read(file: Path) -> dict[str, np.ndarray]:
    return {tensor.name: tensor.data for tensor in gguf.GGUFReader(file).tensors}


def test_every_matrix_and_the_scale_are_exported(tmp_path: Path) -> None:
    adapter = trained(tmp_path, target_modules="all-linear")
    to_gguf(adapter, tmp_path / "a.gguf", base=str(tmp_path / "base"))
    matrices = read(tmp_path / "a.gguf")
    assert len(matrices) == 2 * 7 * 2
    assert matrices["blk.1.ffn_down.weight.lora_a"].shape == (4, 24)
    assert matrices["blk.0.attn_v.weight.lora_b"].shape == (8, 4)
    fields = gguf.GGUFReader(tmp_path / "a.gguf").fields
    assert fields["adapter.lora.alpha"].parts[-1].tolist() == [8.0]
    assert bytes(fields["adapter.type"].parts[-1]) == b"lora"


def test_queries_and_keys_have_the_row_order_of_llama_cpp(tmp_path: Path) -> None:
    adapter = trained(tmp_path, target_modules=["q_proj", "k_proj", "o_proj"])
    to_gguf(adapter, tmp_path / "a.gguf", base=str(tmp_path / "base"))
    before = load_file(adapter / "adapter_model.safetensors")
    after = read(tmp_path / "a.gguf")
    layer = "base_model.model.model.layers.0.self_attn"
    queries = before[f"{layer}.q_proj.lora_B.weight"].astype(np.float16)
    one_head = [0, 4, 1, 5, 2, 6, 3, 7]
    np.testing.assert_array_equal(
        after["blk.0.attn_q.weight.lora_b"], queries[one_head + [8 + row for row in one_head]]
    )
    keys = before[f"{layer}.k_proj.lora_B.weight"].astype(np.float16)
    np.testing.assert_array_equal(after["blk.0.attn_k.weight.lora_b"], keys[one_head])
    other = before[f"{layer}.o_proj.lora_B.weight"].astype(np.float16)
    np.testing.assert_array_equal(after["blk.0.attn_output.weight.lora_b"], other)


def test_an_adapter_is_the_same_after_both_conversions(tmp_path: Path) -> None:
    adapter, base = trained(tmp_path, target_modules="all-linear"), str(tmp_path / "base")
    to_gguf(adapter, tmp_path / "a.gguf", base=base)
    from_gguf(tmp_path / "a.gguf", tmp_path / "again", base=base)
    tokens = torch.arange(12).unsqueeze(0)

    def logits(folder: Path) -> torch.Tensor:
        model = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(base), folder)
        return model(tokens).logits.detach()

    torch.testing.assert_close(logits(tmp_path / "again"), logits(adapter), atol=2e-3, rtol=2e-3)
    plain = LlamaForCausalLM.from_pretrained(base)(tokens).logits.detach()
    assert (logits(adapter) - plain).abs().max() > 0.1


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`")
def test_tensors_that_llama_cpp_lacks_are_rejected(tmp_path: Path) -> None:
    adapter = trained(tmp_path, target_modules=["embed_tokens"])
    with pytest.raises(ConfigError, match="embed_tokens"):
        to_gguf(adapter, tmp_path / "a.gguf", base=str(tmp_path / "base"))


def test_a_folder_without_an_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="contains no adapter"):
        to_gguf(tmp_path, tmp_path / "a.gguf", base="any")


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    adapter, base = trained(tmp_path, target_modules=["q_proj"]), str(tmp_path / "base")
    with pytest.raises(ConfigError, match=r"can't read '.*nothing\.gguf'"):
        from_gguf(tmp_path / "nothing.gguf", tmp_path / "again", base=base)
    with pytest.raises(ConfigError, match=r"can't write '.*nowhere/a\.gguf'"):
        to_gguf(adapter, tmp_path / "nowhere" / "a.gguf", base=base)
    with pytest.raises(ConfigError, match=r"the base model '.*/gone' can't be read"):
        to_gguf(adapter, tmp_path / "a.gguf", base=str(tmp_path / "gone"))
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"has no readable adapter_model\.safetensors"):
        to_gguf(adapter, tmp_path / "a.gguf", base=base)


def test_the_command_prints_a_mistake_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gguf_adapter", str(tmp_path / "nowhere"), str(tmp_path / "a.gguf")])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "nowhere' contains no adapter: No such file or directory" in capsys.readouterr().err
