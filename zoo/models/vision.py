"""Networks of images of the library transformers: a table of their configurations."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import nn

from zoo.catalogue import Entry, Made, add
from zoo.models.encoders import First, made
from zoo.models.named import RT_DETR
from zoo.prepare import spread

_VIT: dict[str, Any] = {
    "image_size": 64,
    "patch_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "num_labels": 5,
}
_FOUR = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_labels": 5}
_SWIN = {"image_size": 64, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4], "window_size": 4}

_IMAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "beit_hf": (
        "BeitForImageClassification",
        {**_VIT, "use_relative_position_bias": True, "out_indices": [1, 2]},
    ),
    "bit": ("BitForImageClassification", {**_FOUR, "embedding_size": 8, "num_groups": 4}),
    "cvt": (
        "CvtForImageClassification",
        {
            "embed_dim": [16, 32, 48],
            "num_heads": [1, 2, 3],
            "depth": [1, 1, 2],
            "num_labels": 5,
            "cls_token": [False, False, True],
        },
    ),
    "data2vec_vision": ("Data2VecVisionForImageClassification", {**_VIT, "use_relative_position_bias": True}),
    "deit_hf": ("DeiTForImageClassificationWithTeacher", _VIT),
    "dinov2_registers": ("Dinov2WithRegistersForImageClassification", {**_VIT, "num_register_tokens": 2}),
    "dinov3_vit": ("DINOv3ViTModel", {**_VIT, "num_register_tokens": 2}),
    "focalnet_hf": (
        "FocalNetForImageClassification",
        {**_SWIN, "focal_levels": [2, 2], "focal_windows": [3, 3]},
    ),
    "hgnet_v2": ("HGNetV2ForImageClassification", {"num_labels": 5}),
    "levit_hf": ("LevitForImageClassification", {"image_size": 224, "num_labels": 5}),
    "mobilenet_v1": ("MobileNetV1ForImageClassification", {"depth_multiplier": 0.25, "num_labels": 5}),
    "mobilevit_hf": ("MobileViTForImageClassification", {"image_size": 64, "num_labels": 5}),
    "poolformer_hf": ("PoolFormerForImageClassification", _FOUR),
    "pvt_hf": ("PvtForImageClassification", {**_FOUR, "image_size": 64, "num_attention_heads": [1, 2, 3, 4]}),
    "regnet_hf": ("RegNetForImageClassification", {**_FOUR, "embedding_size": 8, "groups_width": 8}),
    "siglip_image": ("SiglipVisionModel", _VIT),
    "swin2sr": (
        "Swin2SRForImageSuperResolution",
        {**_SWIN, "image_size": 16, "upscale": 2, "window_size": 4},
    ),
    "swinv2_hf": ("Swinv2ForImageClassification", _SWIN),
    "textnet": ("TextNetForImageClassification", {"num_labels": 5}),
    "vit_msn": ("ViTMSNModel", _VIT),
    "vitpose": (
        "VitPoseForPoseEstimation",
        {
            "backbone_config": hf.VitPoseBackboneConfig(
                image_size=[64, 48],
                patch_size=[16, 16],
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
            ),
            "num_labels": 5,
        },
    ),
    "yolos": ("YolosForObjectDetection", {**_VIT, "image_size": [64, 64], "num_detection_tokens": 6}),
    "glpn": (
        "GLPNForDepthEstimation",
        {
            "hidden_sizes": [8, 16, 24, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 3, 4],
            "decoder_hidden_size": 16,
        },
    ),
    "dpt_hf": (
        "DPTForDepthEstimation",
        {
            **_VIT,
            "num_hidden_layers": 4,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 16, 16, 16],
            "fusion_hidden_size": 16,
        },
    ),
    "depth_anything": (
        "DepthAnythingForDepthEstimation",
        {
            "backbone_config": hf.Dinov2Config(
                **{**_VIT, "image_size": 56, "patch_size": 14, "num_hidden_layers": 4},
                out_indices=[1, 2, 3, 4],
                reshape_hidden_states=False,
            ),
            "patch_size": 14,
            "reassemble_hidden_size": 32,
            "neck_hidden_sizes": [8, 16, 16, 16],
            "fusion_hidden_size": 16,
            "head_hidden_size": 8,
        },
    ),
    "mobilenet_v2_deeplab": (
        "MobileNetV2ForSemanticSegmentation",
        {"depth_multiplier": 0.35, "num_labels": 5},
    ),
    "upernet": (
        "UperNetForSemanticSegmentation",
        {
            "backbone_config": hf.ConvNextConfig(
                hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], out_indices=[1, 2, 3, 4]
            ),
            "hidden_size": 16,
            "auxiliary_in_channels": 24,
            "auxiliary_channels": 8,
            "num_labels": 5,
        },
    ),
    "pp_lcnet": ("PPLCNetForImageClassification", {"num_labels": 5}),
    "rt_detr": (
        "RTDetrForObjectDetection",
        {
            "backbone_config": hf.RTDetrResNetConfig(
                embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], out_indices=[2, 3, 4]
            ),
            **RT_DETR,
            "anchor_image_size": None,
        },
    ),
    "vitdet": (
        "VitDetModel",
        {**_VIT, "window_size": 2, "window_block_indices": [0], "use_relative_position_embeddings": True},
    ),
    "sam_image": (
        "SamVisionModel",
        {
            **_VIT,
            "output_channels": 16,
            "window_size": 2,
            "global_attn_indexes": [1],
            "num_pos_feats": 8,
            "mlp_dim": 64,
        },
    ),
}
_SIDES = {"swin2sr": (16, 16), "levit_hf": (224, 224), "vitpose": (64, 48), "depth_anything": (56, 56)}


def _image(name: str) -> Made:
    height, width = _SIDES.get(name, (64, 64))
    net = First(made(*_IMAGES[name]), "pixel_values")
    if name == "rt_detr":
        spread(net)
    return net, {"image": torch.randn(1, 3, height, width)}


for _name in _IMAGES:
    add(Entry(_name, "vision", lambda n=_name: _image(n), {"image": {0: "batch"}}, {"batch": (1, 3)}))  # type: ignore[misc]


class Frames(nn.Module):
    """A network of video."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, frames: Any) -> Any:
        return self.net(frames, return_dict=False)[0]


_VIDEO: dict[str, tuple[str, dict[str, Any], int]] = {
    "timesformer": ("TimesformerModel", {**_VIT, "num_frames": 4}, 4),
    "videomae": ("VideoMAEModel", {**_VIT, "num_frames": 4}, 4),
    "vivit": ("VivitModel", {**_VIT, "num_frames": 4, "tubelet_size": [2, 16, 16]}, 4),
}


def _video(name: str) -> Made:
    cls, config, frames = _VIDEO[name]
    return Frames(made(cls, config)), {"frames": torch.randn(1, frames, 3, 64, 64)}


for _name in _VIDEO:
    add(Entry(_name, "video", lambda n=_name: _video(n), {"frames": {0: "batch"}}, {"batch": (1, 2)}))  # type: ignore[misc]
