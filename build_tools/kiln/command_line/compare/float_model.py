"""Compares a quantised ONNX model on its target with the float model that it was made from, by tensor names.

A quantiser keeps the names of the tensors: where the float model has `t`, the quantised one has `t` as well,
and after it the pair QuantizeLinear and DequantizeLinear, whose result the next layer reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from kiln.arrays import Array
from kiln.command_line.build import BuiltBundle, build_copy
from kiln.command_line.compare.figures import Difference, difference
from kiln.command_line.compare.probe import Probe
from kiln.command_line.compare.probes import write_probed
from kiln.command_line.compare.run import (
    WORK,
    Compared,
    Row,
    configuration_of,
    errors_of_inputs,
    errors_of_the_copy,
    golden_inputs,
    new_folder,
)
from kiln.command_line.model_files import graph_of
from kiln.command_line.running import Destination, RunningBundle, running
from kiln.config import Model, load_model
from kiln.config.interface import Interface
from kiln.config.records import read
from kiln.errors import KilnError
from kiln.files import make_build_folder
from kiln.golden.compare import ErrorLimits
from kiln.golden.reference import open_reference
from kiln.manifest import read_manifest
from kiln.params.states import initial_value
from kiln.sources.npy import load_npz

MIN_SNR = 20.0  # dB
Pair = tuple[str, Array, Array]  # name of a vector; a tensor of the quantised model, and of the float model


def compare_with_float(
    name: str,
    float_name: str,
    destination: Destination,
    inputs: Path | None = None,
    min_snr: float | None = None,
    **options: str,
) -> Compared:
    """Run the quantised model `name` at `destination`, and compare its tensors with those of `float_name`.

    `name` and `float_name` are names or paths of ONNX models with the same inputs; ONNX Runtime computes the
    float model. A tensor passes with a signal-to-noise ratio of at least `min_snr` dB (None: 20); `error` is
    the root mean square of the difference. Raises KilnError where a model is of another kind, their inputs
    differ, or they share no tensor, and where a build or a run fails.
    """
    limit = MIN_SNR if min_snr is None else min_snr
    model = load_model(name)
    folder = WORK / destination.target.name / model.name
    with new_folder(folder):
        model, source = graph_of(model, folder, "compare --float", (".onnx",))
        make_build_folder(folder / "float_model")
        _, original = graph_of(load_model(float_name), folder / "float_model", "compare --float", (".onnx",))
        probed, float_probed = folder / "probed.onnx", folder / "float.onnx"
        ours = {probe.tensor for probe in write_probed(source, probed)}
        probes = [probe for probe in write_probed(original, float_probed) if probe.tensor in ours]
        if not probes:
            raise KilnError(f"compare: {source} and {original} have no tensor of the same name; --float is "
                            "the model that was quantised")  # fmt: skip
        arrays = None if inputs is None else load_npz(inputs)
        golden = None if arrays is None else golden_inputs(arrays, folder)
        configuration_of(model, source, model.name, golden, folder)  # for the report
        configuration = configuration_of(model, probed, f"{model.name}_probed", golden, folder)
    with errors_of_inputs(inputs, arrays, folder), errors_of_the_copy(model, source, probed):
        built = build_copy(configuration, destination.named, **options)
    read_as = _results_of_pairs(onnx.load(str(probed)))
    with running(built.folder, destination) as running_bundle:
        float_model = _FloatModel(float_probed, _states(model, built))
        pairs: dict[str, list[Pair]] = {probe.tensor: [] for probe in probes}
        for number, (vector, inputs_by_name, got) in enumerate(_runs(running_bundle, built.folder)):
            if number % running_bundle.bundle.runs() == 0:
                float_model.begin()
            want = float_model.run(inputs_by_name)
            for tensor, tensor_pairs in pairs.items():
                value = got.get(read_as.get(tensor, tensor), got.get(tensor))
                if value is not None and want[tensor].dtype.kind == "f":
                    tensor_pairs.append((vector, value, want[tensor]))
        ends = {entry.name for entry in onnx.load(str(original)).graph.output}
        rows = [
            row
            for probe in probes
            for row in _rows(probe, pairs[probe.tensor], limit, may_scale=probe.tensor not in ends)
        ]
        output_rows = [row for row in rows if row.probe.tensor in ends]
        stored = {tensor: _names_when_stored(tensor, read_as, probed) for tensor in pairs}
        return Compared(
            model.name, destination.target.name, running_bundle.runner.description, rows, output_rows,
            reference=f"{original} in float", stored_as=stored,
        )  # fmt: skip


def _runs(
    running_bundle: RunningBundle, folder: Path
) -> Iterator[tuple[str, dict[str, Array], dict[str, Array]]]:
    """The name of each golden vector, and the arrays of its inputs and of the bundle's outputs, by name.

    `folder`: the bundle's, with the names of inputs and outputs in its manifest.
    """
    manifest = read_manifest(folder)
    input_names, output_names = (
        [entry["name"] for entry in manifest[kind]] for kind in ("inputs", "outputs")
    )
    vectors = running_bundle.bundle.vectors()
    results = running_bundle.outputs([vector.inputs for vector in vectors], running_bundle.bundle.runs())
    for vector, outputs in zip(vectors, results, strict=True):
        inputs_by_name = dict(zip(input_names, vector.inputs, strict=True))
        yield vector.name, inputs_by_name, dict(zip(output_names, outputs, strict=True))


def _results_of_pairs(model: onnx.ModelProto) -> dict[str, str]:
    """The result of the DequantizeLinear after each tensor that is quantised."""
    rounded = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    return {
        rounded[node.input[0]]: node.output[0]
        for node in model.graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in rounded
    }


def _names_when_stored(tensor: str, read_as: Mapping[str, str], path: Path) -> list[str]:
    """The names that `tensor` has in the quantised model besides its own: as integers, as floats again."""
    if tensor not in read_as:
        return []
    graph = onnx.load(str(path)).graph
    integers = [node.output[0] for node in graph.node
                if node.op_type == "QuantizeLinear" and node.input[0] == tensor]  # fmt: skip
    return [*integers, read_as[tensor]]


def _states(model: Model, built: BuiltBundle) -> dict[str, tuple[str, Array]]:
    """By input of the model that keeps a value: the output that it is fed from, and its first value."""
    records = read(Interface, built.interface).states if model.state else []
    return {
        record.name: (model.state[record.name].output, initial_value(record))
        for record in records
        if record.name in model.state
    }


class _FloatModel:
    """The float model with all its tensors as outputs, whose runs hand on its state.

    `states`: as from `_states`; the float model keeps the same values. `path`: its file.
    """

    def __init__(self, path: Path, states: Mapping[str, tuple[str, Array]]) -> None:
        graph = onnx.load(str(path), load_external_data=False).graph
        constants = {tensor.name for tensor in graph.initializer}
        self._inputs = [entry.name for entry in graph.input if entry.name not in constants]
        self._outputs = [entry.name for entry in graph.output]
        self._reference, self._states = open_reference(path), states
        missing = [output for output, _ in states.values() if output not in self._outputs]
        if missing:
            raise KilnError(
                f"compare: the quantised model's state comes from '{missing[0]}', which the float model lacks"
            )
        self.begin()

    def begin(self) -> None:
        """Set the state back to its first value."""
        self._now = {name: value for name, (_, value) in self._states.items()}

    def run(self, fed: Mapping[str, Array]) -> dict[str, Array]:
        """All tensors of the next run by name. Raises KilnError where the inputs are not those of `fed`."""
        inputs_of_run = {**fed, **self._now}
        if set(self._inputs) != set(inputs_of_run):
            raise KilnError(
                f"compare: the float model's inputs are {', '.join(self._inputs)}, the quantised one's "
                f"{', '.join(inputs_of_run)}"
            )
        results = self._reference.run([inputs_of_run[name] for name in self._inputs])
        tensors = dict(zip(self._outputs, results, strict=True))
        self._now = {name: tensors[output] for name, (output, _) in self._states.items()}
        return tensors


def _rows(probe: Probe, pairs: Sequence[Pair], min_snr: float, may_scale: bool) -> list[Row]:
    """A row for each vector: as it is, or where it only passes so, after factors for the channels.

    `may_scale`: no output of the model, which has no next layer whose weights undo factors.
    """
    plain = [snr_difference(got, want, min_snr) for _, got, want in pairs]
    rows = [Row(probe, vector, row) for (vector, _, _), row in zip(pairs, plain, strict=True)]
    same_shapes = all(got.shape == want.shape for _, got, want in pairs)
    if not may_scale or not same_shapes or all(row.passed for row in plain):
        return rows
    factors = _channel_factors([(got, want) for _, got, want in pairs])
    for number, (vector, got, want) in enumerate(pairs):
        scaled = snr_difference(got.astype(np.float64) * factors, want, min_snr)
        if scaled.passed and not plain[number].passed:
            rows[number] = Row(probe, vector, scaled, scaled=True)
    return rows


def snr_difference(got: Array, want: Array, min_snr: float) -> Difference:
    """The difference of a tensor, which passes where its signal-to-noise ratio is at least `min_snr` dB.

    `error` and `limit` are root mean squares: of the difference, and of the greatest one that passes.
    """
    plain = difference(got, want, ErrorLimits())
    if got.shape != want.shape or not want.size:
        return plain
    noise = np.sqrt(np.mean(np.square(got.astype(np.float64) - want)))
    limit = float(np.sqrt(np.mean(np.square(want.astype(np.float64))))) * 10 ** (-min_snr / 20)
    passed = plain.snr is None or bool(noise <= limit)
    detail = "" if passed else f"{plain.got:.6g} instead of {plain.want:.6g}, {plain.snr:.1f} dB"
    return Difference(
        passed, float(noise), limit, plain.snr, plain.where, plain.got, plain.want, detail, plain.weak
    )


def _channel_factors(pairs: Sequence[tuple[Array, Array]]) -> Array:
    """The factor for each channel that brings the first arrays of pairs nearest to the second.

    Returns an array that can be multiplied with them.

    Equalisation divides the channels of a tensor by factors, which the next layer's weights undo. They are
    the same in all runs: a factor that is fitted to a single element would hide any error. The channel axis
    is axis 1 or the last axis, whichever fits better. 1 where no channel has two elements.
    """
    best, least = np.ones(()), np.inf
    rank = pairs[0][0].ndim
    for axis in {1, rank - 1} if rank > 1 else set[int]():
        other_axes = tuple(one for one in range(rank) if one != axis)
        if len({want.shape[axis] for _, want in pairs}) > 1:
            continue
        if sum(want.size // max(want.shape[axis], 1) for _, want in pairs) < 2:
            continue
        doubled = [(got.astype(np.float64), want.astype(np.float64)) for got, want in pairs]
        power = sum(np.square(got).sum(other_axes, keepdims=True) for got, _ in doubled)
        common = sum((got * want).sum(other_axes, keepdims=True) for got, want in doubled)
        factors = np.maximum(common / np.where(power > 0, power, 1), 0)
        noise = sum(float(np.square(got * factors - want).sum()) for got, want in doubled)
        if noise < least:
            best, least = factors, noise
    return best
