"""Sensitivity of a quantised ONNX model's outputs to changes of one level, for its tolerance.

Between two quantised layers a value is rounded to one of 256 levels. An implementation that sums in another
order rounds a few values to the neighbouring level, and the difference grows from layer to layer. The
reference measures it: it runs again with each float input moved up or down by one level, and with the scales
of the activations changed by 2^-18, so that values halfway between two levels round up in one run and down in
another: means and interpolations of levels, such as a Resize by 2, fall there often. Where no float input can
be moved (token numbers), the embeddings are moved by one level, and the scales are changed by 1/512 instead,
which moves the greatest value of each by a quarter of a level. Scales that are computed from the data have
nothing to change; for them, each float constant is moved up or down by the fraction 2^-18. The greatest
change of an output over these runs is its sensitivity. Random signs come from a fixed seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from kiln.arrays import Array
from kiln.golden.moved_values import TIE_CHANGE, nudged, perturbed
from kiln.golden.onnx_reference import OnnxRuntime
from kiln.golden.reference_base import Reference
from kiln.scratch import scratch_folder
from kiln.sources.onnx_data import external_files

# Operators whose scale is computed in the run, and products of levels that a Round and a Cast may have made.
DYNAMIC = frozenset(
    ("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "QAttention", "DynamicQuantizeLSTM", "MatMulInteger",
     "ConvInteger", "MatMulIntegerToFloat")
)  # fmt: skip
# All operators that round activations to levels.
ROUNDING = DYNAMIC | {
    "QuantizeLinear", "QLinearConv", "QLinearMatMul", "QGemm", "QLinearAdd", "QLinearMul"
}  # fmt: skip
_RUNS = 2
_SCALE_CHANGE = 1 / 512
_LARGEST = 1 << 30  # bytes of a model whose scales are changed in memory


class Sensitivity:
    """Measures the sensitivity of the outputs of the model that `reference` runs."""

    def __init__(self, reference: Reference) -> None:
        self._reference, self._model = reference, reference.graph
        nodes = list(self._model.graph.node) if self._model else []
        self.applies = reference.has_levels or any(node.op_type in ROUNDING for node in nodes)
        self._dynamic = any(node.op_type in DYNAMIC for node in nodes)
        self._steps = self._input_steps() if self.applies and self._model else {}
        self._variants: list[Reference] | None = None  # made at the first run, for all vectors
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
        moved = any(value.dtype.kind == "f" for value in inputs)
        runs = [
            self._reference.run(
                [self._perturbed(name, value) for name, value in zip(names, inputs, strict=True)]
            )
            for _ in range(_RUNS if moved else 0)
        ]
        if self._variants is None:
            self._variants = self._changed_models(TIE_CHANGE if moved else _SCALE_CHANGE, tables=not moved)
        runs += [self._reference.like(variant).run(inputs) for variant in self._variants]
        return greatest_changes(runs, outputs)

    def reset(self) -> None:
        """Begin a new sequence: the reference has the state."""

    def _perturbed(self, name: str, value: Array) -> Array:
        return perturbed(value, self._steps.get(name), self._generator)

    def _changed_models(self, change: float, *, tables: bool) -> list[Reference]:
        """The model with scales greater and less by the fraction `change`; `tables`: embeddings moved."""
        # Constants move by random signs, other ones in each model.
        signs = (1, -1, 1, -1) if tables and (self._dynamic or self._model is None) else (1, -1)
        factors = [1 + sign * change for sign in signs]
        if self._model is None:
            moved = [self._reference.moved(factor, self._generator if tables else None) for factor in factors]
            return [variant for variant in moved if variant is not None]
        path = self._reference.path
        if sum(file.stat().st_size for file in [path, *external_files(path)]) > _LARGEST:
            return []
        model = onnx.load(str(path))
        variants: list[Reference] = []
        with scratch_folder("sensitivity") as folder:
            for number, factor in enumerate(factors):
                changed = Path(folder, f"variant{number}.onnx")
                onnx.save(self._changed(model, factor, tables=tables), str(changed))
                variant = OnnxRuntime(changed)
                variant.path = path
                variants.append(variant)
        return variants

    def _changed(self, model: onnx.ModelProto, factor: float, *, tables: bool) -> onnx.ModelProto:
        """A copy of `model`, scales of activations times `factor`; `tables`: embeddings moved."""
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
                replace(node, 1, np.asarray(scale * factor, scale.dtype))
            elif tables and node.op_type == "Gather" and node.input[0] in constants:
                table = onnx.numpy_helper.to_array(constants[node.input[0]])
                if table.dtype.kind == "f" and table.ndim > 1:
                    replace(node, 0, self._perturbed("", table))
        if tables and self._dynamic:
            self._move_constants(changed)
        return changed

    def _move_constants(self, model: onnx.ModelProto) -> None:
        """Move each element of the float32 constants of `model` up or down by the fraction TIE_CHANGE."""
        for tensor in model.graph.initializer:
            if tensor.data_type == onnx.TensorProto.FLOAT and tensor.dims and not tensor.external_data:
                value = onnx.numpy_helper.to_array(tensor)
                tensor.CopyFrom(onnx.numpy_helper.from_array(nudged(value, self._generator), tensor.name))


def greatest_changes(runs: Sequence[Sequence[Array]], outputs: Sequence[Array]) -> list[float]:
    """The greatest difference of an element between `outputs` and any of the `runs`, for each output."""
    return [
        max((_greatest_change(run[index], want) for run in runs), default=0.0)
        for index, want in enumerate(outputs)
    ]


def shared_changes(changes: Array, magnitudes: Array) -> Array:
    """Changes of outputs (vectors, outputs), each at least as great as that of any vector.

    All vectors sample one property of the model, each in a few runs, so that the least of them is found by
    chance. An output of small magnitude gets at most the same fraction of its magnitude.
    """
    fractions = np.divide(changes, magnitudes, out=np.zeros_like(changes), where=magnitudes > 0).max(0)
    shared: Array = np.maximum(changes, np.minimum(changes.max(0), fractions * magnitudes))
    return shared


def magnitude(tensor: Array) -> float:
    """The greatest magnitude of the finite elements of an output; 1 for levels."""
    if tensor.dtype.kind != "f":
        return 1.0
    return float(np.abs(tensor[np.isfinite(tensor)].astype(np.float64)).max(initial=0.0))


def _greatest_change(got: Array, want: Array) -> float:
    if got.shape != want.shape or want.dtype.kind not in "fiu" or not want.size:
        return 0.0
    difference: Any = np.abs(got.astype(np.float64) - want.astype(np.float64))
    finite = difference[np.isfinite(difference)]
    return float(finite.max()) if finite.size else 0.0
