"""Attention in the graph: softmax(scale · q · k' + mask) · v, as einsums or matmuls, and its strides."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from tvm.relax.dpl import TuplePattern, is_const, is_op, wildcard

from kiln.byoc.backend import Code, TargetFacts
from kiln.byoc.match import Match, Operand, Pattern
from kiln.byoc.triton.kernel_call import KernelCall, limits_of
from kiln.config.precisions import is_narrow, stored
from kiln.graph.bindings import operator
from kiln.tir.symbols import ceil_div, product

_FORMS = (("einsum", "einsum"), ("matmul", "matmul"))
_WIDEST = 256  # numbers of a head
_MASKED = -1e4  # a constant mask with numbers below this above the diagonal is causal


@dataclass(frozen=True)
class AttentionMatch(Match):
    """A match of attention.

    `slices`: by operand that is a slice of columns (`<name>_base` is the tensor), the first column, their
    number, and the number of columns of the tensor.
    """

    slices: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class AttentionPattern(Pattern):
    """The pattern of attention; q, k and v that are slices of one tensor become that tensor (`Slice`)."""

    def match(
        self, call: Any, definitions: Any, variables: Mapping[Any, Any]
    ) -> tuple[Match, list[Any]] | None:
        result = super().match(call, definitions, variables)
        if result is None:
            return None
        match, inside = result
        operands = {**match.operands}
        slices: dict[str, tuple[int, int, int]] = {}
        for name in ("q", "k", "v"):
            base, *columns = _slice(operands[name].expr, definitions)
            slices[name] = columns[0], columns[1], columns[2]
            if base is not None:
                operands[f"{name}_base"] = Operand.of(base)
        values = {entry.name: getattr(match, entry.name) for entry in fields(match)} | {"operands": operands}
        labels = _labels(match)
        assert labels is not None
        sizes = _sizes(match, labels)
        keys, depth, value = (sizes[axis] for axis in (labels.key, labels.depth, labels.value))
        values["depth"] = keys * (depth + value) // value if isinstance(keys, int) else 0
        return AttentionMatch(**values, slices=slices), inside


def patterns() -> list[Pattern]:
    """The patterns of all forms of attention; forms with a mask and a scale come first."""
    table: list[Pattern] = []
    for first, second in _FORMS:
        for mask in (True, False):
            for scale in ("multiply", "divide", None):
                q, k, v, factor, added = wildcard(), wildcard(), wildcard(), is_const(), wildcard()
                anchor = _product(first, q, k)
                operands = {"q": q, "k": k, "v": v}
                scores = anchor
                if scale is not None:
                    operands["scale"] = factor
                    scores = is_op(f"relax.{scale}")(scores, factor)
                if mask:
                    operands["mask"] = added
                    scores = is_op("relax.add")(scores, added)
                root = _product(second, is_op("relax.nn.softmax")(scores), v)
                options = {"mask": mask or None, "scale": scale}
                table.append(AttentionPattern("attention", root, anchor, operands, _is_attention, options))
    return table


def _product(name: str, a: Any, b: Any) -> Any:
    return is_op("relax.einsum")(TuplePattern([a, b])) if name == "einsum" else is_op("relax.matmul")(a, b)


def _slice(expr: Any, definitions: Any) -> tuple[Any, int, int, int]:
    """The tensor, and its entry of AttentionMatch.slices, if `expr` is a reshaped slice of its columns.

    The tensor is None for another expression.
    """
    reshaped: Any = definitions.get(expr, None)
    if operator(reshaped) != "relax.reshape":
        return None, 0, 0, 0
    sliced: Any = definitions.get(reshaped.args[0], None)
    if operator(sliced) != "relax.strided_slice":
        return None, 0, 0, 0
    base, axes, begin = sliced.args[0], *([int(n.value) for n in arg.fields] for arg in sliced.args[1:3])
    shape = Operand.of(base).shape
    if axes != [len(shape) - 1] or len(sliced.args) != 4 or not isinstance(shape[-1], int):
        return None, 0, 0, 0
    return base, begin[0], Operand.of(sliced).shape[-1], shape[-1]


@dataclass(frozen=True)
class _Labels:
    """Axes of attention as letters. `batch`: one or two letters; the other axes are named by their role."""

    q: str
    k: str
    v: str
    y: str
    batch: str
    query: str
    key: str
    depth: str
    value: str


def _labels(match: Match) -> _Labels | None:
    """The axes of a match; None if its two products do not form attention."""
    rank = len(match.operands["q"].shape)
    ops = [op for op in match.ops if op["name"] in ("einsum", "matmul")]
    if ops[0]["name"] == "matmul":
        lead = "ab"[: rank - 2]
        texts = [f"{lead}ce,{lead}ed->{lead}cd", f"{lead}cd,{lead}df->{lead}cf"]
    else:
        texts = [op["attrs"]["subscripts"].replace(" ", "") for op in ops]
    (qk, scores), (pv, y) = (text.split("->") for text in texts)
    (q, k), (p, v) = qk.split(","), pv.split(",")
    if len(p) != len(scores) or not 3 <= len(scores) <= 4 or len(q) != rank:
        return None
    renamed = dict(zip(p, scores, strict=True))
    fresh = {letter: letter.upper() for letter in set(v) | set(y) if letter not in renamed}
    v, y = ("".join((renamed | fresh)[letter] for letter in text) for text in (v, y))
    batch, query, key = scores[:-2], scores[-2], scores[-1]
    depth, value = set(q) - set(scores), set(v) - set(scores)
    if len(depth) != 1 or len(value) != 1:
        return None
    labels = _Labels(q, k, v, y, batch, query, key, depth.pop(), value.pop())
    expected = {
        q: {*batch, query, labels.depth}, k: {*batch, key, labels.depth}, v: {*batch, key, labels.value},
        y: {*batch, query, labels.value},
    }  # fmt: skip
    return (
        labels
        if all(set(text) == axes and len(text) == len(axes) for text, axes in expected.items())
        else None
    )


def _is_attention(match: Match) -> bool:
    """Whether a match is attention in float32, with a softmax over the keys and heads of a known size."""
    operands = match.operands
    if any(operands[name].dtype != "float32" for name in operands) or any(
        operands[name].value is not None for name in "qkv"
    ):
        return False
    axis = next(op["attrs"]["axis"] for op in match.ops if op["name"] == "nn.softmax")
    labels = _labels(match)
    if labels is None or int(axis) not in (-1, len(labels.batch) + 1):
        return False
    if "scale" in operands and (operands["scale"].value is None or operands["scale"].value.size != 1):
        return False
    sizes = _sizes(match, labels)
    widths = sizes[labels.depth], sizes[labels.value]
    return all(isinstance(n, int) and n <= _WIDEST for n in widths)


def _sizes(match: Match, labels: _Labels) -> dict[str, Any]:
    """The size of each axis."""
    sizes: dict[str, Any] = {}
    for name in "qkv":
        sizes |= zip(getattr(labels, name), match.operands[name].shape, strict=True)
    return sizes


def _strides(
    text: str, sizes: Mapping[str, Any], row: str, wide: tuple[int, int] | None
) -> dict[str, int] | None:
    """Strides of the axes `text`; a negative stride is a multiple of the dynamic number of rows (axis `row`).

    `wide`: for a slice of columns, the columns of a row in the slice and in the whole tensor. None if a
    stride depends on another dynamic size.
    """
    strides, factor, rows = {}, 1, False
    for letter in reversed(text):
        strides[letter] = -factor if rows else factor
        size = sizes[letter]
        if isinstance(size, int):
            factor *= size
        elif letter == row and not rows:
            rows = True
        elif letter != text[0]:
            return None
        if wide is not None and not rows and factor == wide[0]:
            factor, wide = wide[1], None
    return strides if wide is None else None


def generate(match: AttentionMatch, facts: TargetFacts) -> Code | None:
    """One kernel for all heads; None for strides that are not constants or a number of rows."""
    labels = _labels(match)
    assert labels is not None
    sizes, operands = _sizes(match, labels), match.operands
    head = labels.batch[-1]
    call, dtype = KernelCall(facts), stored(facts.precision)
    names = [f"{name}_base" if f"{name}_base" in operands else name for name in "qkv"]
    mask = operands.get("mask")
    causal = mask is not None and _is_causal(mask.value)
    for name in "qkv":
        call.pointer(name, dtype)
    call.pointer("mask", "float32" if mask is not None and not causal else None)
    call.pointer("y", dtype)
    if not _add_strides(call, match, labels, sizes):
        return None
    kinds = (0, 0, 0) if mask is None or causal else _mask_strides(mask.shape, labels, sizes)
    if kinds is None or not isinstance(sizes[head], int):
        return None
    call.constants |= dict(zip(("MASK_BATCH", "MASK_HEAD", "MASK_ROW"), kinds, strict=True))
    queries, keys = sizes[labels.query], sizes[labels.key]
    call.size("queries", queries)
    call.size("keys", keys)
    batch = product([sizes[letter] for letter in labels.batch])
    tile = _tile(match.key, queries, keys, batch, sizes[labels.depth], sizes[labels.value], facts)
    if tile is None:
        return None
    m, n, warps, stages = tile
    call.constants |= {
        "HEADS": sizes[head], "SIZE": sizes[labels.depth], "VALUES": sizes[labels.value],
        "SCALE": _scale(match),
        "HAS_MASK": mask is not None and not causal, "CAUSAL": causal, "M": m, "N": n,
        "D": _power(sizes[labels.depth]), "E": _power(sizes[labels.value]),
    }  # fmt: skip
    source, launch, numbers = call.launch(
        "attention", "attention", (ceil_div(queries, m), batch, 1), warps, stages
    )
    used = [*names, *(["mask"] if mask is not None and not causal else [])]
    dtypes = dict.fromkeys([*names, "output"], dtype) if is_narrow(facts.precision) else {}
    return Code(source, used, sizes=numbers, launch=launch, dtypes=dtypes, tile=tile)


def _add_strides(call: KernelCall, match: AttentionMatch, labels: _Labels, sizes: Mapping[str, Any]) -> bool:
    """Add the strides of q, k, v and y to the constants; False if the kernel does not support them."""
    head, outer = labels.batch[-1], labels.batch[0] if len(labels.batch) > 1 else None
    rows = {"q": labels.query, "k": labels.key, "v": labels.key, "y": labels.query}
    for name, row in rows.items():
        text, begin, wide = getattr(labels, name), 0, None
        if f"{name}_base" in match.operands:
            begin, *columns = match.slices[name]
            wide = columns[0], columns[1]
        strides = _strides(text, sizes, row, wide)
        inner = labels.depth if name in "qk" else labels.value
        if strides is None or (name != "k" and strides[inner] != 1) or strides[row] < 0:
            return False
        upper = name.upper()
        along = {"BATCH": 0 if outer is None else strides[outer], "HEAD": strides[head], "ROW": strides[row]}
        call.constants |= {f"{upper}_{axis}": stride for axis, stride in along.items()}
        call.constants |= {"K_INNER": strides[inner]} if name == "k" else {}
        call.constants |= {f"{upper}_OFFSET": begin} if name != "y" else {}
    return True


def _power(size: int) -> int:
    """The least power of two that is not less than a size and that tensor cores multiply."""
    return max(16, 1 << (size - 1).bit_length())


def _tile(
    key: str, queries: Any, keys: Any, batch: Any, depth: int, value: int, facts: TargetFacts
) -> tuple[int, int, int, int] | None:
    """Queries and keys of a block's step, its warps, and stages of its copies; None: no tile has `rank`."""
    tiles = list(_tiles(queries, keys, batch, depth, value, facts))
    measured = facts.tiles.get(key)
    if measured in tiles:
        return measured
    return tiles[facts.rank] if facts.rank < len(tiles) else None


def _tiles(
    queries: Any, keys: Any, batch: Any, depth: int, value: int, facts: TargetFacts
) -> Iterator[tuple[int, int, int, int]]:
    """All tiles that the GPUs can run, in the order of preference.

    Few queries become narrow blocks, so that there are more of them.
    """
    itemsize = 2 if is_narrow(facts.precision) else 4
    many = queries if isinstance(queries, int) else 128
    wide = 64 if itemsize == 2 and max(depth, value) <= 128 else 32
    if isinstance(keys, int) and keys <= wide // 2:
        wide = max(16, _power(keys))
    room = limits_of(facts).shared_bytes - 2048
    row = (_power(depth) + _power(value)) * itemsize
    heights, widths = [16] if many <= 16 else [64, 32, 16, 128], [wide, 2 * wide, wide // 2]
    if many > 16 and _few(many, batch, facts):
        heights, widths = [16, 32, 64, 128], [2 * wide, wide, wide // 2]
    widths = [n for n in widths if 16 <= n <= 128]
    for m, n in itertools.product(heights, widths):
        for stages in (3, 2, 1):
            if m * _power(depth) * itemsize + stages * n * row <= room:
                yield m, n, 8 if m == 128 else 4, stages
                break


def _few(queries: int, batch: Any, facts: TargetFacts) -> bool:
    """Whether blocks of 64 queries leave more than half of the multiprocessors idle."""
    assert facts.cuda is not None
    return isinstance(batch, int) and 2 * ceil_div(queries, 64) * batch < facts.cuda.multiprocessors


def _scale(match: Match) -> float:
    """The factor of the scores."""
    if "scale" not in match.operands:
        return 1.0
    value = match.operands["scale"].value
    assert value is not None
    factor = float(value.reshape(-1)[0])
    return 1.0 / factor if match.options["scale"] == "divide" else factor


def _is_causal(mask: Any) -> bool:
    """Whether a constant mask is 0 up to the diagonal that ends in the last corner, and very small above."""
    if mask is None or mask.ndim < 2 or mask.shape[-2] < 2 or mask.size != mask.shape[-1] * mask.shape[-2]:
        return False
    matrix = mask.reshape(mask.shape[-2:])
    rows, columns = matrix.shape
    seen = np.tri(rows, columns, columns - rows, bool)
    return (
        matrix.shape[1] >= matrix.shape[0]
        and not matrix[seen].any()
        and bool((matrix[~seen] <= _MASKED).all())
    )


def _mask_strides(
    shape: Sequence[Any], labels: _Labels, sizes: Mapping[str, Any]
) -> tuple[int, int, int] | None:
    """Strides of the mask along batch, head and query, in rows of keys or, negative, in whole matrices."""
    full = [1] * (2 - len(labels.batch)) + [
        sizes[letter] for letter in (*labels.batch, labels.query, labels.key)
    ]
    padded = [1] * (4 - len(shape)) + list(shape)
    if len(shape) > 4 or (isinstance(padded[3], int) and padded[3] == 1 and full[3] != 1):
        return None
    spread = [not (isinstance(size, int) and size == 1) for size in padded]
    matrix = -1 if spread[2] else 1
    heads = full[1] if spread[1] else 1
    return (matrix * heads if spread[0] else 0, matrix if spread[1] else 0, 1 if spread[2] else 0)
