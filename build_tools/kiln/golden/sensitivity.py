"""Sensitivity of a quantised ONNX model's outputs to changes of one level: the tolerance that this
justifies.

Between two quantised layers a value is rounded to one of 256 levels. An implementation that sums in another
order rounds a few values to the neighbouring level, and the difference grows from layer to layer. The
reference measures it: it runs again with each float input moved up or down by one level. Where no float
input can be moved (token numbers), the embeddings are moved by one level, and the scales of the activations
are changed by 1/512, which moves the greatest value of each by a quarter of a level. The greatest change of
an output over these runs is its sensitivity. Random signs come from a fixed seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from kiln.arrays import Array
from kiln.golden.reference import OnnxRuntime, Reference
from kiln.scratch import scratch_folder

# Operators that round activations to levels.
ROUNDING = frozenset(
    ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QGemm", "QLinearAdd",
     "QLinearMul", "DynamicQuantizeMatMul", "QAttention", "DynamicQuantizeLSTM")
)  # fmt: skip
_RUNS = 2
_LEVELS = 255
_SCALE_CHANGE = 1 / 512
_LARGEST = 1 << 30  # bytes of a model whose scales are changed in memory


class Sensitivity:
    """Measures the sensitivity of the outputs of the model that `reference` runs."""

    def __init__(self, reference: Reference) -> None:
        self._reference, self._model = reference, reference.graph
        nodes = list(self._model.graph.node) if self._model else []
        self.applies = any(node.op_type in ROUNDING for node in nodes)
        self._steps = self._input_steps() if self.applies else {}
        self._generator = np.random.default_rng(0)

    def _input_steps(self) -> dict[str, float]:
        """The scale with which each input is quantised, where a QuantizeLinear reads it directly."""
        assert self._model is not None
        folder = str(self._reference.path.parent)  # of external data
        constants = {tensor.name: tensor for tensor in self._model.graph.initializer}
        return {
            node.input[0]: float(np.max(onnx.numpy_helper.to_array(constants[node.input[1]], folder)))
            for node in self._model.graph.node
            if node.op_type == "QuantizeLinear" and node.input[1] in constants
        }

    def measure(self, names: Sequence[str], inputs: Sequence[Array], outputs: Sequence[Array]) -> list[float]:
        """The greatest change of each output, in the output's unit; `names`: the names of the inputs."""
        runs = [
            self._reference.run(
                [self._perturbed(name, value) for name, value in zip(names, inputs, strict=True)]
            )
            for _ in range(_RUNS)
            if any(value.dtype.kind == "f" for value in inputs)
        ]
        if not runs:
            runs = [self._reference.like(variant).run(inputs) for variant in self._variants()]
        return greatest_changes(runs, outputs)

    def reset(self) -> None:
        """Begin a new sequence: the reference has the state."""

    def _perturbed(self, name: str, value: Array) -> Array:
        return perturbed(value, self._steps.get(name), self._generator)

    def _variants(self) -> list[Reference]:
        """The model with changed scales and embeddings, twice."""
        model = onnx.load(str(self._reference.path))
        if model.ByteSize() > _LARGEST:
            return []
        variants: list[Reference] = []
        with scratch_folder("sensitivity") as folder:
            for sign in (1, -1):
                path = Path(folder, f"variant{sign}.onnx")
                onnx.save(self._changed(model, sign), str(path))
                variant = OnnxRuntime(path)
                variant.path = self._reference.path
                variants.append(variant)
        return variants

    def _changed(self, model: onnx.ModelProto, sign: int) -> onnx.ModelProto:
        """A copy of `model` with scales of activations greater (`sign` 1) or less (-1), and embeddings
        moved."""
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        constants = {tensor.name: tensor for tensor in model.graph.initializer}

        def replace(node: onnx.NodeProto, operand: int, value: Array) -> None:
            name = f"kiln_changed_{len(changed.graph.initializer)}"
            changed.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
            node.input[operand] = name

        for node in changed.graph.node:
            rounds = node.op_type == "QuantizeLinear" and node.input[0] not in constants
            if rounds and node.input[1] in constants:
                scale = onnx.numpy_helper.to_array(constants[node.input[1]])
                replace(node, 1, np.asarray(scale * (1 + sign * _SCALE_CHANGE), scale.dtype))
            elif node.op_type == "Gather" and node.input[0] in constants:
                table = onnx.numpy_helper.to_array(constants[node.input[0]])
                if table.dtype.kind == "f" and table.ndim > 1:
                    replace(node, 0, self._perturbed("", table))
        return changed


def perturbed(value: Array, step: float | None, generator: np.random.Generator) -> Array:
    """Floats with each element moved by `step` up or down, None: 1/255 of their range; integers unchanged."""
    if value.dtype.kind != "f" or not value.size:
        return value
    step = step or float(np.ptp(value.astype(np.float64))) / _LEVELS
    signs = generator.integers(0, 2, value.shape) * 2 - 1
    return np.asarray(value + signs * step, value.dtype)


def greatest_changes(runs: Sequence[Sequence[Array]], outputs: Sequence[Array]) -> list[float]:
    """For each output, the greatest difference of an element between `outputs` and any of the `runs`."""
    return [
        max((_greatest_change(run[index], want) for run in runs), default=0.0)
        for index, want in enumerate(outputs)
    ]


def _greatest_change(got: Array, want: Array) -> float:
    if got.shape != want.shape or want.dtype.kind not in "fiu" or not want.size:
        return 0.0
    difference: Any = np.abs(got.astype(np.float64) - want.astype(np.float64))
    finite = difference[np.isfinite(difference)]
    return float(finite.max()) if finite.size else 0.0
