"""Sound in plain PyTorch: separation, transducers, synthesis, signal processing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from zoo.catalogue import Made, entry


class Joiner(nn.Module):
    """One step of an RNN transducer: the cells of its prediction network, and its joiner."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.cells = nn.ModuleList(nn.LSTMCell(32, 32) for _ in range(2))
        self.a, self.b, self.out = nn.Linear(48, 64), nn.Linear(32, 64), nn.Linear(64, 40)

    def forward(self, sound: Any, last: Any, h: Any, c: Any) -> Any:
        x, hs, cs = self.embed(last), [], []
        for i, cell in enumerate(self.cells):
            one, two = cell(x, (h[i], c[i]))
            x = one
            hs.append(one)
            cs.append(two)
        logits = self.out(torch.tanh(self.a(sound)[:, :, None] + self.b(x)[:, None, None]))
        return logits.log_softmax(-1), torch.stack(hs), torch.stack(cs)


@entry("speech", {"sound": {1: "frames"}}, {"frames": (1, 32)})
def rnnt_joiner() -> Made:
    return Joiner(), {
        "sound": torch.randn(1, 8, 48),
        "last": torch.tensor([3]),
        "h": torch.zeros(2, 1, 32),
        "c": torch.zeros(2, 1, 32),
    }


class Block(nn.Module):
    """A dilated depthwise block of Conv-TasNet with global layer normalisation."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(width, 2 * width, 1),
            nn.PReLU(),
            nn.GroupNorm(1, 2 * width),
            nn.Conv1d(2 * width, 2 * width, 3, padding=dilation, dilation=dilation, groups=2 * width),
            nn.PReLU(),
            nn.GroupNorm(1, 2 * width),
        )
        self.stay, self.skip = nn.Conv1d(2 * width, width, 1), nn.Conv1d(2 * width, width, 1)

    def forward(self, x: Any) -> Any:
        h = self.net(x)
        return x + self.stay(h), self.skip(h)


class ConvTasNet(nn.Module):
    """Separation in a learnt basis: masks, and a transposed convolution back to samples."""

    def __init__(self, width: int = 32, basis: int = 64, speakers: int = 2) -> None:
        super().__init__()
        self.speakers, self.encode = speakers, nn.Conv1d(1, basis, 16, 8, bias=False)
        self.norm, self.narrow = nn.GroupNorm(1, basis), nn.Conv1d(basis, width, 1)
        self.blocks = nn.ModuleList(Block(width, 2**i) for _ in range(2) for i in range(4))
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(width, basis * speakers, 1), nn.Sigmoid())
        self.decode = nn.ConvTranspose1d(basis, 1, 16, 8, bias=False)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.encode(x))
        h, total = self.narrow(self.norm(y)), 0
        for block in self.blocks:
            h, skip = block(h)
            total = total + skip
        masks = self.mask(total).view(x.shape[0], self.speakers, -1, y.shape[-1])
        return self.decode((masks * y[:, None]).flatten(0, 1)).view(x.shape[0], self.speakers, -1)


@entry("speech", {"x": {2: "8*n"}}, {"n": (4, 500)})
def conv_tasnet() -> Made:
    return ConvTasNet(), {"x": torch.randn(1, 1, 1600)}


class Demucs(nn.Module):
    """A U-Net of samples: strided convolutions with gated units, a recurrent bottleneck, transposed ones."""

    def __init__(self, width: int = 16, depth: int = 4) -> None:
        super().__init__()
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        before = 1
        for i in range(depth):
            now = width * 2**i
            self.down.append(
                nn.Sequential(
                    nn.Conv1d(before, now, 8, 4, 2), nn.ReLU(), nn.Conv1d(now, 2 * now, 1), nn.GLU(1)
                )
            )
            tail = [nn.ReLU()] if i else []
            self.up.insert(
                0,
                nn.Sequential(
                    nn.Conv1d(now, 2 * now, 1), nn.GLU(1), nn.ConvTranspose1d(now, before, 8, 4, 2), *tail
                ),
            )
            before = now
        self.lstm, self.back = nn.LSTM(before, before, 1, bidirectional=True), nn.Linear(2 * before, before)

    def forward(self, x: Any) -> Any:
        deviation = x.std(-1, keepdim=True) + 1e-3
        x, skips = x / deviation, []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
        h = self.lstm(x.permute(2, 0, 1))[0]
        x = self.back(h).permute(1, 2, 0)
        for layer in self.up:
            x = layer(x + skips.pop())
        return x * deviation


@entry("speech", {"x": {2: "256*n"}}, {"n": (1, 32)})
def demucs() -> Made:
    return Demucs(), {"x": torch.randn(1, 1, 2048)}


class Denoiser(nn.Module):
    """A mask on a spectrogram: STFT in the graph, a recurrent mask, samples by overlapping frames."""

    def __init__(self, n: int = 128) -> None:
        super().__init__()
        self.n = n
        self.gru, self.mask = nn.GRU(n // 2 + 1, 48, 2, batch_first=True), nn.Linear(48, n // 2 + 1)
        self.register_buffer("window", torch.hann_window(n))
        eye = torch.fft.irfft(torch.complex(torch.eye(n // 2 + 1), torch.zeros(n // 2 + 1, n // 2 + 1)), n)
        imaginary = torch.fft.irfft(
            torch.complex(torch.zeros(n // 2 + 1, n // 2 + 1), torch.eye(n // 2 + 1)), n
        )
        self.back = nn.ConvTranspose1d(n + 2, 1, n, n // 4, bias=False)
        self.back.weight.data = (torch.cat((eye, imaginary)) * self.window)[:, None]

    def forward(self, x: Any) -> Any:
        f = torch.stft(x, self.n, self.n // 4, window=self.window, center=True, return_complex=True)
        re, im = f.real, f.imag
        size = torch.sqrt(re**2 + im**2 + 1e-8)
        mask = torch.sigmoid(self.mask(self.gru(torch.log1p(size).transpose(1, 2))[0])).transpose(1, 2)
        return self.back(torch.cat((re * mask, im * mask), 1))[:, 0]


@entry("speech", {"x": {1: "32*n"}}, {"n": (8, 64)})
def denoiser() -> Made:
    return Denoiser(), {"x": torch.randn(1, 1024)}


class Griffin(nn.Module):
    """Samples from a spectrogram's size and phase, by torch.istft."""

    def __init__(self, n: int = 64) -> None:
        super().__init__()
        self.n, self.net = n, nn.Conv1d(n // 2 + 1, n + 2, 3, padding=1)
        self.register_buffer("window", torch.hann_window(n))

    def forward(self, x: Any) -> Any:
        size, phase = self.net(x).chunk(2, 1)
        f = torch.polar(size.clamp(max=3).exp(), phase)
        return torch.istft(f, self.n, self.n // 4, window=self.window, center=True)


@entry("speech", {"x": {2: "frames"}}, {"frames": (8, 64)})
def istft_vocoder() -> Made:
    return Griffin(), {"x": torch.randn(1, 33, 20)}


class WaveNet(nn.Module):
    """A causal network of gated dilated convolutions on codes of the mu-law."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(8))
        self.stay = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(8))
        self.end = nn.Sequential(nn.ReLU(), nn.Conv1d(width, 64, 1), nn.ReLU(), nn.Conv1d(64, 256, 1))

    def forward(self, sound: Any) -> Any:
        code = torch.sign(sound) * torch.log1p(255 * sound.abs()) / math.log(256)
        x = self.embed(((code + 1) * 127.5 + 0.5).long()).transpose(1, 2)
        total = 0
        for i, (gate, stay) in enumerate(zip(self.gates, self.stay, strict=True)):
            a, b = gate(functional.pad(x, (2**i, 0))).chunk(2, 1)
            h = stay(torch.tanh(a) * torch.sigmoid(b))
            x, total = x + h, total + h
        return self.end(total).argmax(1)


@entry("speech", {"sound": {1: "n"}}, {"n": (1, 600)})
def wavenet() -> Made:
    return WaveNet(), {"sound": torch.rand(1, 400) * 2 - 1}


class Keywords(nn.Module):
    """BC-ResNet's idea: convolutions over frequency, broadcast residuals over time, on mel cepstra."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 5, (2, 1), 2)
        self.freq = nn.ModuleList(nn.Conv2d(16, 16, (3, 1), padding=(1, 0), groups=16) for _ in range(3))
        self.time = nn.ModuleList(
            nn.Conv2d(16, 16, (1, 3), padding=(0, 2**i), dilation=(1, 2**i), groups=16) for i in range(3)
        )
        self.mix = nn.ModuleList(nn.Conv2d(16, 16, 1) for _ in range(3))
        self.norm = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(3))
        self.out = nn.Linear(16, 12)

    def forward(self, bands: Any) -> Any:
        x = self.stem(bands)
        for freq, time, mix, norm in zip(self.freq, self.time, self.mix, self.norm, strict=True):
            two = norm(freq(x))
            one = mix(functional.silu(time(two.mean(2, keepdim=True))))
            x = torch.relu(x + two + one)
        return self.out(x.mean((2, 3)))


@entry("speech", {"bands": {0: "batch", 3: "frames"}}, {"batch": (1, 2), "frames": (8, 100)})
def bc_resnet() -> Made:
    return Keywords(), {"bands": torch.randn(1, 1, 40, 80)}
