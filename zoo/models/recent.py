"""More networks of the library transformers: recent decoders, images, sound, series, documents."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from zoo.catalogue import Entry, Made, add
from zoo.models.encoders import First, made
from zoo.models.named import BATCH, BOXES, IMAGE, LENGTH, RT_DETR, TEXT, Kind, add_all, pixels, words

_WIDTH: dict[str, Any] = {
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
_EXPERTS: dict[str, Any] = {
    **_WIDTH,
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

_DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "apertus": ("ApertusForCausalLM", _WIDTH),
    "arcee": ("ArceeForCausalLM", _WIDTH),
    "bitnet": ("BitNetForCausalLM", _WIDTH),
    "cohere2": ("Cohere2ForCausalLM", {**_WIDTH, "sliding_window": 8}),
    "diffllama": ("DiffLlamaForCausalLM", _WIDTH),
    "doge": ("DogeForCausalLM", _WIDTH),
    "ernie4_5": ("Ernie4_5ForCausalLM", _WIDTH),
    "exaone4": ("Exaone4ForCausalLM", {**_WIDTH, "sliding_window": 8, "sliding_window_pattern": 2}),
    "falcon_h1": (
        "FalconH1ForCausalLM",
        {**_WIDTH, **_STATE, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_ssm": 64, "mamba_n_groups": 1},
    ),
    "falcon_mamba": (
        "FalconMambaForCausalLM",
        {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 1, "state_size": 4},
    ),
    "gpt_neox_japanese": (
        "GPTNeoXJapaneseForCausalLM",
        {**_WIDTH, "intermediate_multiple_size": 2},
    ),
    "granitemoe": ("GraniteMoeForCausalLM", _EXPERTS),
    "helium": ("HeliumForCausalLM", _WIDTH),
    "hunyuan": ("HunYuanDenseV1ForCausalLM", _WIDTH),
    "jetmoe": ("JetMoeForCausalLM", {**_EXPERTS, "kv_channels": 8, "num_key_value_heads": 2}),
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
    "nanochat": ("NanoChatForCausalLM", _WIDTH),
    "olmo3": ("Olmo3ForCausalLM", {**_WIDTH, "sliding_window": 8}),
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
    "seed_oss": ("SeedOssForCausalLM", _WIDTH),
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
    "bert_generation": ("BertGenerationEncoder", {**_WIDTH}),
    "eurobert": ("EuroBertModel", _WIDTH),
    "modernbert_decoder": (
        "ModernBertDecoderForCausalLM",
        {**_WIDTH, "local_attention": 8, "cls_token_id": 3, "sep_token_id": 4},
    ),
    "nomic_bert": ("NomicBertModel", _WIDTH),
    "roberta_prelayernorm": ("RobertaPreLayerNormModel", _WIDTH),
    "roc_bert": (
        "RoCBertModel",
        {
            **_WIDTH,
            "pronunciation_vocab_size": 50,
            "shape_vocab_size": 50,
            "enable_pronunciation": False,
            "enable_shape": False,
        },
    ),
    "splinter": ("SplinterModel", _WIDTH),
    "xlm_roberta_xl": ("XLMRobertaXLModel", _WIDTH),
    "xmod": ("XmodModel", {**_WIDTH, "languages": ["en_XX"], "default_language": "en_XX"}),
    "mt5": (
        "MT5EncoderModel",
        {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
    ),
    "umt5": (
        "UMT5EncoderModel",
        {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
    ),
    "reformer": (
        "ReformerModel",
        {
            **_WIDTH,
            "attn_layers": ["local", "local"],
            "axial_pos_embds": False,
            "attention_head_size": 8,
            "local_attn_chunk_length": 6,
            "feed_forward_size": 64,
        },
    ),
}


def _decoder(name: str, length: int = 12) -> Made:
    cls = _DECODERS[name][0]
    more = {"use_cache": False} if "ForCausalLM" in cls else {}
    net = First(made(*_DECODERS[name]), "input_ids", "attention_mask", **more)
    return net, {"ids": torch.randint(3, 99, (1, length)), "mask": torch.ones(1, length, dtype=torch.int64)}


_AXES = {"ids": {1: "seq"}, "mask": {1: "seq"}}
for _name in _DECODERS:
    add(Entry(_name, "language", lambda n=_name: _decoder(n), _AXES, {"seq": (2, 32)}))  # type: ignore[misc]


def boxes_of(length: int = 12) -> Any:
    """Boxes of words on a page: (1, length, 4)."""
    corner = torch.randint(0, 400, (1, length, 2))
    return torch.cat((corner, corner + torch.randint(10, 90, (1, length, 2))), -1)


_RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]}
_BOXED: dict[str, Any] = {
    "axes": {name: {1: "seq"} for name in ("ids", "mask", "boxes")},
    "ranges": {"seq": (2, 32)},
}

_KINDS: dict[str, Kind] = {
    "lilt": Kind(
        "LiltForTokenClassification",
        lambda: {
            **TEXT,
            "hidden_size": 48,
            "channel_shrink_ratio": 2,
            "max_2d_position_embeddings": 512,
            "num_labels": 3,
        },
        lambda: {**words(), "boxes": ("bbox", boxes_of())},
        ("logits",),
        **_BOXED,
    ),
    "bros": Kind(
        "BrosModel",
        lambda: {**TEXT, "hidden_size": 64, "dim_bbox": 8, "bbox_scale": 100.0},
        lambda: {**words(), "boxes": ("bbox", torch.rand(1, 12, 8))},
        ("last_hidden_state",),
        **_BOXED,
    ),
    "layoutlmv3": Kind(
        "LayoutLMv3ForTokenClassification",
        lambda: {
            **TEXT,
            "max_2d_position_embeddings": 512,
            "coordinate_size": 5,
            "shape_size": 6,
            "input_size": 64,
            "num_labels": 3,
        },
        lambda: {**words(), "boxes": ("bbox", boxes_of()), **pixels()},
        ("logits",),
        **_BOXED,
    ),
    "blip_image": Kind(
        "BlipVisionModel", lambda: IMAGE, pixels, ("last_hidden_state", "pooler_output"), **BATCH
    ),
    "vilt": Kind(
        "ViltModel",
        lambda: {**TEXT, **IMAGE, "max_image_length": 16},
        lambda: {**words(), **pixels()},
        ("last_hidden_state", "pooler_output"),
        **LENGTH,
    ),
    "lxmert": Kind(
        "LxmertModel",
        lambda: {
            **TEXT,
            "l_layers": 1,
            "x_layers": 1,
            "r_layers": 1,
            "visual_feat_dim": 16,
            "num_attention_heads": 4,
        },
        lambda: {
            **words(),
            "seen": ("visual_feats", torch.randn(1, 5, 16)),
            "places": ("visual_pos", torch.rand(1, 5, 4)),
        },
        ("language_output", "vision_output"),
        **LENGTH,
    ),
    "table_transformer": Kind(
        "TableTransformerForObjectDetection",
        lambda: {
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "num_queries": 8,
            "num_labels": 3,
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone": None,
            "backbone_config": hf.ResNetConfig(**_RESNET, out_features=["stage4"]),
        },
        pixels,
        BOXES,
        **BATCH,
    ),
    "rt_detr_v2": Kind(
        "RTDetrV2ForObjectDetection",
        lambda: {
            "backbone_config": hf.RTDetrResNetConfig(**_RESNET, out_indices=[2, 3, 4]),
            **RT_DETR,
            "anchor_image_size": None,
        },
        pixels,
        BOXES,
        **BATCH,
        scores=True,
    ),
    "owlv2": Kind(
        "Owlv2ForObjectDetection",
        lambda: {"text_config": {**TEXT}, "vision_config": {**IMAGE}, "projection_dim": 32},
        lambda: {**words(), **pixels()},
        BOXES,
        **LENGTH,
    ),
    "hiera_hf": Kind(
        "HieraForImageClassification",
        lambda: {
            "embed_dim": 16,
            "image_size": [64, 64],
            "depths": [1, 1, 1],
            "num_heads": [1, 2, 4],
            "num_query_pool": 2,
            "masked_unit_size": [4, 4],
            "num_labels": 5,
        },
        pixels,
        ("logits",),
        **BATCH,
    ),
    "swiftformer_hf": Kind(
        "SwiftFormerForImageClassification",
        lambda: {"image_size": 64, "depths": [1, 1, 1, 1], "embed_dims": [16, 16, 24, 32], "num_labels": 5},
        pixels,
        ("logits",),
        **BATCH,
    ),
    "pvt_v2_hf": Kind(
        "PvtV2ForImageClassification",
        lambda: {
            "hidden_sizes": [8, 16, 24, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 3, 4],
            "num_labels": 5,
        },
        pixels,
        ("logits",),
        **BATCH,
    ),
    "mobilevitv2_hf": Kind(
        "MobileViTV2ForSemanticSegmentation",
        lambda: {"image_size": 64, "width_multiplier": 0.5, "num_labels": 5},
        pixels,
        ("logits",),
        **BATCH,
    ),
    "efficientnet_hf": Kind(
        "EfficientNetForImageClassification",
        lambda: {
            "image_size": 64,
            "width_coefficient": 0.25,
            "depth_coefficient": 0.5,
            "hidden_dim": 320,
            "num_labels": 5,
        },
        pixels,
        ("logits",),
        **BATCH,
    ),
    "dinov3_convnext": Kind(
        "DINOv3ConvNextModel",
        lambda: {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
        pixels,
        ("last_hidden_state", "pooler_output"),
        **BATCH,
    ),
    "ijepa": Kind("IJepaModel", lambda: IMAGE, pixels, ("last_hidden_state",), **BATCH),
    "eomt": Kind(
        "EomtForUniversalSegmentation",
        lambda: {**IMAGE, "num_blocks": 1, "num_queries": 6, "num_labels": 5, "num_upscale_blocks": 1},
        pixels,
        ("masks_queries_logits", "class_queries_logits"),
        **BATCH,
    ),
    "prompt_depth": Kind(
        "PromptDepthAnythingForDepthEstimation",
        lambda: {
            "backbone_config": hf.Dinov2Config(
                **{**IMAGE, "image_size": 56, "patch_size": 14, "num_hidden_layers": 4},
                out_indices=[1, 2, 3, 4],
                reshape_hidden_states=False,
            ),
            "patch_size": 14,
            "reassemble_hidden_size": 32,
            "neck_hidden_sizes": [8, 16, 16, 16],
            "fusion_hidden_size": 16,
            "head_hidden_size": 8,
        },
        lambda: {**pixels(56), "depth": ("prompt_depth", torch.rand(1, 1, 14, 14))},
        ("predicted_depth",),
    ),
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
            "padding": ("past_values_padding", torch.zeros(2, 80, dtype=torch.int64)[:, :64]),
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
        lambda: {
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
            "label_length": 8,
        },
        lambda: {
            "values": ("past_values", torch.randn(1, 26)),
            "times": ("past_time_features", torch.randn(1, 26, 2)),
            "seen": ("past_observed_mask", torch.ones(1, 26)),
            "next": ("future_values", torch.randn(1, 8)),
            "next_times": ("future_time_features", torch.randn(1, 8, 2)),
        },
        ("last_hidden_state",),
    ),
    "informer": Kind(
        "InformerModel",
        lambda: {
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
        },
        lambda: {
            "values": ("past_values", torch.randn(1, 26)),
            "times": ("past_time_features", torch.randn(1, 26, 2)),
            "seen": ("past_observed_mask", torch.ones(1, 26)),
            "next": ("future_values", torch.randn(1, 8)),
            "next_times": ("future_time_features", torch.randn(1, 8, 2)),
        },
        ("last_hidden_state",),
    ),
}
add_all("recent", _KINDS)
