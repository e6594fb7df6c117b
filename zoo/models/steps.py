"""Decoders of the library transformers, one step with the past: a table of their configurations."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import nn

from zoo.catalogue import Entry, Made, add
from zoo.models.decoders import SIZES, STEP, Step
from zoo.models.encoders import made

_WIDTH: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT = {"vocab_size": 100, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}

# by name: class of the model, its configuration, heads of its keys and values
_STEPS: dict[str, tuple[str, dict[str, Any], int]] = {
    "bloom_step": ("BloomForCausalLM", {"vocab_size": 100, "hidden_size": 64, "n_layer": 2, "n_head": 4}, 4),
    "falcon_step": (
        "FalconForCausalLM",
        {**_WIDTH, "new_decoder_architecture": True, "num_kv_heads": 2},
        4,
    ),
    "gemma_step": ("GemmaForCausalLM", {**_WIDTH, "head_dim": 16, "num_key_value_heads": 1}, 1),
    "gpt_neox_step": ("GPTNeoXForCausalLM", _WIDTH, 4),
    "gptj_step": ("GPTJForCausalLM", {**_GPT, "rotary_dim": 8}, 4),
    "granite_step": ("GraniteForCausalLM", _WIDTH, 2),
    "mpt_step": (
        "MptForCausalLM",
        {"vocab_size": 100, "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 64},
        4,
    ),
    "olmo2_step": ("Olmo2ForCausalLM", _WIDTH, 2),
    "opt_step": ("OPTForCausalLM", {**_WIDTH, "ffn_dim": 128, "word_embed_proj_dim": 64}, 4),
    "phi_step": ("PhiForCausalLM", _WIDTH, 2),
    "phi3_step": ("Phi3ForCausalLM", _WIDTH, 2),
    "qwen2_step": ("Qwen2ForCausalLM", _WIDTH, 2),
    "stablelm_step": ("StableLmForCausalLM", _WIDTH, 2),
    "starcoder2_step": ("Starcoder2ForCausalLM", _WIDTH, 2),
}


def _step(name: str, past: int = 9) -> Made:
    cls, config, heads = _STEPS[name]
    return Step(made(cls, config)), {
        "ids": torch.randint(0, 100, (1, 1)),
        "mask": torch.ones(1, past + 1, dtype=torch.int64),
        "past": torch.randn(2, 2, 1, heads, past, 16),
    }


for _name in _STEPS:
    add(Entry(_name, "decoder", lambda n=_name: _step(n), STEP, SIZES))  # type: ignore[misc]


class RwkvStep(nn.Module):
    """One token of RWKV; its state is five tensors."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: Any, *state: Any) -> Any:
        out = self.net(input_ids=ids, state=[one.clone() for one in state], use_cache=True)
        return (out.logits, *out.state)


def _rwkv_step() -> Made:
    config = hf.RwkvConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32)
    state = {f"state{index}": torch.randn(1, 32, 2).abs() for index in range(5)}
    return RwkvStep(hf.RwkvForCausalLM(config)), {"ids": torch.randint(0, 100, (1, 1)), **state}


add(Entry("rwkv_step", "decoder", _rwkv_step))


class XlnetStep(nn.Module):
    """Tokens of XLNet with the memories of those before."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: Any, first: Any, second: Any) -> Any:
        out = self.net(input_ids=ids, mems=[first, second], use_mems=True)
        return (out.logits, *out.mems)


def _xlnet_step() -> Made:
    config = hf.XLNetConfig(vocab_size=100, d_model=32, n_layer=2, n_head=4, d_inner=64, mem_len=12)
    memory = {name: torch.randn(12, 1, 32) for name in ("first", "second")}
    return XlnetStep(hf.XLNetLMHeadModel(config)), {"ids": torch.randint(0, 100, (1, 4)), **memory}


add(Entry("xlnet_step", "decoder", _xlnet_step, {"ids": {1: "seq"}}, {"seq": (1, 16)}))
