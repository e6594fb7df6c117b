"""Sequences and optional values of ONNX inside a graph, and Scan of opset 8, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from kiln.errors import KilnError
from kiln.frontend.importer import import_model
from kiln.frontend.options import ImportOptions

from .test_onnx_ops import check, normal, write

CONSTANTS: dict[str, Any] = {
    "halves": np.array([3, 3]), "first": np.array(0), "last": np.array(-1), "four": np.array(4),
    "three": np.array(3), "yes": np.array(True), "two": np.array(2), "many": np.array(110),
    "tenth": np.float32(0.1), "over": np.array([8, -2]),
}  # fmt: skip
BRANCH = """If<then_branch = t{0} () => (seq(float[p,q]) a{0})
    {{ n{0} = Neg(x) a{0} = SequenceConstruct(x, n{0}) }},
    else_branch = e{0} () => (seq(float[p,q]) b{0}) {{ m{0} = Relu(x) b{0} = SequenceConstruct(m{0}, x) }}>"""
# By result, the nodes that make it from x, of which each name is used once.
GRAPHS = {
    "a": "sa = SplitToSequence<axis=0>(x, halves) ua = SequenceAt(sa, first) va = SequenceAt(sa, last) "
         "a = Sub(ua, va)",
    "b": "sb = SplitToSequence<axis=0>(x, four) b = SequenceAt(sb, last)",
    "c": "sc = SplitToSequence<axis=1, keepdims=0>(x) c = SequenceAt(sc, last)",
    "d": "zd = Relu(x) sd = SequenceConstruct(x, zd) td = SequenceInsert(sd, zd, first) "
         "ud = SequenceErase(td, last) d = ConcatFromSequence<axis=1>(ud)",
    "e": "ze = Relu(x) qe = SequenceEmpty() se = SequenceInsert(qe, x) te = SequenceInsert(se, ze, last) "
         "e = ConcatFromSequence<axis=-1, new_axis=1>(te)",
    "f": "sf = SplitToSequence<axis=0>(x, halves) nf = SequenceLength(sf) cf = Cast<to=1>(nf) f = Mul(x, cf)",
    "g": "sg = SequenceConstruct(x, x) og = Optional(sg) hg = OptionalHasElement(og) "
         "tg = OptionalGetElement(og) ig = Identity(tg) yg = SequenceAt(ig, first) cg = Cast<to=1>(hg) "
         "g = Mul(yg, cg)",
    "h": "sh = SplitToSequence<axis=0>(x, halves) th = SequenceMap<body = bh (float[p,q] in) => "
         "(float[p,q] out) { out = Neg(in) }>(sh) h = ConcatFromSequence<axis=0>(th)",
    "i": 'qi = SequenceEmpty() si = Loop<body = bi (int64 n, bool c, seq(float[p,q]) old) => (bool co, '
         'seq(float[p,q]) new) { co = Identity(c) fi = Cast<to=1>(n) zi = Mul(x, fi) '
         'new = SequenceInsert(old, zi) }>(three, "", qi) i = ConcatFromSequence<axis=0>(si)',
    # More nodes than a loop has that is unrolled for its speed.
    "l": 'sl = SplitToSequence<axis=0>(x, halves) zl = SequenceAt(sl, first) l = Loop<body = bl (int64 n, '
         'bool c, float[p,q] old) => (bool co, float[p,q] new) { co = Identity(c) ml = Mod(n, two) '
         'rl = SequenceAt(sl, ml) al = Mul(rl, tenth) new = Add(old, al) }>(many, "", zl)',
    "j": f"sj = {BRANCH.format('j')}(yes) j = ConcatFromSequence<axis=0>(sj)",
    "k": f"sk = {BRANCH.format('k')}(flag) k = ConcatFromSequence<axis=0>(sk)",
}  # fmt: skip
RANKS = {"c": 1, "e": 3}


def file_of(path: Path, names: str) -> Path:
    """A file with the graphs of these results."""
    text = " ".join(GRAPHS[name] for name in names)
    sizes = {name: ",".join(f"{name}{axis}" for axis in range(RANKS.get(name, 2))) for name in names}
    results = ", ".join(f"float[{size}] {name}" for name, size in sizes.items())
    flag = ", bool flag" if "(flag)" in text else ""
    weights = {name: value for name, value in CONSTANTS.items() if name in text}
    return write(path, f"g (float[6,4] x{flag}) => ({results}) {{ {text} }}", **weights)


def test_sequences_are_resolved(tmp_path: Path) -> None:
    path = file_of(tmp_path / "m.onnx", "".join(GRAPHS))
    check(path, normal(6, 4), np.array(False))


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        (
            "s = SequenceConstruct(x, x) y = SequenceAt(s, n)",
            "'n' is not known before the model runs.*Gather",
        ),
        ("s = SplitToSequence(x, n) y = SequenceAt(s, first)", "'n' is not known before the model runs"),
        (
            "s = SequenceConstruct(x) y = SequenceAt(s, four)",
            "position 4 is outside of the sequence of 1 elements",
        ),
        (
            "s = SequenceConstruct(x) t = SequenceInsert(s, x, four) y = SequenceAt(t, first)",
            "position 4 is outside",
        ),
        ("s = SplitToSequence(x, over) y = SequenceAt(s, first)", r"its parts \[8, -2\] do not make up"),
        (
            "s = SequenceConstruct(x, x) t = SequenceConstruct(x) u = SequenceMap<body = b (float[p,q] i, "
            "float[p,q] j) => (float[p,q] o) { o = Add(i, j) }>(t, s) y = SequenceAt(u, first)",
            "its sequence 's' has 2 elements, not 1",
        ),
        ("s = SequenceEmpty() y = ConcatFromSequence<axis=0>(s)", "its sequence has no elements"),
    ],
)
def test_what_is_not_known_is_refused(nodes: str, says: str, tmp_path: Path) -> None:
    weights = {name: value for name, value in CONSTANTS.items() if name in nodes}
    text = f"g (float[6,4] x, int64 n) => (float[a,b] y) {{ {nodes} }}"
    with pytest.raises(KilnError, match=says):
        import_model(write(tmp_path / "m.onnx", text, **weights), ImportOptions("m"))


def test_a_result_that_is_a_sequence_is_refused_with_the_way_round(tmp_path: Path) -> None:
    text = "g (float[6,4] x) => (seq(float[a,b]) y) { z = Relu(x) y = SequenceConstruct(x, z) }"
    with pytest.raises(KilnError, match=r"output 'y' is of type sequence.*cut: \{elements: \{y: N\}\}"):
        import_model(write(tmp_path / "m.onnx", text), ImportOptions("m"))


def test_a_sequence_of_16_bits_that_a_loop_carries(tmp_path: Path) -> None:
    text = """g (float16[3] x) => (float16[a,b] y) { q = SequenceEmpty<dtype = 10>()
    s = Loop<body = b (int64 n, bool c, seq(float16[3]) old) => (bool more, seq(float16[3]) new)
      { more = Identity(c) new = SequenceInsert(old, x) }>(three, "", q)
    y = ConcatFromSequence<axis=0, new_axis=1>(s) }"""
    check(write(tmp_path / "m.onnx", text, **CONSTANTS), normal(3).astype("f2"))


SCAN = """<ir_version: 3, opset_import: ["" : 8]>
g (float[2, 3] h, float[2, 4, 3] x, float[2, 4, 3] z) => (float[2, 3] y, float[2, 4, 3] rows) {
  y, rows = Scan<num_scan_inputs = 2, directions = [0, 1],
    body = b (float[3] s, float[3] a, float[3] c) => (float[3] t, float[3] row)
    { t = Add(s, a)  row = Mul(t, c) }>("", h, x, z)
}
"""


def test_scan_of_opset_8(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(SCAN), tmp_path / "m.onnx")
    check(tmp_path / "m.onnx", normal(2, 3), normal(2, 4, 3), normal(2, 4, 3) + 1)


def test_a_while_loop_whose_body_states_no_types(tmp_path: Path) -> None:
    """PyTorch's exporter writes the bag of an EmbeddingBag so: the body's inputs have names alone."""
    text = """g (float[6,3] x) => (float[a,b] y) { q = SequenceEmpty() go = Less(first, three)
    end, s = Loop<body = b (int64 n, bool c, int64 at, seq(float[3]) old) => (bool more, int64 next,
      seq(float[3]) new) { here = Reshape(at, flat) after = Add(here, one) row = Slice(x, here, after)
      total = ReduceSum<keepdims=0>(row, zero) new = SequenceInsert(old, total) next = Add(at, two)
      more = Less(next, three) }>("", go, first, q)
    y = ConcatFromSequence<axis=0, new_axis=1>(s) }"""
    numbers = {"flat": np.array([-1]), "one": np.array([1]), "zero": np.array([0])}
    path = write(tmp_path / "m.onnx", text, **CONSTANTS, **numbers)
    model = onnx.load(path)
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    for value in [*loop.attribute[0].g.input[2:], *loop.attribute[0].g.output]:
        value.ClearField("type")
    onnx.save(model, path)
    check(path, normal(6, 3))
