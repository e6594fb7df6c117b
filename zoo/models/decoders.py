"""One step of decoders, with the past as an input and the present as an output."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import nn
from transformers import DynamicCache, EncoderDecoderCache

from zoo.catalogue import Made, entry
from zoo.models.speech import whisper
from zoo.models.text import SMALL, t5_config

STEP = {"mask": {1: "past + 1"}, "past": {4: "past"}}
SIZES = {"past": (1, 48)}
LAYERS = 2


def _cache(past: Any) -> Any:
    return DynamicCache([(past[layer, 0], past[layer, 1]) for layer in range(LAYERS)])


def _present(cache: Any) -> Any:
    return torch.stack([torch.stack((layer.keys, layer.values)) for layer in cache.layers])


class Step(nn.Module):
    """One token of a decoder; `past`: (layers, 2, 1, heads, past, size of a head)."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: Any, mask: Any, past: Any) -> Any:
        out = self.net(input_ids=ids, attention_mask=mask, past_key_values=_cache(past), use_cache=True)
        return out.logits, _present(out.past_key_values)


def _step(net: Any, heads: int, past: int = 9) -> Made:
    return Step(net), {
        "ids": torch.randint(0, 100, (1, 1)),
        "mask": torch.ones(1, past + 1, dtype=torch.int64),
        "past": torch.randn(LAYERS, 2, 1, heads, past, 16),
    }


@entry("decoder", STEP, SIZES)
def gpt2() -> Made:
    config = hf.GPT2Config(vocab_size=100, n_embd=64, n_layer=2, n_head=4, n_positions=64)
    return _step(hf.GPT2LMHeadModel(config), 4)


@entry("decoder", STEP, SIZES)
def llama() -> Made:
    config = hf.LlamaConfig(num_key_value_heads=2, max_position_embeddings=64, **SMALL)
    return _step(hf.LlamaForCausalLM(config), 2)


@entry("decoder", STEP, SIZES)
def qwen3() -> Made:
    config = hf.Qwen3Config(num_key_value_heads=2, head_dim=16, max_position_embeddings=64, **SMALL)
    return _step(hf.Qwen3ForCausalLM(config), 2)


@entry("decoder", STEP, SIZES)
def gemma2() -> Made:
    config = hf.Gemma2Config(
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        layer_types=["full_attention", "full_attention"],
        **SMALL,
    )
    return _step(hf.Gemma2ForCausalLM(config), 2)


class CrossStep(nn.Module):
    """One token of a decoder that also attends to the states of an encoder, which may have a mask."""

    def __init__(self, decoder: Any, head: Any, *names: str) -> None:
        super().__init__()
        self.decoder, self.head, self.names = decoder, head, names

    def forward(self, ids: Any, past: Any, *source: Any) -> Any:
        out = self.decoder(
            input_ids=ids,
            past_key_values=EncoderDecoderCache(_cache(past), DynamicCache()),
            use_cache=True,
            **dict(zip(self.names, source, strict=True)),
        )
        return self.head(out.last_hidden_state), _present(out.past_key_values.self_attention_cache)


def _cross(past: int = 5) -> dict[str, Any]:
    return {"ids": torch.randint(0, 100, (1, 1)), "past": torch.randn(LAYERS, 2, 1, 4, past, 16)}


@entry(
    "decoder",
    {"past": {4: "past"}, "hidden": {1: "source"}, "mask": {1: "source"}},
    {"past": (1, 32), "source": (2, 48)},
)
def t5_decoder() -> Made:
    net = hf.T5ForConditionalGeneration(t5_config())
    step = CrossStep(net.decoder, net.lm_head, "encoder_hidden_states", "encoder_attention_mask")
    source = {"hidden": torch.randn(1, 12, 64), "mask": torch.ones(1, 12, dtype=torch.int64)}
    return step, {**_cross(), **source}


@entry("decoder", {"past": {4: "past"}}, SIZES)
def whisper_decoder() -> Made:
    net = whisper()
    step = CrossStep(net.model.decoder, net.proj_out, "encoder_hidden_states")
    return step, {**_cross(), "hidden": torch.randn(1, 100, 64)}
