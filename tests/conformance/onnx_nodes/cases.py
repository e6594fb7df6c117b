"""ONNX's node tests as variants: all inputs as data, all but one as constants of the file, and in float16."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from kiln.frontend.onnx.elements import spread_sequences
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]

DATA, CONSTANTS, HALVES = "data", "constants", "float16"
VARIANTS = (DATA, CONSTANTS, HALVES)
# Operators whose first input is a size or a bound too: with constants, they have no input at all.
_GENERATORS = (
    "BlackmanWindow", "ConstantOfShape", "HammingWindow", "HannWindow", "MelWeightMatrix", "Range",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A variant of a node test.

    name: `<name of ONNX's test>/<variant>`. operator: the operator that the test is about. model: the file.
    inputs, outputs: arrays for the tensors that remain inputs, and the expected results; None: not an array
    (a sequence, an optional).
    """

    name: str
    operator: str
    model: onnx.ModelProto
    inputs: Sequence[Array | None]
    outputs: Sequence[Array | None]
    relative: float
    absolute: float

    @property
    def variant(self) -> str:
        """The part of the name that says how the test is run."""
        return self.name.rpartition("/")[2]


def collect(only: str = "") -> list[Case]:
    """All variants of the tests whose name contains one of the words of `only`, which commas separate.

    ONNX seeds its random data for each operator, so they are the same in every process.
    """
    from onnx.backend.test.case.node import collect_testcases

    words = only.split(",")
    tests = _quietly(lambda: collect_testcases(None))
    return _all_variants(test for test in tests if any(word in test.name for word in words))


def collect_from(tests: Mapping[str, Collection[str]]) -> list[Case]:
    """All variants of some tests, by module of onnx.backend.test.case.node, in a second, not in fifteen."""
    from onnx.backend.test.case import node

    for module in tests:
        _quietly(lambda name=f"{node.__name__}.{module}": importlib.import_module(name))
    names = {name for named in tests.values() for name in named}
    return _all_variants(test for test in node._NodeTestCases if test.name in names)


def _all_variants(tests: Iterable[Any]) -> list[Case]:
    """The variants of all tests; those in float16 are made of the variant with the most constants."""
    from .halves import in_halves

    cases: list[Case] = []
    for test in tests:
        variants = list(_variants(test))
        half = in_halves(variants[-1])
        cases += variants if half is None else [*variants, half]
    return cases


def _quietly(collect: Callable[[], Any]) -> Any:
    """Call `collect` without the warnings of ONNX's references, which divide by zero on purpose."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return collect()


def _variants(test: Any) -> Iterator[Case]:
    """The variants of one test; a test without an input that can be a constant has only the first."""
    source, given, wanted = _tensors_of(test)
    operator = _operator(test)
    yield Case(f"{test.name}/{DATA}", operator, source, given, wanted, test.rtol, test.atol)
    names = [value.name for value in source.graph.input]
    first = 0 if operator in _GENERATORS else 1
    constant = {
        name: value for name, value in list(zip(names, given, strict=True))[first:] if value is not None
    }
    if not constant:
        return
    model = onnx.ModelProto()
    model.CopyFrom(source)
    model.ir_version = max(model.ir_version, 4)  # in earlier files, weights are inputs too
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    graph_inputs = [value for value in model.graph.input if value.name not in constant]
    del model.graph.input[:]
    model.graph.input.extend(graph_inputs)
    for name, value in constant.items():
        tensor = numpy_helper.from_array(value, name)
        if tensor.data_type != types[name]:  # types that NumPy lacks
            tensor = onnx.helper.make_tensor(name, types[name], value.shape, value.reshape(-1))
        model.graph.initializer.append(tensor)
    input_values = [value for name, value in zip(names, given, strict=True) if name not in constant]
    yield Case(f"{test.name}/{CONSTANTS}", operator, model, input_values, wanted, test.rtol, test.atol)


def _tensors_of(test: Any) -> tuple[onnx.ModelProto, list[Array | None], list[Array | None]]:
    """The model of a test, its inputs and its results; sequences and optional values are tensors."""
    model = onnx.ModelProto()
    model.CopyFrom(test.model)
    counts, found = {}, []
    for values, items in zip((model.graph.input, model.graph.output), test.data_sets[0], strict=True):
        arrays: list[Array | None] = []
        for value, item in zip(values, items, strict=True):
            kind = value.type.WhichOneof("value")
            parts = item if isinstance(item, list) else [] if item is None else [item]
            if kind == "tensor_type" or any(isinstance(part, list) or _array(part) is None for part in parts):
                arrays.append(_array(item))
                continue
            counts[value.name] = len(parts)
            arrays += [_array(part) for part in parts]
        found.append(arrays)
    if counts:
        spread_sequences(Path(test.name), model, counts)
        for value, array in zip(model.graph.input, found[0], strict=True):
            if array is not None and not value.type.tensor_type.HasField("shape"):
                value.type.tensor_type.shape.CopyFrom(
                    helper.make_tensor_type_proto(1, array.shape).tensor_type.shape
                )
    return model, found[0], found[1]


def _operator(test: Any) -> str:
    """The operator of a test. Tests of an operator's function body have its nodes: there the name tells."""
    nodes = test.model.graph.node
    if len(nodes) == 1 or "_expanded" not in test.name:
        domain = f"{nodes[0].domain}." if nodes[0].domain not in ("", "ai.onnx") else ""
        return str(domain + (nodes[-1].op_type if len(nodes) > 1 else nodes[0].op_type))
    words = test.name.removeprefix("test_").split("_")
    schemas = {schema.name.lower(): schema.name for schema in onnx.defs.get_all_schemas()}
    for count in range(len(words), 0, -1):
        found = schemas.get("".join(words[:count]))
        if found is not None:
            return str(found)
    return {"nllloss": "NegativeLogLikelihoodLoss", "sce": "SoftmaxCrossEntropyLoss"}.get(words[0], words[0])


def _array(item: Any) -> Array | None:
    if isinstance(item, onnx.TensorProto):
        return numpy_helper.to_array(item)
    return None if item is None or isinstance(item, list) else np.asarray(item)
