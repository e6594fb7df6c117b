"""Models of one node of ONNX Runtime (domain com.microsoft) that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions
from onnx import TensorProto, helper, numpy_helper


def refused(path: Path, operator: str, inputs: list[tuple[str, Any]], **attributes: Any) -> str:
    """The refusal of a model of one node; an input is an array or the sizes of data."""
    node = helper.make_node(
        operator, [name for name, _ in inputs], ["y"], domain="com.microsoft", **attributes
    )
    weights = [numpy_helper.from_array(one, name) for name, one in inputs if isinstance(one, np.ndarray)]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, one)
        for name, one in inputs
        if isinstance(one, list)
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", values, [result], weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    with pytest.raises(KilnError) as caught:
        import_model(path, ImportOptions("m"))
    return str(caught.value)
