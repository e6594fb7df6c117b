"""LinearAttention, of ONNX and of ONNX Runtime (domain com.microsoft), as the operator `linear_attention`."""

from __future__ import annotations

import math
from typing import NamedTuple

from tvm import relax

from kiln.frontend.linear_attention import OPERANDS, LinearAttention
from kiln.frontend.onnx.body import Body, Expansion

_FLOAT = "float32"  # the operator computes in it, whatever type its tensors have
_RULES = ("gated_delta", "linear", "gated", "delta")
_INPUTS = ("queries", "keys", "values", "state", "decay", "beta")


class _Sizes(NamedTuple):
    """Number of states, of queries that read one, and of elements of a key and of a value."""

    heads: int
    queries: int
    key: int
    value: int


def linear_attention(body: Body) -> list[str | None]:
    """LinearAttention with each rule. Raises ValueError for sizes that do not fit the numbers of heads."""
    body.accept_attributes("chunk_size")  # of a computation in blocks, which has the same result
    rule = body.only("update_rule", *_RULES)
    for index, kind in ((4, "gated"), (5, "delta")):
        if (kind in rule) != body.has(index):
            needed = "needed" if kind in rule else "not allowed"
            raise ValueError(f"its input {index}, '{_INPUTS[index]}', is {needed} with update_rule {rule}")
    sizes = _sizes(body)
    tensors = {name: body.input(index) for index, name in enumerate(_INPUTS) if body.has(index)}
    operands = {name: body.cast(tensor, _FLOAT) for name, tensor in tensors.items()}
    present = [name for name in OPERANDS if name in operands]
    attention = LinearAttention(
        *sizes,
        scale=float(body.attribute("scale", 0.0)) or 1 / math.sqrt(sizes.key),
        operands=present,
        row_decay="decay" in operands and sizes.key > 1 and _width(body, 4) != sizes.heads,
        head_beta="beta" in operands and _width(body, 5) != 1,
    )
    if "decay" in operands:
        operands["decay"] = body.bind(relax.op.exp(body.tensor(operands["decay"])))
    results = body.bind_tensor(attention.call({name: body.tensor(operands[name]) for name in present}))
    y, state = (body.bind(relax.TupleGetItem(results, index)) for index in range(2))
    dtype = body.dtype(tensors["queries"])
    return [body.cast(y, dtype), body.cast(state, body.dtype(tensors.get("state", tensors["queries"])))]


def _width(body: Body, index: int) -> int:
    return body.size(body.input(index), 2, f"the last size of {_INPUTS[index]}")


def _sizes(body: Body) -> _Sizes:
    """The sizes of the heads, which all inputs have been compared with."""
    readers, heads = int(body.required("q_num_heads")), int(body.required("kv_num_heads"))
    for index, name in enumerate(_INPUTS):
        if body.has(index) and body.rank(body.input(index)) != (4 if name == "state" else 3):
            raise ValueError(
                f"its {name} '{body.input(index)}' are of shape {body.shape(body.input(index))}, allowed: "
                f"{'batch, heads, key size, value size' if name == 'state' else 'batch, length, size'}"
            )
    width = _width(body, 0)
    if heads < 1 or readers < 1 or readers % heads or width % readers:
        raise ValueError(
            f"its attributes 'q_num_heads' and 'kv_num_heads' are {readers} and {heads}, allowed: a divisor "
            f"of {width}, the last size of the queries, and a divisor of that"
        )
    key, value = width // readers, max(1, _width(body, 2) // heads)
    allowed = {1: [heads * key], 2: [heads * value], 4: [heads * key, heads], 5: [heads, 1]}
    batch, length, _ = body.shape(body.input(0))
    for index, name in enumerate(_INPUTS):
        if not body.has(index):
            continue
        operand_shape = body.shape(body.input(index))
        expected = [[batch, length, last] for last in allowed.get(index, [width])]
        if name == "state":
            expected = [[batch, heads, key, value]]
        if not any(
            all(body.symbols.equal(a, b) for a, b in zip(operand_shape, shape, strict=True))
            for shape in expected
        ):
            shown = [f"[{', '.join(map(body.symbols.shown, shape))}]" for shape in (operand_shape, *expected)]
            raise ValueError(
                f"its {name} '{body.input(index)}' are of shape {shown[0]}, allowed: "
                f"{' or '.join(shown[1:])}, of {readers} query heads and {heads} heads"
            )
    return _Sizes(heads, readers // heads, key, value)


ONNX: dict[str, Expansion] = {"LinearAttention": linear_attention}
