"""Networks for speech and sound."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import nn

from zoo.catalogue import Made, entry


class State(nn.Module):
    """A network with one field of its result as the output."""

    def __init__(self, net: Any, field: str) -> None:
        super().__init__()
        self.net, self.field = net, field

    def forward(self, x: Any) -> Any:
        return self.net(x)[self.field]


def whisper() -> Any:
    """A small Whisper."""
    return hf.WhisperForConditionalGeneration(
        hf.WhisperConfig(
            vocab_size=100,
            d_model=64,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=128,
            decoder_ffn_dim=128,
            max_source_positions=100,
            max_target_positions=64,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            begin_suppress_tokens=None,
            suppress_tokens=None,
        )
    )


@entry("speech", {"mel": {0: "batch"}}, {"batch": (1, 2)})
def whisper_encoder() -> Made:
    return State(whisper().model.encoder, "last_hidden_state"), {"mel": torch.randn(1, 80, 200)}


@entry("speech", {"wave": {1: "samples"}}, {"samples": (800, 8000)})
def wav2vec2() -> Made:
    config = hf.Wav2Vec2Config(
        vocab_size=32,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        conv_dim=(32, 32, 32, 32, 32, 32, 32),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
    )
    return State(hf.Wav2Vec2ForCTC(config), "logits"), {"wave": torch.randn(1, 4000)}


class ConformerBlock(nn.Module):
    """Half-step feed-forward layers around attention and a gated depthwise convolution."""

    def __init__(self, d: int = 48, heads: int = 4) -> None:
        super().__init__()
        self.ff1, self.ff2 = (
            nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.SiLU(), nn.Linear(4 * d, d))
            for _ in range(2)
        )
        self.norm, self.attention = nn.LayerNorm(d), nn.MultiheadAttention(d, heads, batch_first=True)
        self.conv_norm, self.point1 = nn.LayerNorm(d), nn.Conv1d(d, 2 * d, 1)
        self.depth, self.bn = nn.Conv1d(d, d, 15, padding=7, groups=d), nn.BatchNorm1d(d)
        self.point2, self.last = nn.Conv1d(d, d, 1), nn.LayerNorm(d)

    def forward(self, x: Any) -> Any:
        x = x + 0.5 * self.ff1(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y = nn.functional.glu(self.point1(self.conv_norm(x).transpose(1, 2)), 1)
        x = x + self.point2(nn.functional.silu(self.bn(self.depth(y)))).transpose(1, 2)
        return self.last(x + 0.5 * self.ff2(x))


class Conformer(nn.Module):
    """Subsampling by four, two blocks, log-probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.sub = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU())
        self.project, self.blocks = nn.Linear(16 * 20, 48), nn.Sequential(ConformerBlock(), ConformerBlock())
        self.head = nn.Linear(48, 30)

    def forward(self, features: Any) -> Any:
        x = self.sub(features.unsqueeze(1)).permute(0, 2, 1, 3).flatten(2)
        return self.head(self.blocks(self.project(x))).log_softmax(-1)


@entry("speech", {"features": {1: "frames"}}, {"frames": (4, 200)})
def conformer() -> Made:
    return Conformer(), {"features": torch.randn(1, 64, 80)}


class Causal(nn.Module):
    """Two dilated causal convolutions and a skip."""

    def __init__(self, a: int, b: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.one, self.two = nn.Conv1d(a, b, 3, dilation=dilation), nn.Conv1d(b, b, 3, dilation=dilation)
        self.skip = nn.Conv1d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x: Any) -> Any:
        y = nn.functional.relu(self.one(nn.functional.pad(x, (self.pad, 0))))
        y = nn.functional.relu(self.two(nn.functional.pad(y, (self.pad, 0))))
        return nn.functional.relu(y + self.skip(x))


@entry("speech", {"wave": {2: "samples"}}, {"samples": (16, 600)})
def tcn() -> Made:
    blocks = [Causal(4 if i == 0 else 32, 32, 2**i) for i in range(5)]
    return nn.Sequential(*blocks, nn.Conv1d(32, 6, 1)), {"wave": torch.randn(1, 4, 200)}


class Dilated(nn.Module):
    """Residual convolutions of three dilations."""

    def __init__(self, c: int, k: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv1d(c, c, k, dilation=d, padding=d * (k - 1) // 2) for d in (1, 3, 5)
        )

    def forward(self, x: Any) -> Any:
        for conv in self.convs:
            x = x + conv(nn.functional.leaky_relu(x, 0.1))
        return x


class Vocoder(nn.Module):
    """HiFi-GAN's generator: transposed 1-D convolutions, each followed by residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(40, 64, 7, padding=3), nn.Conv1d(16, 1, 7, padding=3)
        self.ups = nn.ModuleList([nn.ConvTranspose1d(64, 32, 16, 8, 4), nn.ConvTranspose1d(32, 16, 8, 4, 2)])
        self.res = nn.ModuleList(nn.ModuleList(Dilated(c, k) for k in (3, 7)) for c in (32, 16))

    def forward(self, mel: Any) -> Any:
        x = self.first(mel)
        for up, blocks in zip(self.ups, self.res, strict=True):
            x = up(nn.functional.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / 2
        return torch.tanh(self.last(nn.functional.leaky_relu(x)))


@entry("speech", {"mel": {2: "frames"}}, {"frames": (4, 64)})
def vocoder() -> Made:
    return Vocoder(), {"mel": torch.randn(1, 40, 24)}


class Mel(nn.Module):
    """Log-mel features: a windowed STFT, power, a filter bank, mean normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(400))
        self.register_buffer("bank", torch.rand(201, 40))

    def forward(self, wave: Any) -> Any:
        spectrum = torch.stft(wave, 400, 160, 400, self.window, center=True, return_complex=True)
        power = torch.view_as_real(spectrum).square().sum(-1)
        mel = torch.log(power.transpose(1, 2) @ self.bank + 1e-3)
        return mel - mel.mean(1, keepdim=True)


@entry("speech", {"wave": {1: "samples"}}, {"samples": (800, 4000)})
def mel_front_end() -> Made:
    return Mel(), {"wave": torch.randn(1, 1600)}


class Keywords(nn.Module):
    """A spectrogram by a convolution with windowed cosines, delta features, a keyword network."""

    def __init__(self) -> None:
        super().__init__()
        n, k = torch.arange(256).float(), torch.arange(64).float().unsqueeze(1)
        angle = 2 * torch.pi * k * n / 256
        self.register_buffer(
            "basis", (torch.cat((angle.cos(), angle.sin())) * torch.hann_window(256)).unsqueeze(1)
        )
        depthwise = nn.Conv1d(32, 32, 9, padding=4, groups=32)
        self.net = nn.Sequential(
            nn.Conv1d(128, 32, 3, padding=1), nn.ReLU(), depthwise, nn.Conv1d(32, 32, 1), nn.ReLU()
        )
        self.head = nn.Linear(32, 12)

    def forward(self, wave: Any) -> Any:
        x = nn.functional.pad(wave.unsqueeze(1), (128, 128), mode="reflect")
        x = nn.functional.conv1d(x, self.basis, stride=80)
        x = torch.log1p(x[:, :64] ** 2 + x[:, 64:] ** 2)
        delta = nn.functional.pad(x[..., 1:] - x[..., :-1], (1, 0))
        x = self.net(torch.cat((x, delta), 1))
        return self.head(x.amax(2)), x.mean(2)


@entry("speech", {"wave": {1: "80*hops"}}, {"hops": (10, 50)})
def conv_front_end() -> Made:
    return Keywords(), {"wave": torch.randn(1, 1600)}


class Separation(nn.Module):
    """Strided and transposed 1-D convolutions with gates and skips, scaled by the standard deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.e1, self.g1 = nn.Conv1d(1, 16, 8, 4, 2), nn.Conv1d(16, 32, 1)
        self.e2, self.g2 = nn.Conv1d(16, 32, 8, 4, 2), nn.Conv1d(32, 64, 1)
        self.d2, self.d1 = nn.ConvTranspose1d(32, 16, 8, 4, 2), nn.ConvTranspose1d(16, 2, 8, 4, 2)

    def forward(self, wave: Any) -> Any:
        scale = wave.std(2, keepdim=True) + 1e-3
        a = nn.functional.glu(self.g1(torch.relu(self.e1(wave / scale))), 1)
        b = nn.functional.glu(self.g2(torch.relu(self.e2(a))), 1)
        return self.d1(torch.relu(self.d2(b)) + a) * scale


@entry("speech", {"wave": {2: "16*frames"}}, {"frames": (4, 60)})
def separation() -> Made:
    return Separation(), {"wave": torch.randn(1, 1, 320)}
