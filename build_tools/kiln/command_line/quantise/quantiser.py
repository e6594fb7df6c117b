"""Static quantisation by onnxruntime.quantization: calibrated once, written for any choice of nodes.

Weights are int8 and symmetric, one scale for each output channel; activations are int8 or uint8 with a zero
point. The result is a standard QDQ graph, which ONNX Runtime, OpenVINO and TensorRT read too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx

from kiln.arrays import Array
from kiln.command_line.quantise.bias import correct, corrections
from kiln.command_line.quantise.choices import followers_in_float, is_choice
from kiln.command_line.quantise.equalise import equalise
from kiln.command_line.quantise.graphs import OnnxGraph, drop_unused
from kiln.command_line.quantise.parallel import join_parallel
from kiln.command_line.quantise.prepare import left_in_float, prepared_source
from kiln.command_line.quantise.recurrent import is_recurrent, round_recurrent
from kiln.command_line.quantise.tensors import (
    IN_FLOATS,
    bound,
    float_operands,
    inner_tensors,
    leave_in_float,
    reads_unbounded,
)
from kiln.command_line.samples import SamplePort
from kiln.errors import KilnError
from kiln.files import full_disk
from kiln.frontend.onnx.declared_shapes import declared_shape
from kiln.frontend.onnx.order import sort_nodes
from kiln.frontend.quiet import quiet_stderr
from kiln.golden.reference import open_reference
from kiln.golden.reference_base import Reference
from kiln.onnx_domains import is_onnx
from kiln.operators.registry import by_key

Method = Literal["minmax", "entropy", "percentile"]
Activations = Literal["int8", "uint8"]


class SampleReader:
    """Hands one sample after the other to the calibrator."""

    def __init__(self, runs: Sequence[Mapping[str, Array]]) -> None:
        self._runs = iter(runs)

    def get_next(self) -> dict[str, Array] | None:
        """The next sample; None at the end."""
        run = next(self._runs, None)
        return None if run is None else dict(run)

    def __len__(self) -> int:
        return 0  # collect all samples at once


def _load_prepared(source: Path, prepared: Path) -> onnx.ModelProto:
    """The model in the file `prepared`, which ONNX Runtime has written.

    On a full disk it writes a part of the file, without an error.
    """
    failed: Exception | None = None
    try:
        model = onnx.load(str(prepared))
    except Exception as error:  # of protobuf
        model, failed = onnx.ModelProto(), error
    if not model.graph.node and (full := full_disk([prepared.parent])):
        raise KilnError(f"{source}: cannot be prepared for quantisation: {full}") from failed
    if failed is not None:
        raise failed
    return model


def _check_file(source: Path) -> None:
    """Raise the KilnError by which a build refuses the file, if it does."""
    from kiln.frontend.onnx.model import read  # TVM takes a second to import

    read(source)


class Quantiser:
    """A float model, prepared and calibrated.

    `source` is the ONNX file and `folder` holds the intermediate files. `all_integer`: operands of Softmax
    and normalisations are rounded to 8 bits, too. `weight_bits`: of products, 8 or 7. `left`: see
    left_in_float(). Raises KilnError if the file is not a float ONNX model.
    """

    def __init__(
        self, source: Path, folder: Path, *, all_integer: bool = False, weight_bits: int = 8
    ) -> None:
        from onnxruntime.quantization.shape_inference import quant_pre_process

        self._source, self.prepared = source, folder / "prepared.onnx"
        try:
            with quiet_stderr():
                read_from = prepared_source(source, folder / "source.onnx")
                quant_pre_process(str(read_from), str(self.prepared), skip_symbolic_shape=True)
        except KilnError:
            raise
        except Exception as error:  # ONNX Runtime raises exceptions of its own classes
            _check_file(source)
            text = " ".join(str(error).split())
            raise KilnError(f"{source}: cannot be prepared for quantisation: {text}") from error
        self._model = _load_prepared(source, self.prepared)
        if not self._model.graph.node:
            _check_file(source)
        ops = {node.op_type for node in self._model.graph.node}
        if ops & {"QuantizeLinear", "DequantizeLinear", "QLinearConv", "ConvInteger", "MatMulInteger"}:
            raise KilnError(f"{source}: this model is quantised already")
        for number, node in enumerate(self._model.graph.node):
            node.name = node.name or f"{node.op_type}_{number}"
        _refuse_own_operators(self._model, source)
        if join_parallel(self._model):
            self._model = onnx.shape_inference.infer_shapes(self._model)
        self.left = left_in_float(self._model)
        self._ranges: Any = None
        self._unbounded: set[str] = set()
        self._activations: Activations = "int8"
        self._folder = folder
        self._all_integer, self._weight_bits = all_integer, weight_bits
        self._corrections: dict[str, Array] = {}

    def ports(self) -> list[SamplePort]:
        """The inputs of the model."""
        constants = {tensor.name for tensor in self._model.graph.initializer}
        return [
            SamplePort(
                value.name,
                np.dtype(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)),
                tuple(size if isinstance(size, int) else None for size in declared_shape(value) or ()),
                declared=declared_shape(value),
            )
            for value in self._model.graph.input
            if value.name not in constants
        ]

    def float_reference(self) -> Reference:
        """The reference of the float model.

        Raises KilnError, with the file that was given, for one that ONNX Runtime cannot load.
        """
        try:
            return open_reference(self.prepared)
        except KilnError as error:
            raise KilnError(str(error).replace(str(self.prepared), str(self._source))) from error

    def step(self) -> Callable[[Mapping[str, Array]], Mapping[str, Array]]:
        """A run of the float model, from inputs to outputs by name; the first one opens it."""
        opened: list[Reference] = []
        inputs = [port.name for port in self.ports()]
        outputs = [value.name for value in self._model.graph.output]

        def run(given: Mapping[str, Array]) -> Mapping[str, Array]:
            if not opened:
                opened.append(self.float_reference())
            return dict(zip(outputs, opened[0].run([given[name] for name in inputs]), strict=True))

        return run

    def choices(self) -> list[str]:
        """Names of the calibrated nodes that a search may keep in float, in the model's order."""
        graph, ops = OnnxGraph(self._model), self._quantised_ops()
        floats = set(self._ranges.keys()) if self._ranges is not None else set()
        return [node.name for node in graph.nodes if is_choice(graph, node, ops, floats)]

    def calibrate(
        self, runs: Sequence[Mapping[str, Array]], method: Method, activations: Activations
    ) -> None:
        """Measure the range of each activation over `runs`."""
        from onnxruntime.quantization.calibrate import CalibrationMethod, create_calibrator

        self._activations = activations
        kind = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}[method]
        path = self._folder / "augmented.onnx"
        named = self._folder / "named.onnx"
        onnx.save(self._model, str(named))
        try:
            # A range beyond a float's has no histogram, which raises an error after numpy's warnings.
            with quiet_stderr(), np.errstate(all="ignore"):
                calibrator = create_calibrator(
                    named, self._quantised_ops(), augmented_model_path=str(path),
                    calibrate_method=getattr(CalibrationMethod, kind),
                    extra_options={"symmetric": False},
                )  # fmt: skip
                calibrator.collect_data(SampleReader(runs))
                self._ranges = calibrator.compute_data()
            self._unbounded = bound(self._ranges)
        except Exception as error:  # ONNX Runtime raises exceptions of its own classes
            text = " ".join(str(error).split())
            advice = "" if method == "minmax" else "; --method minmax needs no histogram of the values"
            raise KilnError(f"calibration ({method}) failed: {text}{advice}") from error

    def equalised(self, runs: Sequence[Mapping[str, Array]]) -> tuple[Quantiser, int]:
        """A copy with channels equalised on `runs`, to be calibrated again, and how many groups changed."""
        quantiser = copy.copy(self)
        quantiser._model = onnx.ModelProto()
        quantiser._model.CopyFrom(self._model)
        quantiser._corrections = {}
        return quantiser, equalise(quantiser._model, runs, self._folder / "statistics.onnx")

    def corrected(self, runs: Sequence[Mapping[str, Array]]) -> Quantiser:
        """A copy whose biases make up for the rounding of weights on `runs`."""
        rounded = self._folder / "rounded.onnx"
        self.write(rounded)
        quantiser = copy.copy(self)
        corrections_by_node = corrections(
            self._model, onnx.load(str(rounded)), runs, self._folder / "statistics.onnx"
        )
        quantiser._corrections = corrections_by_node
        return quantiser

    def save_float(self, out: Path) -> None:
        """Write the float model, with the equalised weights where it has them."""
        onnx.save(self._model, str(out))

    def write(self, out: Path, *, only: Sequence[str] | None = None, without: Sequence[str] = ()) -> None:
        """Write the quantised model: of all nodes, `only` of some, or of all `without` some."""
        from onnxruntime.quantization import QuantType
        from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        graph = OnnxGraph(self._model)
        recurrent = {node.name for node in graph.nodes if is_recurrent(graph, node)}
        kept_in_float = list(without)
        if kept_in_float:
            kept_in_float += followers_in_float(graph, set(self.choices()) - set(without) - recurrent)
        kept_in_float += [node.name for node in graph.nodes if reads_unbounded(graph, node)]
        float_tensors = self._unbounded | inner_tensors(graph)
        float_tensors |= set() if self._all_integer else float_operands(graph)
        kept_in_float += graph.kept_limits(float_tensors)
        floats = {*without, *(() if only is None else self._corrections.keys() - set(only))}
        float_nodes = [name for name in self._corrections if name in floats]
        correct(model, self._corrections, float_nodes)
        drop_unused(model)
        activation = QuantType.QInt8 if self._activations == "int8" else QuantType.QUInt8
        with quiet_stderr():
            quantizer = QDQQuantizer(
                model, True, self._weight_bits < 8, QuantType.QInt8, activation, self._ranges,
                list(only) if only is not None else [], kept_in_float, self._quantised_ops(),
                {"WeightSymmetric": True, "ActivationSymmetric": False},
            )  # fmt: skip
            quantizer.quantize_model()
            leave_in_float(quantizer.model.model, float_tensors)
            round_recurrent(quantizer.model.model, recurrent.intersection(only or recurrent) - set(without))
            drop_unused(quantizer.model.model)
            sort_nodes(out, quantizer.model.model)  # ONNX Runtime's own sort passes over nested graphs
            onnx.save(quantizer.model.model, str(out))

    def _quantised_ops(self) -> list[str]:
        from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

        float_ops = frozenset() if self._all_integer else IN_FLOATS
        return sorted({*QDQRegistry, *QLinearOpsRegistry} - float_ops)


def _refuse_own_operators(model: onnx.ModelProto, source: Path) -> None:
    """Raise KilnError for a node of the user's own operators, which ONNX Runtime, that calibrates, lacks."""
    known = by_key()
    for node in model.graph.node:
        if not is_onnx(node) and (node.domain, node.op_type) in known:
            raise KilnError(
                f"{source}: node '{node.name}' is of your own operator {node.domain}.{node.op_type}, which "
                "ONNX Runtime cannot run, by which ranges are measured; quantise a part without it: the key "
                "'cut' (docs/models.md)"
            )
