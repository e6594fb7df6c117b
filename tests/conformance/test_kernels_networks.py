"""Random networks, simplified, lowered and planned, against TVM's own kernels on the graph as it was.

What single operators do not show: borders shared with the producer, outputs in the place of operands,
tensors that several steps read, views, and an arena in which all of it is close together.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.graph.pipeline import simplify
from kiln.lower.steps import LoweredTensor
from kiln.lower.views import in_place_padding
from relaxed import const, module, run_by_tvm
from tvm import relax

from .lowered import Compiled, close, runnable

op = relax.op


class Network:
    """Builds one random NCHW network; every layer takes tensors that earlier ones made."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.channels = self.random.choice([3, 8, 17])
        self.made: list[Any] = []

    def weights(self, *shape: int) -> Any:
        return const(self.numbers.standard_normal(shape) / np.sqrt(np.prod(shape[1:])))

    def pick(self) -> Any:
        """A recent tensor most of the time, any other sometimes."""
        return self.random.choice(self.made[-2:] if self.random.random() < 0.7 else self.made)

    def convolution(self, x: Any) -> Any:
        size = self.random.choice([1, 3, 3, 5])
        depthwise = self.random.random() < 0.4
        groups = self.channels if depthwise else 1
        weights = self.weights(self.channels, 1 if depthwise else self.channels, size, size)
        y = op.nn.conv2d(x, weights, padding=size // 2, groups=groups)
        return op.add(y, const(self.numbers.standard_normal((1, self.channels, 1, 1)) * 0.1))

    def layer(self) -> Any:
        kind = self.random.randrange(10)
        x = self.pick()
        if kind < 4:
            return self.random.choice([op.nn.relu, op.nn.silu, op.tanh, lambda v: v])(self.convolution(x))
        if kind < 6:  # a residual, perhaps of the convolution's own input
            return op.nn.relu(op.add(self.convolution(x), self.random.choice([x, self.pick()])))
        if kind == 6:  # a gate
            gate = op.sigmoid(op.mean(self.pick(), [2, 3], keepdims=True))
            return op.multiply(x, gate)
        if kind == 7:
            return op.nn.max_pool2d(x, 3, 1, 1)
        if kind == 8:
            both = op.concat([x, self.pick()], 1)
            return op.nn.conv2d(both, self.weights(self.channels, 2 * self.channels, 1, 1))
        return op.clip(op.add(op.multiply(x, const(1.5)), self.pick()), -2, 3)

    def body(self, x: Any) -> list[Any]:
        builder = relax.BlockBuilder.current()
        self.made = [x]
        for _ in range(self.random.randint(6, 14)):
            self.made.append(builder.emit(self.layer()))
        outputs = [op.mean(self.made[-1], [2, 3])]
        if self.random.random() < 0.5:  # an output that other steps read too
            outputs.append(self.random.choice(self.made[1:]))
        return outputs


def _seeds(count: int) -> list[Any]:
    """Seeds 0 to `count` - 1; all but the first eighth are heavy."""
    return [pytest.param(n, marks=[pytest.mark.heavy] if n >= count / 8 else []) for n in range(count)]


@pytest.mark.parametrize("seed", _seeds(16))
def test_random_network(seed: int, tmp_path: Path) -> None:
    network = Network(seed)
    batch = 1 if seed % 3 else 2
    shape = (batch, network.channels, 5 + seed % 4, 6 + seed % 3)
    mod = module([(shape, "float32")], network.body)
    x = np.random.default_rng(seed).standard_normal(shape).astype("f4")
    compiled = Compiled(simplify(mod), runnable("x86_64" if seed % 2 else "x86_64_v2"), tmp_path).load()
    for got, want in zip(compiled.run([x]), run_by_tvm(mod, [x]), strict=True):
        close(got, want, 1e-5)


@pytest.mark.heavy
@pytest.mark.parametrize("seed", _seeds(6))
def test_random_network_with_pixels_apart(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever depthwise convolutions read has a line between pixels, as wide ones have on AVX-512."""
    monkeypatch.setattr(in_place_padding, "pixel_gap_of", lambda *_: 16)
    network = Network(seed)

    def body(x: Any) -> list[Any]:
        *outputs, y = network.body(x)
        depthwise = network.weights(network.channels, 1, 3, 3)
        inner = relax.BlockBuilder.current().emit(op.nn.relu(network.made[-1]))
        z = op.nn.conv2d(inner, depthwise, padding=1, groups=network.channels)
        # Other operators read the inner tensor: a residual, a convolution without padding, another padding.
        wide, narrow = (network.weights(network.channels, network.channels, k, k) for k in (1, 3))
        z = op.add(op.add(z, inner), op.nn.conv2d(inner, wide))
        return [*outputs, y, op.add(z, op.nn.conv2d(inner, narrow, padding=1)), op.nn.conv2d(inner, narrow)]

    shape = (1 + seed % 2, network.channels, 5 + seed % 4, 6 + seed % 3)
    mod = module([(shape, "float32")], body)
    x = np.random.default_rng(seed).standard_normal(shape).astype("f4")
    compiled = Compiled(simplify(mod), runnable("x86_64"), tmp_path).load()
    tensors: dict[str, LoweredTensor] = compiled.result.tensors
    assert any(tensor.shape[3:] == [network.channels + 16] for tensor in tensors.values())
    for got, want in zip(compiled.run([x]), run_by_tvm(mod, [x]), strict=True):
        close(got, want, 1e-5)


def test_views_and_padding_meet(tmp_path: Path) -> None:
    """One tensor padded in two ways, read unpadded and reshaped, and returned."""
    numbers = np.random.default_rng(0)
    small, large = (numbers.standard_normal((8, 8, k, k)) / 8 for k in (3, 5))

    def body(x: Any) -> list[Any]:
        y = relax.BlockBuilder.current().emit(op.nn.relu(x))
        a = op.nn.conv2d(y, const(small), padding=1)
        b = op.nn.conv2d(y, const(large), padding=2)
        c = op.nn.max_pool2d(y, 3, 1, 1)
        flat = op.reshape(op.permute_dims(y, [0, 2, 3, 1]), [1, 336])
        return [op.add(op.add(a, b), c), op.multiply(flat, const(2.0)), y]

    mod = module([((1, 8, 6, 7), "float32")], body)
    x = numbers.standard_normal((1, 8, 6, 7)).astype("f4")
    compiled = Compiled(simplify(mod), runnable("x86_64"), tmp_path).load()
    for got, want in zip(compiled.run([x]), run_by_tvm(mod, [x]), strict=True):
        close(got, want, 1e-5)


def test_a_chain_of_convolutions_shares_its_borders(tmp_path: Path) -> None:
    """Between convolutions no step copies a tensor only to pad it."""
    numbers = np.random.default_rng(0)

    def body(x: Any) -> Any:
        for _ in range(4):
            x = op.nn.relu(op.nn.conv2d(x, const(numbers.standard_normal((8, 8, 3, 3)) / 8), padding=1))
        return op.mean(x, [2, 3])

    mod = module([((1, 8, 9, 10), "float32")], body)
    compiled = Compiled(simplify(mod), runnable("x86_64"), tmp_path).load()
    tensors: dict[str, LoweredTensor] = compiled.result.tensors
    padded = [tensor for tensor in tensors.values() if tensor.shape == [1, 11, 12, 8] and not tensor.alias]
    plain = [tensor for tensor in tensors.values() if tensor.shape == [1, 9, 10, 8] and not tensor.alias]
    assert len(padded) == 4
    assert len(plain) == 1, "the last convolution's, whose reader needs no border"
    x = numbers.standard_normal((1, 8, 9, 10)).astype("f4")
    close(compiled.run([x])[0], run_by_tvm(mod, [x])[0], 1e-5)
