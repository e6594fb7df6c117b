"""Networks of the library diffusers: denoisers, a decoder of latent images, a transformer."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from torch import nn

from zoo.catalogue import Made, entry

BATCH = {"x": {0: "batch"}}
SIZES = {"batch": (1, 2)}
NARROW: dict[str, Any] = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}


class Sample(nn.Module):
    """The result of a denoiser at a fixed time, with a fixed context if it takes one."""

    def __init__(self, net: Any, **fixed: Any) -> None:
        super().__init__()
        self.net = net
        self.names = list(fixed)
        for name, value in fixed.items():
            self.register_buffer(name, value)

    def forward(self, x: Any, time: Any) -> Any:
        batch = x.shape[0]
        more = {
            name: getattr(self, name).expand(batch, *getattr(self, name).shape[1:]) for name in self.names
        }
        return self.net(x, time, **more, return_dict=False)[0]


def _at_time(net: Any, *shape: int, **fixed: Any) -> Made:
    return Sample(net, **fixed), {"x": torch.randn(*shape), "time": torch.tensor([7.0])}


@entry("diffusion", BATCH, SIZES)
def unet_2d() -> Made:
    blocks = {
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    }
    return _at_time(diffusers.UNet2DModel(16, attention_head_dim=8, **blocks, **NARROW), 1, 3, 16, 16)


@entry("diffusion", BATCH, SIZES)
def unet_2d_condition() -> Made:
    net = diffusers.UNet2DConditionModel(
        16,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=24,
        attention_head_dim=2,
        **NARROW,
    )
    return _at_time(net, 1, 4, 16, 16, encoder_hidden_states=torch.randn(1, 7, 24))


@entry("diffusion", BATCH, SIZES)
def dit() -> Made:
    net = diffusers.DiTTransformer2DModel(
        2, 8, in_channels=4, num_layers=2, sample_size=16, num_embeds_ada_norm=10
    )
    return _at_time(net, 1, 4, 16, 16, class_labels=torch.tensor([3]))


class Decode(nn.Module):
    """The decoder of an autoencoder."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, z: Any) -> Any:
        return self.net.decode(z, return_dict=False)[0]


@entry("diffusion", {"z": {2: "h", 3: "w"}}, {"h": (4, 16), "w": (4, 16)})
def autoencoder_kl() -> Made:
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    return Decode(diffusers.AutoencoderKL(**blocks, **NARROW)), {"z": torch.randn(1, 4, 8, 8)}


@entry("diffusion", {"z": {2: "h", 3: "w"}}, {"h": (4, 16), "w": (4, 16)})
def autoencoder_tiny() -> Made:
    widths = {"encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8)}
    blocks = {"num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)}
    return Decode(diffusers.AutoencoderTiny(**widths, **blocks)), {"z": torch.randn(1, 4, 8, 8)}
