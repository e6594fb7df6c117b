"""More networks of sound and of series of the library transformers, and parts of readers and painters."""

from __future__ import annotations

from typing import Any

import torch

from zoo.models.named import IMAGE, TEXT, Kind, add_all, pixels

_FORECAST = {
    "prediction_length": 8,
    "context_length": 24,
    "lags_sequence": [1, 2],
    "num_time_features": 2,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}


def _series() -> dict[str, Any]:
    """The inputs of a forecast: 26 past values, 8 future ones and their features."""
    return {
        "values": ("past_values", torch.randn(1, 26)),
        "times": ("past_time_features", torch.randn(1, 26, 2)),
        "seen": ("past_observed_mask", torch.ones(1, 26)),
        "next": ("future_values", torch.randn(1, 8)),
        "next_times": ("future_time_features", torch.randn(1, 8, 2)),
    }


_KINDS: dict[str, Kind] = {
    "patchtst_hf": Kind(
        "PatchTSTForPrediction",
        lambda: {
            "num_input_channels": 3,
            "context_length": 32,
            "patch_length": 4,
            "patch_stride": 4,
            "prediction_length": 8,
            "d_model": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 64,
            "loss": "mse",
        },
        lambda: {"values": ("past_values", torch.randn(2, 32, 3))},
        ("prediction_outputs",),
        {"values": {0: "batch"}},
        {"batch": (1, 4)},
    ),
    "timesfm": Kind(
        "TimesFmModel",
        lambda: {
            "patch_length": 8,
            "context_length": 64,
            "horizon_length": 16,
            "num_hidden_layers": 2,
            "hidden_size": 32,
            "intermediate_size": 64,
            "head_dim": 8,
            "num_attention_heads": 4,
        },
        lambda: {
            "values": ("past_values", torch.randn(2, 64)),
            "padding": ("past_values_padding", torch.zeros(2, 64, dtype=torch.int64)),
            "freq": ("freq", torch.zeros(2, 1, dtype=torch.int64)),
        },
        ("last_hidden_state",),
        {name: {0: "batch"} for name in ("values", "padding", "freq")},
        {"batch": (1, 4)},
    ),
    "univnet": Kind(
        "UnivNetModel",
        lambda: {
            "num_mel_bins": 16,
            "resblock_kernel_sizes": [3],
            "resblock_stride_sizes": [4],
            "resblock_dilation_sizes": [[1, 3]],
        },
        lambda: {
            "bands": ("input_features", torch.randn(1, 12, 16)),
            "noise": ("noise_sequence", torch.randn(1, 12, 64)),
        },
        ("waveforms",),
        {"bands": {1: "frames"}, "noise": {1: "frames"}},
        {"frames": (2, 32)},
    ),
    "mimi": Kind(
        "MimiModel",
        lambda: {
            "num_filters": 4,
            "hidden_size": 32,
            "upsampling_ratios": [4, 2],
            "num_quantizers": 4,
            "codebook_size": 16,
            "codebook_dim": 16,
            "vector_quantization_hidden_dimension": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "head_dim": 8,
            "intermediate_size": 64,
            "upsample_groups": 32,
        },
        lambda: {"sound": ("input_values", torch.randn(1, 1, 320))},
        ("audio_values", "audio_codes"),
    ),
    "clap_sound": Kind(
        "ClapAudioModel",
        lambda: {
            "window_size": 4,
            "num_mel_bins": 32,
            "spec_size": 64,
            "patch_size": 4,
            "patch_stride": [4, 4],
            "patch_embeds_hidden_size": 16,
            "hidden_size": 64,
            "depths": [1, 1, 1],
            "num_attention_heads": [2, 2, 4],
            "num_hidden_layers": 3,
            "enable_fusion": False,
        },
        lambda: {"bands": ("input_features", torch.randn(1, 1, 128, 32))},
        ("pooler_output",),
        {"bands": {0: "batch"}},
        {"batch": (1, 2)},
    ),
    "moonshine_encoder": Kind(
        "MoonshineForConditionalGeneration",
        lambda: {
            **TEXT,
            "encoder_num_hidden_layers": 1,
            "decoder_num_hidden_layers": 1,
            "encoder_num_attention_heads": 4,
            "decoder_num_attention_heads": 4,
        },
        lambda: {
            "sound": ("input_values", torch.randn(1, 2400)),
            "ids": ("decoder_input_ids", torch.randint(3, 99, (1, 5))),
        },
        ("logits",),
        {"sound": {1: "samples"}},
        {"samples": (1200, 4800)},
    ),
    "speech_to_text": Kind(
        "Speech2TextForConditionalGeneration",
        lambda: {
            "vocab_size": 100,
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "input_feat_per_channel": 16,
            "input_channels": 1,
            "conv_channels": 32,
            "max_source_positions": 100,
            "max_target_positions": 32,
        },
        lambda: {
            "bands": ("input_features", torch.randn(1, 40, 16)),
            "ids": ("decoder_input_ids", torch.randint(3, 99, (1, 5))),
        },
        ("logits",),
        {"ids": {1: "seq"}},
        {"seq": (1, 16)},
    ),
    "trocr": Kind(
        "TrOCRForCausalLM",
        lambda: {
            "vocab_size": 100,
            "d_model": 32,
            "decoder_layers": 1,
            "decoder_attention_heads": 4,
            "decoder_ffn_dim": 64,
            "cross_attention_hidden_size": 24,
            "max_position_embeddings": 32,
        },
        lambda: {
            "ids": ("input_ids", torch.randint(3, 99, (1, 5))),
            "seen": ("encoder_hidden_states", torch.randn(1, 17, 24)),
        },
        ("logits",),
        {"ids": {1: "seq"}},
        {"seq": (1, 16)},
    ),
    "vit_mae": Kind("ViTMAEModel", lambda: {**IMAGE, "mask_ratio": 0.0}, pixels, ("last_hidden_state",)),
    "seggpt": Kind(
        "SegGptModel",
        lambda: {
            **IMAGE,
            "image_size": [64, 32],
            "patch_size": 16,
            "merge_index": 0,
            "intermediate_hidden_state_indices": [1],
            "pretrain_image_size": 64,
            "decoder_hidden_size": 8,
        },
        lambda: {
            "image": ("pixel_values", torch.randn(1, 3, 32, 32)),
            "prompt": ("prompt_pixel_values", torch.randn(1, 3, 32, 32)),
            "masks": ("prompt_masks", torch.randn(1, 3, 32, 32)),
        },
        ("last_hidden_state",),
    ),
    "autoformer": Kind(
        "AutoformerModel",
        lambda: {**_FORECAST, "label_length": 8},
        _series,
        ("last_hidden_state",),
    ),
    "informer": Kind("InformerModel", lambda: _FORECAST, _series, ("last_hidden_state",)),
}
add_all("speech", _KINDS)
