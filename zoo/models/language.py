"""Decoders of the library transformers over a whole sequence: a table of their configurations."""

from __future__ import annotations

from typing import Any

import torch

from zoo.catalogue import Entry, Made, add
from zoo.models.encoders import First, made

WIDTH: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_PLAIN = {key: value for key, value in WIDTH.items() if key != "head_dim"}
_GPT = {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_EXPERTS = {
    **WIDTH,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}

_DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "biogpt": ("BioGptForCausalLM", WIDTH),
    "bloom": ("BloomForCausalLM", {"vocab_size": 100, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "codegen": ("CodeGenForCausalLM", {**_GPT, "n_ctx": 64, "rotary_dim": 4}),
    "cohere": ("CohereForCausalLM", WIDTH),
    "ctrl": ("CTRLLMHeadModel", {**_GPT, "dff": 64}),
    "deepseek_v2": (
        "DeepseekV2ForCausalLM",
        {
            **_EXPERTS,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 8,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "num_key_value_heads": 4,
        },
    ),
    "falcon": ("FalconForCausalLM", {**_PLAIN, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon_alibi": ("FalconForCausalLM", {**_PLAIN, "alibi": True, "multi_query": True}),
    "gemma": ("GemmaForCausalLM", WIDTH),
    "gemma3": ("Gemma3ForCausalLM", {**WIDTH, "sliding_window": 8, "query_pre_attn_scalar": 8}),
    "glm4": ("Glm4ForCausalLM", WIDTH),
    "gpt_bigcode": ("GPTBigCodeForCausalLM", {**_GPT, "multi_query": True}),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        {
            "vocab_size": 100,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
            "max_position_embeddings": 64,
        },
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", WIDTH),
    "gpt_oss": ("GptOssForCausalLM", {**_EXPERTS, "sliding_window": 8}),
    "gptj": ("GPTJForCausalLM", {**_GPT, "rotary_dim": 4}),
    "granite": ("GraniteForCausalLM", WIDTH),
    "lfm2": ("Lfm2ForCausalLM", {**WIDTH, "layer_types": ["conv", "full_attention"]}),
    "mamba": (
        "MambaForCausalLM",
        {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 1, "state_size": 4},
    ),
    "mistral": ("MistralForCausalLM", {**WIDTH, "sliding_window": 8}),
    "mixtral": ("MixtralForCausalLM", _EXPERTS),
    "mpt": (
        "MptForCausalLM",
        {"vocab_size": 100, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64},
    ),
    "nemotron": ("NemotronForCausalLM", WIDTH),
    "olmo2": ("Olmo2ForCausalLM", WIDTH),
    "openai_gpt": ("OpenAIGPTLMHeadModel", _GPT),
    "opt": ("OPTForCausalLM", {**WIDTH, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "persimmon": ("PersimmonForCausalLM", WIDTH),
    "phi": ("PhiForCausalLM", WIDTH),
    "phi3": ("Phi3ForCausalLM", WIDTH),
    "qwen2": ("Qwen2ForCausalLM", WIDTH),
    "qwen2_moe": ("Qwen2MoeForCausalLM", {**_EXPERTS, "shared_expert_intermediate_size": 16}),
    "recurrent_gemma": (
        "RecurrentGemmaForCausalLM",
        {**WIDTH, "lru_width": 32, "attention_window_size": 16},
    ),
    "rwkv": ("RwkvForCausalLM", {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2}),
    "smollm3": ("SmolLM3ForCausalLM", WIDTH),
    "stablelm": ("StableLmForCausalLM", WIDTH),
    "starcoder2": ("Starcoder2ForCausalLM", WIDTH),
    "xglm": (
        "XGLMForCausalLM",
        {"vocab_size": 100, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64},
    ),
}


def _decoder(name: str, config: dict[str, Any], length: int = 12) -> Made:
    more = {"use_cache": False} if name.endswith(("ForCausalLM", "LMHeadModel")) else {}
    net = First(made(name, config), "input_ids", "attention_mask", **more)
    return net, {"ids": torch.randint(3, 99, (1, length)), "mask": torch.ones(1, length, dtype=torch.int64)}


def add_decoders(table: dict[str, tuple[str, dict[str, Any]]]) -> None:
    """Add the networks of a table, by name their class and configuration, to the zoo; each reads one text."""
    axes = {"ids": {1: "seq"}, "mask": {1: "seq"}}
    for name, row in table.items():
        add(Entry(name, "language", lambda row=row: _decoder(*row), axes, {"seq": (2, 32)}))  # type: ignore[misc]


add_decoders(_DECODERS)
