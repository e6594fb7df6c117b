"""Image classifiers: every family of torchvision, and architectures of timm."""

from __future__ import annotations

from typing import Any

import timm
import torch
import torchvision

from zoo.catalogue import Entry, Made, add

TORCHVISION = {
    "alexnet": 224,
    "convnext_tiny": 64,
    "densenet121": 64,
    "efficientnet_b0": 96,
    "efficientnet_v2_s": 64,
    "googlenet": 96,
    "inception_v3": 128,
    "maxvit_t": 224,
    "mnasnet0_5": 96,
    "mobilenet_v2": 96,
    "mobilenet_v3_small": 96,
    "regnet_x_400mf": 96,
    "regnet_y_400mf": 96,
    "resnet18": 96,
    "resnet50": 64,
    "resnext50_32x4d": 64,
    "shufflenet_v2_x0_5": 96,
    "squeezenet1_1": 96,
    "swin_t": 64,
    "swin_v2_t": 64,
    "vgg11_bn": 224,
    "vit_b_16": 64,
    "wide_resnet50_2": 64,
}

# by name: the size of the image, and arguments of create_model that make a network shallower or smaller
TIMM: dict[str, tuple[int, dict[str, Any]]] = {
    "bat_resnext26ts": (256, {}),
    "beit_base_patch16_224": (64, {"depth": 1, "img_size": 64}),
    "botnet26t_256": (128, {"img_size": 128}),
    "cait_xxs24_224": (64, {"depth": 2, "img_size": 64}),
    "coat_tiny": (64, {"img_size": 64}),
    "coatnet_nano_rw_224": (64, {"img_size": 64}),
    "convit_tiny": (64, {"depth": 2, "img_size": 64}),
    "convmixer_768_32": (64, {}),
    "convnext_atto": (64, {}),
    "convnextv2_atto": (64, {}),
    "crossvit_9_240": (240, {}),
    "cs3darknet_focus_s": (64, {}),
    "davit_tiny": (64, {"depths": (1, 1, 1, 1)}),
    "deit_tiny_distilled_patch16_224": (64, {"depth": 2, "img_size": 64}),
    "dla46_c": (64, {}),
    "dpn48b": (64, {}),
    "eca_nfnet_l0": (64, {}),
    "edgenext_xx_small": (64, {}),
    "efficientformer_l1": (224, {}),
    "efficientformerv2_s0": (224, {}),
    "efficientvit_b0": (64, {}),
    "efficientvit_m0": (128, {"img_size": 128}),
    "ese_vovnet19b_dw": (64, {}),
    "eva02_tiny_patch14_224": (56, {"depth": 2, "img_size": 56}),
    "fastvit_t8": (64, {}),
    "focalnet_tiny_srf": (64, {}),
    "gcresnext26ts": (64, {}),
    "ghostnet_050": (64, {}),
    "ghostnetv2_100": (64, {}),
    "gmlp_ti16_224": (64, {"img_size": 64}),
    "halonet26t": (256, {}),
    "hgnetv2_b0": (64, {}),
    "hiera_tiny_224": (224, {"stages": (1, 1, 1, 1)}),
    "hrnet_w18_small": (64, {}),
    "inception_next_atto": (64, {}),
    "lambda_resnet26t": (128, {"img_size": 128}),
    "lcnet_050": (64, {}),
    "levit_128s": (224, {}),
    "mambaout_femto": (64, {}),
    "maxvit_rmlp_pico_rw_256": (128, {"img_size": 128}),
    "mixer_s32_224": (64, {"img_size": 64}),
    "mobilenetv4_conv_small": (64, {}),
    "mobilenetv4_hybrid_medium": (64, {}),
    "mobileone_s0": (64, {}),
    "mobilevit_xxs": (64, {}),
    "mobilevitv2_050": (64, {}),
    "mvitv2_tiny": (64, {"img_size": 64}),
    "nest_tiny": (64, {"img_size": 64}),
    "nf_regnet_b0": (64, {}),
    "pit_ti_224": (224, {}),
    "poolformer_s12": (64, {}),
    "pvt_v2_b0": (64, {}),
    "rdnet_tiny": (64, {}),
    "regnetz_005": (64, {}),
    "repvgg_a0": (64, {}),
    "repvit_m0_9": (64, {}),
    "res2net50_14w_8s": (64, {}),
    "resmlp_12_224": (64, {"img_size": 64}),
    "resnest14d": (64, {}),
    "resnetv2_50": (64, {}),
    "rexnet_100": (64, {}),
    "selecsls42b": (64, {}),
    "sequencer2d_s": (64, {"layers": (1, 1, 1, 1)}),
    "skresnet18": (64, {}),
    "starnet_s1": (64, {}),
    "swiftformer_xs": (64, {}),
    "swin_tiny_patch4_window7_224": (112, {"depths": (2, 2, 2, 1), "img_size": 112}),
    "swinv2_tiny_window8_256": (128, {"depths": (2, 2, 2, 1), "img_size": 128}),
    "tiny_vit_5m_224": (224, {}),
    "tinynet_e": (64, {}),
    "tnt_s_patch16_224": (64, {"depth": 2, "img_size": 64}),
    "tresnet_m": (64, {}),
    "twins_pcpvt_small": (64, {"depths": (1, 1, 1, 1), "img_size": 64}),
    "visformer_tiny": (64, {"img_size": 64}),
    "vit_small_patch14_dinov2": (56, {"depth": 2, "img_size": 56}),
    "volo_d1_224": (224, {}),
    "xception41": (64, {}),
    "xcit_nano_12_p16_224": (64, {"depth": 2, "img_size": 64}),
}


def _torchvision(name: str, size: int) -> Made:
    models = torchvision.models
    if name == "vit_b_16":
        network = models.VisionTransformer(size, 16, 2, 4, 128, 512, num_classes=100)
    elif name == "maxvit_t":
        network = models.maxvit.MaxVit((size, size), 16, 7, [32, 64], [1, 1], 32, 0.0)
    else:
        slow = name in ("googlenet", "inception_v3")  # their initialisation takes half a minute
        network = getattr(models, name)(weights=None, **({"init_weights": False} if slow else {}))
    if name == "vgg11_bn":  # 500 MB of weights in two products show nothing that 1 MB does not
        network.classifier = torch.nn.Linear(512 * 7 * 7, 10)
    return network, {"image": torch.randn(1, 3, size, size)}


def _timm(name: str, size: int, options: dict[str, Any]) -> Made:
    return timm.create_model(name, pretrained=False, **options), {"image": torch.randn(1, 3, size, size)}


_OPEN: dict[str, Any] = {"axes": {"image": {0: "batch"}}, "ranges": {"batch": (1, 4)}}
for _name, _size in TORCHVISION.items():
    add(Entry(_name, "torchvision", lambda n=_name, s=_size: _torchvision(n, s), **_OPEN))  # type: ignore[misc]
for _name, (_size, _options) in TIMM.items():
    add(Entry(_name, "timm", lambda n=_name, s=_size, o=_options: _timm(n, s, o), **_OPEN))  # type: ignore[misc]
