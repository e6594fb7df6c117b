"""Many ONNX nodes as one model: one import, one compilation and one run compare all with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import tvm
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from kiln.golden.reference import open_reference
from onnx import helper, numpy_helper
from relaxed import virtual_machine

Array = npt.NDArray[Any]
MICROSOFT = "com.microsoft"


class ManyNodes:
    """Collects nodes; `check` compares their outputs with ONNX Runtime's, by the name of the case."""

    def __init__(self, opset: int = 21, seed: int = 0) -> None:
        self.opset = opset
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: dict[str, Array] = {}
        self.cases: dict[str, list[str]] = {}

    def input(self, value: Any) -> str:
        """A new input of the model with a test value."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = np.asarray(value)
        return name

    def const(self, value: Any, dtype: Any = None) -> str:
        """A weight."""
        name = f"w{len(self.weights)}"
        array = np.asarray(value, dtype) if dtype is not None else np.asarray(value)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def normal(self, *shape: int) -> str:
        """An input of normally distributed floats."""
        return self.input(self.rng.normal(size=shape).astype("f4"))

    def levels(self, dtype: str, *shape: int) -> str:
        """An input of integers over the whole range of `dtype`."""
        return self.input(self.some(dtype, *shape))

    def some(self, dtype: str, *shape: int) -> Array:
        """Integers over the whole range of `dtype`."""
        limits = np.iinfo(dtype)
        found: Array = self.rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
        return found

    def add(
        self, case: str, op: str, *inputs: str, domain: str = "", outputs: int = 1, **attributes: Any
    ) -> str:
        """A node; an empty input is left out. Returns the name of its first output."""
        names = [f"{case}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, case, domain=domain, **attributes))
        self.cases[case] = names
        return names[0]

    def save(self, path: Path, typed: bool = True) -> Path:
        """The model as a file; with `typed`, the outputs have the types that ONNX Runtime infers."""
        names = [name for names in self.cases.values() for name in names]
        graph = helper.make_graph(
            self.nodes,
            "g",
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
                for name, value in self.inputs.items()
            ],
            [helper.make_empty_tensor_value_info(name) for name in names],
            self.weights,
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        if not typed:
            for value in model.graph.output:
                value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
                value.type.tensor_type.shape.SetInParent()
            onnx.save(model, path)
            return path
        # ONNX cannot infer the types of ONNX Runtime's own operators.
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        for value, found in zip(model.graph.output, session.get_outputs(), strict=True):
            kind = found.type.removeprefix("tensor(").removesuffix(")")
            kind = {"float": "float32", "double": "float64"}.get(kind, kind)
            number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
            value.CopyFrom(helper.make_tensor_value_info(value.name, number, found.shape))
        onnx.save(model, path)
        return path

    def check(self, path: Path, absolute: float = 1e-5, relative: float = 1e-5, levels: int = 0) -> str:
        """Compare all outputs; integers may differ by `levels`. Returns the imported module's text."""
        self.save(path)
        values = list(self.inputs.values())
        expected = open_reference(path).run(values)
        module, _ = import_model(path, ImportOptions("m"))
        machine = virtual_machine(module)
        result = machine["main"](*[tvm.runtime.tensor(value) for value in values])
        got = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        names = [name for names in self.cases.values() for name in names]
        wrong = []
        for name, ours, want in zip(names, (item.numpy() for item in got), expected, strict=True):
            if ours.dtype != want.dtype or ours.shape != want.shape:
                wrong.append(f"{name}: {ours.dtype}{ours.shape}, not {want.dtype}{want.shape}")
                continue
            difference = np.abs(ours.astype("f8") - want.astype("f8")).max(initial=0)
            integer = want.dtype.kind in "iu"
            limit = levels if integer else absolute + relative * np.abs(want).max(initial=0)
            if not difference <= limit:
                wrong.append(f"{name}: differs by {difference:g}, allowed {limit:g}")
        assert not wrong, "\n".join(wrong)
        text: str = module.script()
        return text
