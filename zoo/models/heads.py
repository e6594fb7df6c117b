"""Detectors and networks of masks and depth, of the library transformers: a table of their configurations."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import nn

from zoo.catalogue import Entry, Made, add
from zoo.models.named import BATCH, BOXES, DETR_LAYERS, IMAGE, RESNET, RT_DETR, SWIN, Kind, add_all, pixels

_DETR = {
    "d_model": 32,
    **DETR_LAYERS,
    "num_queries": 12,
    "num_labels": 5,
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
}
_MASKS = ("class_queries_logits", "masks_queries_logits")


def _resnet() -> Any:
    return hf.ResNetConfig(**RESNET, out_features=["stage4"])


def _levels() -> Any:
    return hf.ResNetConfig(**RESNET, out_features=["stage2", "stage3", "stage4"])


_KINDS: dict[str, Kind] = {
    "detr_hf": Kind(
        "DetrForObjectDetection", lambda: {**_DETR, "backbone_config": _resnet()}, pixels, BOXES, **BATCH
    ),
    "detr_segmentation": Kind(
        "DetrForSegmentation",
        lambda: {
            **_DETR,
            "backbone_config": hf.ResNetConfig(
                **RESNET, out_features=["stage1", "stage2", "stage3", "stage4"]
            ),
        },
        pixels,
        (*BOXES, "pred_masks"),
    ),
    "conditional_detr": Kind(
        "ConditionalDetrForObjectDetection",
        lambda: {**_DETR, "backbone_config": _resnet()},
        pixels,
        BOXES,
        **BATCH,
    ),
    "dab_detr": Kind(
        "DabDetrForObjectDetection",
        lambda: {
            **{key: value for key, value in _DETR.items() if key != "d_model"},
            "hidden_size": 32,
            "backbone_config": _resnet(),
        },
        pixels,
        BOXES,
        **BATCH,
    ),
    "deformable_detr": Kind(
        "DeformableDetrForObjectDetection",
        lambda: {**_DETR, "d_model": 64, "backbone_config": _levels()},
        lambda: pixels(128),  # the exporter's linspace of one step divides 0 by 0
        BOXES,
        **BATCH,
    ),
    "d_fine": Kind(
        "DFineForObjectDetection",
        lambda: {
            "backbone_config": hf.HGNetV2Config(
                stem_channels=[3, 8, 8],
                stage_in_channels=[8, 16, 16, 16],
                stage_mid_channels=[8, 8, 8, 8],
                stage_out_channels=[16, 16, 16, 16],
                stage_num_blocks=[1, 1, 1, 1],
                hidden_sizes=[16, 16, 16, 16],
                out_features=["stage2", "stage3", "stage4"],
            ),
            **RT_DETR,
        },
        pixels,
        BOXES,
        **BATCH,
        scores=True,
    ),
    "maskformer": Kind(
        "MaskFormerForInstanceSegmentation",
        lambda: {
            "fpn_feature_size": 32,
            "mask_feature_size": 32,
            "num_labels": 5,
            "backbone_config": hf.SwinConfig(**SWIN, out_features=["stage1", "stage2", "stage3", "stage4"]),
            "decoder_config": hf.DetrConfig(**_DETR),
        },
        pixels,
        _MASKS,
        **BATCH,
    ),
    "mask2former": Kind(
        "Mask2FormerForUniversalSegmentation",
        lambda: {
            "backbone_config": hf.SwinConfig(**SWIN, out_features=["stage1", "stage2", "stage3", "stage4"]),
            "feature_size": 32,
            "mask_feature_size": 32,
            "hidden_dim": 32,
            "encoder_feedforward_dim": 64,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "num_attention_heads": 4,
            "dim_feedforward": 64,
            "num_queries": 8,
            "num_labels": 5,
        },
        pixels,
        _MASKS,
        **BATCH,
    ),
    "groupvit": Kind(
        "GroupViTVisionModel",
        lambda: {
            **IMAGE,
            "depths": [1, 1, 1],
            "num_group_tokens": [6, 4, 0],
            "num_output_groups": [6, 4, 0],
        },
        pixels,
        ("last_hidden_state", "pooler_output"),
        **BATCH,
    ),
    "zoedepth": Kind(
        "ZoeDepthForDepthEstimation",
        lambda: {
            "backbone_config": hf.BeitConfig(
                **{**IMAGE, "num_hidden_layers": 4},
                out_indices=[1, 2, 3, 4],
                reshape_hidden_states=False,
                use_relative_position_bias=True,
            ),
            "backbone_hidden_size": 32,
            "neck_hidden_sizes": [8, 16, 16, 16],
            "fusion_hidden_size": 16,
            "bottleneck_features": 16,
            "num_relative_features": 8,
            "bin_embedding_dim": 8,
            "num_attractors": [4, 2, 2, 1],
            "bin_configurations": [{"n_bins": 8, "min_depth": 0.001, "max_depth": 10.0, "name": "room"}],
            "num_patch_transformer_layers": 1,
            "patch_transformer_hidden_size": 16,
            "patch_transformer_intermediate_size": 32,
            "patch_transformer_num_attention_heads": 2,
        },
        pixels,
        ("predicted_depth",),
        **BATCH,
    ),
    "vitmatte": Kind(
        "VitMatteForImageMatting",
        lambda: {
            "backbone_config": hf.VitDetConfig(
                **IMAGE, num_channels=4, window_size=2, window_block_indices=[0], out_features=["stage2"]
            ),
            "hidden_size": 32,
            "fusion_hidden_sizes": [32, 16, 8, 8],
            "convstream_hidden_sizes": [8, 8, 16],
        },
        lambda: {"image": ("pixel_values", torch.randn(1, 4, 64, 64))},
        ("alphas",),
        **BATCH,
    ),
    "superpoint_hf": Kind(
        "SuperPointForKeypointDetection",
        lambda: {
            "encoder_hidden_sizes": [8, 8, 16, 16],
            "decoder_hidden_size": 16,
            "keypoint_decoder_dim": 65,
        },
        pixels,
        ("keypoints", "scores", "descriptors"),
    ),
}
add_all("heads", _KINDS)


class Masks(nn.Module):
    """SAM's decoder of masks: points and an image's embedding."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, embedding: Any, points: Any, labels: Any) -> Any:
        out = self.net(image_embeddings=embedding, input_points=points, input_labels=labels)
        return out.pred_masks, out.iou_scores


def _sam_masks() -> Made:
    vision = {**IMAGE, "output_channels": 16, "num_pos_feats": 8, "window_size": 2, "mlp_dim": 64}
    prompt = {"hidden_size": 16, "image_size": 64, "patch_size": 16, "image_embedding_size": 4}
    mask = {
        "hidden_size": 16,
        "mlp_dim": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "iou_head_hidden_dim": 16,
    }
    net = hf.SamModel(
        hf.SamConfig(
            vision_config=vision,
            prompt_encoder_config={**prompt, "mask_input_channels": 8},
            mask_decoder_config=mask,
        )
    )
    return Masks(net), {
        "embedding": torch.randn(1, 16, 4, 4),
        "points": torch.rand(1, 1, 2, 2) * 64,
        "labels": torch.tensor([[[1, 0]]]),
    }


add(
    Entry(
        "sam_masks",
        "heads",
        _sam_masks,
        {"points": {2: "points"}, "labels": {2: "points"}},
        {"points": (1, 6)},
    )
)
