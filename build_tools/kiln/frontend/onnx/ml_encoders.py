"""Encoders of ai.onnx.ml by tables: LabelEncoder, OneHotEncoder, Imputer, FeatureVectorizer."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import te, tirx

from kiln.arrays import Array
from kiln.frontend.onnx.body import Body, Expansion
from kiln.frontend.onnx.ml_forest_kernel import is_nan
from kiln.frontend.symbols import int64, int64_of

_KINDS = {"int64s": "int64", "floats": "float32", "tensor": ""}


def _table(body: Body, name: str) -> Array:
    """The numbers of the keys or values, `name`, of a LabelEncoder."""
    if body.attribute(f"{name}_strings"):
        raise ValueError(f"its attribute '{name}_strings' is of type string: encode by numbers")
    for kind, dtype in _KINDS.items():
        value = body.attribute(f"{name}_{kind}")
        if value is not None and kind == "tensor":
            array: Array = numpy_helper.to_array(value).reshape(-1)
            if array.dtype.kind not in "biuf":
                raise ValueError(f"its attribute '{name}_tensor' is of type string: encode by numbers")
            return array
        if value:
            return np.array(value, dtype)
    raise ValueError(f"it has no {name}: give '{name}_int64s', '{name}_floats' or '{name}_tensor'")


def _default(body: Body, dtype: Any) -> Any:
    """The result of a LabelEncoder for unknown keys: `default_tensor`, else the attribute for the type.

    Raises ValueError for a tensor of other than one number.
    """
    body.accept_attributes("default_float", "default_int64", "default_string")  # of values of another type
    tensor = body.attribute("default_tensor")
    if tensor is not None:
        array = numpy_helper.to_array(tensor)
        if array.size != 1 or array.dtype.kind not in "biuf":
            raise ValueError(f"its attribute 'default_tensor' has {array.size} elements, allowed: one number")
        return array.item()
    name, otherwise = ("default_float", -0.0) if dtype.kind == "f" else ("default_int64", -1)
    return body.attribute(name, otherwise)


def label_encoder(body: Body) -> list[str]:
    """LabelEncoder from numbers to numbers: the value of the key that equals an element, or the default."""
    keys, values = _table(body, "keys"), _table(body, "values")
    otherwise_value = _default(body, values.dtype)
    if len(keys) != len(values):
        raise ValueError(f"it has {len(keys)} keys and {len(values)} values, allowed: one value for each key")
    distinct, counts = np.unique(keys, return_counts=True)
    if len(distinct) != len(keys):
        raise ValueError(f"it has the key {distinct[counts.argmax()]} twice, allowed: each key once")
    x, dtype = body.input(0), str(values.dtype)
    if body.dtype(x) != str(keys.dtype):
        raise ValueError(f"its input is {body.dtype(x)}, its keys are {keys.dtype}: allowed is one type")
    shape = [int64_of(size) for size in body.shape(x)]
    otherwise = tirx.const(np.dtype(dtype).type(otherwise_value).item(), dtype)

    def compute(data: Any, keys_table: Any, values_table: Any) -> Any:
        k = te.reduce_axis((0, int64(len(keys))), name="k")

        def position(*indices: Any) -> Any:
            value, key = data(*indices), keys_table(k)
            equal = value == key
            if keys.dtype.kind == "f":
                equal = tirx.any(
                    tirx.all(is_nan(value), is_nan(key)),
                    tirx.all(tirx.Not(is_nan(value)), tirx.Not(is_nan(key)), equal),
                )
            return te.max(tirx.Select(equal, tirx.Cast("int32", k), tirx.IntImm("int32", -1)), axis=k)

        positions = te.compute(shape, position, name="place")

        def element(*indices: Any) -> Any:
            index = tirx.Cast("int64", tirx.max(positions(*indices), tirx.IntImm("int32", 0)))
            # Not Select: TVM drops the clamp of its branch, which is then loaded at -1.
            return tirx.if_then_else(
                positions(*indices) >= tirx.IntImm("int32", 0), values_table(index), otherwise
            )

        return te.compute(shape, element, name="encoded")

    tables = [body.tensor(body.const(array)) for array in (keys, values)]
    return [body.bind(body.emit_te(compute, body.tensor(x), *tables, hint="label_encoder"))]


def one_hot_encoder(body: Body) -> list[str]:
    """OneHotEncoder of numbers: a new last axis of flags, one per category; all 0 for an unknown number."""
    if body.attribute("cats_strings"):
        raise ValueError("its attribute 'cats_strings' is of type string: encode by numbers")
    if not body.attribute("zeros", 1):
        raise ValueError(
            "its attribute 'zeros' is 0, by which an unknown category is an error of the run: allowed is 1; "
            "in scikit-learn, handle_unknown='ignore'"
        )
    categories = body.const(np.array(body.required("cats_int64s"), "int64"))
    x = body.cast(body.input(0), "int64")
    flags = body.op("Equal", body.reshape(x, [*body.shape(x), 1]), categories)
    return [body.cast(flags, "float32")]


def imputer(body: Body) -> list[str]:
    """Imputer: a number in place of every element that has the value to replace, such as NaN."""
    x, dtype = body.input(0), body.dtype(body.input(0))
    used = ("imputed_value_floats", "replaced_value_float")
    unused = ("imputed_value_int64s", "replaced_value_int64")
    if not dtype.startswith("float"):
        used, unused = unused, used
    body.accept_attributes(*unused)
    values = np.array(body.required(used[0]), dtype)
    columns = body.size(x, -1, "its number of columns")
    if values.size not in (1, columns):
        raise ValueError(f"its attribute '{used[0]}' has {values.size} numbers, allowed: 1 or {columns}")
    replaced = body.attribute(used[1], 0)
    missing = body.op("IsNaN", x) if replaced != replaced else body.op("Equal", x, body.like(x, replaced))
    return [body.op("Where", missing, body.const(values), x)]


def feature_vectorizer(body: Body) -> list[str]:
    """FeatureVectorizer: the columns of all inputs, one after the other, in float32."""
    widths, rows = list(body.required("inputdimensions")), []
    if len(widths) != len(body.node.input):
        raise ValueError(f"it has {len(body.node.input)} inputs and {len(widths)} numbers of columns")
    for index, columns in enumerate(widths):
        row = body.cast(body.input(index), "float32")
        if body.rank(row) == 1:
            row = body.reshape(row, [1, *body.shape(row)])  # a tensor of one axis is a row
        if body.rank(row) != 2 or not body.symbols.equal(body.shape(row)[1], int(columns)):
            raise ValueError(f"its input {index} has other than 2 axes, or other than {columns} columns")
        rows.append(row)
    return [body.op("Concat", *rows, axis=1)]


ENCODERS: dict[str, Expansion] = {
    "FeatureVectorizer": feature_vectorizer,
    "Imputer": imputer,
    "LabelEncoder": label_encoder,
    "OneHotEncoder": one_hot_encoder,
}
