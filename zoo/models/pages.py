"""More networks of images, and of pages of text, of the library transformers: a table."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

from zoo.models.named import BATCH, BOXES, IMAGE, LENGTH, RESNET, RT_DETR, TEXT, Kind, add_all, pixels, words


def boxes_of(length: int = 12) -> Any:
    """Boxes of words on a page: (1, length, 4)."""
    corner = torch.randint(0, 400, (1, length, 2))
    return torch.cat((corner, corner + torch.randint(10, 90, (1, length, 2))), -1)


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
            "backbone_config": hf.ResNetConfig(**RESNET, out_features=["stage4"]),
        },
        pixels,
        BOXES,
        **BATCH,
    ),
    "rt_detr_v2": Kind(
        "RTDetrV2ForObjectDetection",
        lambda: {
            "backbone_config": hf.RTDetrResNetConfig(**RESNET, out_indices=[2, 3, 4]),
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
}
add_all("vision", _KINDS)
