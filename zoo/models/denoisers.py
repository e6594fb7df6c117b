"""More networks of the library diffusers: denoisers of images, videos and sounds, and their autoencoders."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from torch import nn

from zoo.catalogue import Made, entry
from zoo.models.diffusers_parts import NARROW, Decode

TIME = torch.tensor([7.0])
TOKENS = {"text": {1: "tokens"}}
FEW = {"tokens": (2, 9)}


class ByName(nn.Module):
    """The first result of a network, of two to four inputs given by name."""

    def __init__(self, net: Any, *names: str) -> None:
        super().__init__()
        self.net, self.names = net, names

    def forward(self, x: Any, y: Any, z: Any = None, u: Any = None) -> Any:
        return self.net(**dict(zip(self.names, (x, y, z, u), strict=False)), return_dict=False)[0]


class Flux(nn.Module):
    """Flux at one time, for an image of fixed places and a text of any length."""

    def __init__(self, net: Any, places: Any) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("places", places)
        self.register_buffer("time", TIME)

    def forward(self, x: Any, text: Any, pooled: Any) -> Any:
        of_text = text.new_zeros(text.shape[1], 3)
        return self.net(x, text, pooled, self.time, self.places, of_text, return_dict=False)[0]


@entry("diffusion", TOKENS, FEW)
def flux() -> Made:
    net = diffusers.FluxTransformer2DModel(
        in_channels=8,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=12,
        axes_dims_rope=(4, 6, 6),
    )
    places = torch.stack([torch.zeros(16), torch.arange(16) // 4, torch.arange(16) % 4], 1)
    return Flux(net, places), {
        "x": torch.randn(1, 16, 8),
        "text": torch.randn(1, 5, 16),
        "pooled": torch.randn(1, 12),
    }


@entry("diffusion", TOKENS, FEW)
def sd3() -> Made:
    net = diffusers.SD3Transformer2DModel(
        sample_size=16,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=16,
        caption_projection_dim=32,
        pooled_projection_dim=12,
        in_channels=4,
        out_channels=4,
        pos_embed_max_size=16,
        dual_attention_layers=(0,),
        qk_norm="rms_norm",
    )
    inputs = {"x": torch.randn(1, 4, 16, 16), "text": torch.randn(1, 5, 16), "pooled": torch.randn(1, 12)}
    names = "hidden_states", "encoder_hidden_states", "pooled_projections", "timestep"
    return ByName(net, *names), {**inputs, "time": TIME}


@entry("diffusion", TOKENS, FEW)
def pixart() -> Made:
    net = diffusers.PixArtTransformer2DModel(
        2,
        8,
        4,
        8,
        num_layers=1,
        cross_attention_dim=16,
        sample_size=16,
        caption_channels=12,
        use_additional_conditions=False,
    )
    inputs = {"x": torch.randn(1, 4, 16, 16), "text": torch.randn(1, 5, 12), "time": TIME}
    return ByName(net, "hidden_states", "encoder_hidden_states", "timestep"), inputs


@entry("diffusion", TOKENS, FEW)
def sana() -> Made:
    net = diffusers.SanaTransformer2DModel(
        4,
        4,
        2,
        8,
        num_layers=2,
        num_cross_attention_heads=2,
        cross_attention_head_dim=8,
        cross_attention_dim=16,
        caption_channels=12,
        sample_size=8,
    )
    inputs = {"x": torch.randn(1, 4, 8, 8), "text": torch.randn(1, 5, 12), "time": TIME}
    return ByName(net, "hidden_states", "encoder_hidden_states", "timestep"), inputs


@entry("diffusion", TOKENS, FEW)
def wan() -> Made:
    net = diffusers.WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=16,
        ffn_dim=32,
        num_layers=1,
    )
    inputs = {"x": torch.randn(1, 4, 2, 8, 8), "time": TIME, "text": torch.randn(1, 5, 16)}
    return ByName(net, "hidden_states", "timestep", "encoder_hidden_states"), inputs


@entry("diffusion", TOKENS, FEW)
def cog_video() -> Made:
    net = diffusers.CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        time_embed_dim=8,
        text_embed_dim=16,
        num_layers=1,
        sample_width=8,
        sample_height=8,
        sample_frames=5,
        max_text_seq_length=5,
        use_rotary_positional_embeddings=True,
    )
    inputs = {"x": torch.randn(1, 2, 4, 8, 8), "text": torch.randn(1, 5, 16), "time": TIME}
    return ByName(net, "hidden_states", "encoder_hidden_states", "timestep"), inputs


@entry("diffusion")
def prior() -> Made:
    net = diffusers.PriorTransformer(2, 8, 1, embedding_dim=16, num_embeddings=5, additional_embeddings=4)
    names = "hidden_states", "proj_embedding", "timestep", "encoder_hidden_states"
    first = {"x": torch.randn(1, 16), "proj": torch.randn(1, 16), "time": TIME, "text": torch.randn(1, 5, 16)}
    return ByName(net, *names), first


@entry("diffusion", {"x": {2: "8*length"}}, {"length": (2, 8)})
def unet_1d() -> Made:
    net = diffusers.UNet1DModel(
        sample_size=64,
        in_channels=2,
        out_channels=2,
        extra_in_channels=64,
        block_out_channels=(32, 32, 32),
        down_block_types=("DownBlock1DNoSkip", "DownBlock1D", "AttnDownBlock1D"),
        up_block_types=("AttnUpBlock1D", "UpBlock1D", "UpBlock1DNoSkip"),
    )
    return ByName(net, "sample", "timestep"), {"x": torch.randn(1, 2, 64), "time": TIME}


class Adapter(nn.Module):
    """The results of an adapter, as a tuple."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Any) -> Any:
        return tuple(self.net(x))


@entry("diffusion", {"x": {2: "16*h", 3: "16*w"}}, {"h": (2, 5), "w": (2, 5)})
def t2i_adapter() -> Made:
    net = diffusers.T2IAdapter(3, [16, 32], 1, 8, "full_adapter")
    return Adapter(net), {"x": torch.randn(1, 3, 64, 48)}


@entry("diffusion", {"z": {2: "h", 3: "w"}}, {"h": (3, 8), "w": (3, 8)})
def autoencoder_dc() -> Made:
    widths = {"encoder_block_out_channels": (8, 16), "decoder_block_out_channels": (8, 16)}
    blocks = {
        "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
        "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
        "encoder_layers_per_block": (1, 1),
        "decoder_layers_per_block": (1, 1),
        "encoder_qkv_multiscales": ((), (5,)),
        "decoder_qkv_multiscales": ((), (5,)),
    }
    net = diffusers.AutoencoderDC(latent_channels=4, attention_head_dim=8, **widths, **blocks)
    return Decode(net), {"z": torch.randn(1, 4, 4, 4)}


@entry("diffusion", {"z": {2: "length"}}, {"length": (4, 24)})
def oobleck() -> Made:
    net = diffusers.AutoencoderOobleck(
        8, downsampling_ratios=[2, 4], channel_multiples=[1, 2], decoder_channels=8, decoder_input_channels=8
    )
    return Decode(net), {"z": torch.randn(1, 8, 10)}


@entry("diffusion", {"z": {2: "h", 3: "w"}}, {"h": (6, 12), "w": (6, 12)})
def vq_model() -> Made:
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    net = diffusers.VQModel(latent_channels=4, num_vq_embeddings=16, vq_embed_dim=4, **blocks, **NARROW)
    return Decode(net), {"z": torch.randn(1, 4, 8, 8)}


@entry("diffusion", {"z": {3: "h", 4: "w"}}, {"h": (2, 6), "w": (2, 6)})
def autoencoder_cog_video() -> Made:
    net = diffusers.AutoencoderKLCogVideoX(
        block_out_channels=(8, 8),
        down_block_types=("CogVideoXDownBlock3D",) * 2,
        up_block_types=("CogVideoXUpBlock3D",) * 2,
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=4,
        temporal_compression_ratio=2,
    )
    return Decode(net), {"z": torch.randn(1, 4, 2, 4, 4)}
