"""More decoders and encoders of text of the library transformers: a table of their configurations."""

from __future__ import annotations

from typing import Any

from zoo.models.encoders import T5
from zoo.models.language import WIDTH, add_decoders

_EXPERTS: dict[str, Any] = {
    **WIDTH,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
_STATE: dict[str, Any] = {
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "use_mamba_kernels": False,
}

_PLAIN = {key: value for key, value in WIDTH.items() if key not in ("head_dim", "num_key_value_heads")}
_GROUPED: dict[str, Any] = {
    **_EXPERTS,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
_GEMMA: dict[str, Any] = {
    **WIDTH,
    "sliding_window": 8,
    "vocab_size_per_layer_input": 100,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 0,
    "layer_types": ["sliding_attention", "full_attention"],
}

_DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "afmoe": (
        "AfmoeForCausalLM",
        {**_EXPERTS, "num_dense_layers": 1, "sliding_window": 8, "global_attn_every_n_layers": 2},
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        {
            **_GROUPED,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 8,
            "num_key_value_heads": 4,
        },
    ),
    "dots1": ("Dots1ForCausalLM", _GROUPED),
    "gemma3n": (
        "Gemma3nForCausalLM",
        {**_GEMMA, "laurel_rank": 8, "activation_sparsity_pattern": [0.5, 0.0], "altup_num_inputs": 2},
    ),
    "gemma4": ("Gemma4ForCausalLM", {**_GEMMA, "global_head_dim": 8}),
    "jina_v3": ("JinaEmbeddingsV3Model", _PLAIN),
    "markuplm": ("MarkupLMModel", {**_PLAIN, "max_depth": 4, "xpath_unit_hidden_size": 8}),
    "mimo_v2": (
        "MiMoV2FlashForCausalLM",
        {
            **_GROUPED,
            "v_head_dim": 8,
            "swa_head_dim": 8,
            "swa_v_head_dim": 8,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 2,
            "sliding_window": 8,
        },
    ),
    "phimoe": ("PhimoeForCausalLM", _EXPERTS),
    "apertus": ("ApertusForCausalLM", WIDTH),
    "arcee": ("ArceeForCausalLM", WIDTH),
    "bitnet": ("BitNetForCausalLM", WIDTH),
    "cohere2": ("Cohere2ForCausalLM", {**WIDTH, "sliding_window": 8}),
    "diffllama": ("DiffLlamaForCausalLM", WIDTH),
    "doge": ("DogeForCausalLM", WIDTH),
    "ernie4_5": ("Ernie4_5ForCausalLM", WIDTH),
    "exaone4": ("Exaone4ForCausalLM", {**WIDTH, "sliding_window": 8, "sliding_window_pattern": 2}),
    "falcon_h1": (
        "FalconH1ForCausalLM",
        {**WIDTH, **_STATE, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_ssm": 64, "mamba_n_groups": 1},
    ),
    "falcon_mamba": (
        "FalconMambaForCausalLM",
        {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 1, "state_size": 4},
    ),
    "gpt_neox_japanese": (
        "GPTNeoXJapaneseForCausalLM",
        {**WIDTH, "intermediate_multiple_size": 2},
    ),
    "granitemoe": ("GraniteMoeForCausalLM", _EXPERTS),
    "helium": ("HeliumForCausalLM", WIDTH),
    "hunyuan": ("HunYuanDenseV1ForCausalLM", WIDTH),
    "jetmoe": ("JetMoeForCausalLM", {**_EXPERTS, "kv_channels": 8, "num_key_value_heads": 2}),
    "jamba": (
        "JambaForCausalLM",
        {**_EXPERTS, **_STATE, "mamba_dt_rank": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    ),
    "kimi_linear": (
        "KimiLinearForCausalLM",
        {
            **_EXPERTS,
            "q_lora_rank": None,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 8,
            "num_key_value_heads": 4,
            "num_experts_per_token": 2,
            "linear_head_dim": 8,
            "linear_num_heads": 4,
            "layer_types": ["linear_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse"],
        },
    ),
    "minimax": (
        "MiniMaxForCausalLM",
        {**_EXPERTS, "block_size": 8, "layer_types": ["linear_attention", "full_attention"]},
    ),
    "mamba2": (
        "Mamba2ForCausalLM",
        {
            "vocab_size": 100,
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "state_size": 8,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 1,
            "chunk_size": 8,
        },
    ),
    "nanochat": ("NanoChatForCausalLM", WIDTH),
    "olmo3": ("Olmo3ForCausalLM", {**WIDTH, "sliding_window": 8}),
    "olmoe": ("OlmoeForCausalLM", _EXPERTS),
    "qwen3_moe": ("Qwen3MoeForCausalLM", _EXPERTS),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        {
            **_EXPERTS,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "shared_expert_intermediate_size": 16,
        },
    ),
    "seed_oss": ("SeedOssForCausalLM", WIDTH),
    "xlstm": (
        "xLSTMForCausalLM",
        {
            "vocab_size": 100,
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_blocks": 1,
            "num_heads": 2,
            "chunk_size": 8,
        },
    ),
    "bert_generation": ("BertGenerationEncoder", {**WIDTH}),
    "eurobert": ("EuroBertModel", WIDTH),
    "modernbert_decoder": (
        "ModernBertDecoderForCausalLM",
        {**WIDTH, "local_attention": 8, "cls_token_id": 3, "sep_token_id": 4},
    ),
    "nomic_bert": ("NomicBertModel", WIDTH),
    "roberta_prelayernorm": ("RobertaPreLayerNormModel", WIDTH),
    "roc_bert": (
        "RoCBertModel",
        {
            **WIDTH,
            "pronunciation_vocab_size": 50,
            "shape_vocab_size": 50,
            "enable_pronunciation": False,
            "enable_shape": False,
        },
    ),
    "splinter": ("SplinterModel", WIDTH),
    "xlm_roberta_xl": ("XLMRobertaXLModel", WIDTH),
    "xmod": ("XmodModel", {**WIDTH, "languages": ["en_XX"], "default_language": "en_XX"}),
    "mt5": ("MT5EncoderModel", T5),
    "umt5": ("UMT5EncoderModel", T5),
    "reformer": (
        "ReformerModel",
        {
            **WIDTH,
            "attn_layers": ["local", "local"],
            "axial_pos_embds": False,
            "attention_head_size": 8,
            "local_attn_chunk_length": 6,
            "feed_forward_size": 64,
        },
    ),
}

add_decoders(_DECODERS)
