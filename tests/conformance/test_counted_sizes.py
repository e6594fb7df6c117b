"""Operators whose results have a size that is in the data, against ONNX Runtime; one program for all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from .programs import TooManyError, execute
from .text_graphs import BATCH, Array, CompiledGraphs, TextGraph

GRAPHS = {
    "non_zero": TextGraph("g (float[4,6] x) => (int64[2,n] y) { y = NonZero(x) }"),
    "non_zero_bool": TextGraph("g (bool[3,2,5] x) => (int64[3,n] y) { y = NonZero(x) }"),
    "non_zero_bounded": TextGraph("g (float[4,6] x) => (int64[2,n] y) { y = NonZero(x) }", bounds={"y": 5}),
    "non_zero_open": TextGraph("g (float[b,6] x) => (int64[2,n] y) { y = NonZero(x) }", dims=BATCH),
    # What PyTorch's exporter writes for nonzero and masked_select.
    "masked_select": TextGraph(
        """g (float[b,6] x) => (float[n] y, int64[n,2] t) {
          m = Greater(x, zero) k = NonZero(m) t = Transpose<perm = [1, 0]>(k) y = GatherND(x, t) }""",
        {"zero": np.float32(0)},
        BATCH,
    ),
    # What PyTorch's exporters write for x[mask] = values: the tracing one counts an expanded mask anew, and
    # cuts the values to that number; torch.export's sums the mask, and repeats a value as often.
    "masked_update": TextGraph(
        """g (float[b,6] x, float[1] v) => (float[b,6] y, float[b,6] z) {
          m = Less(x, zero) k = NonZero(m) t = Transpose<perm = [1, 0]>(k) s = GatherND(x, t) h = Mul(s, half)
          shape = Shape(x) whole = Expand(m, shape) k2 = NonZero(whole) t2 = Transpose<perm = [1, 0]>(k2)
          st = Shape(t2) n = Gather(st, first) flat = Reshape(h, all) cut = Slice(flat, first, n, first)
          y = ScatterND(x, t2, cut)
          mf = Reshape(m, all) mi = Cast<to = 7>(mf) c = ReduceSum(mi, first) w = Expand(v, c)
          z = ScatterND(x, t, w) }""",
        {"zero": np.float32(0), "half": np.float32(0.5), "first": np.array([0]), "all": np.array([-1])},
        BATCH,
    ),
    # Sizes that agree in a run where the file is right: of two masks, and of parts and the whole.
    "agreed": TextGraph(
        """g (float[6] x, bool[6] c, bool[6] d) => (float[n] sum, float[6] all, float[6] whole, float[6] y) {
          a = Compress<axis = 0>(x, c) b = Compress<axis = 0>(x, d) sum = Add(a, b)
          other = Not(c) e = Compress<axis = 0>(x, other) both = Concat<axis = 0>(a, e) all = Sub(both, x)
          whole = Expand(both, six)
          k = NonZero(c) t = Transpose<perm = [1, 0]>(k) y = ScatterND(x, t, b) }""",
        {"six": np.array([6])},
    ),
    "compress": TextGraph(
        "g (float[3,5,2] x, bool[4] c) => (float[3,n,2] y) { y = Compress<axis = 1>(x, c) }"
    ),
    "compress_flat": TextGraph("g (float[3,5] x, bool[15] c) => (float[n] y) { y = Compress(x, c) }"),
    # Readers of a counted axis: arithmetic, movement, reductions along it and across it, its size as a value.
    "readers": TextGraph(
        """g (float[8,3] x, float[8] s) => (float[n,3] y, float[3,n] z, float[3] m, float[3] sum, int64[1] c,
                                             int64[n] r, float[k,3] two, float[n] soft) {
          high = Greater(s, zero) y = Compress<axis = 0>(x, high)
          e = Exp(y) z = Transpose<perm = [1, 0]>(e)
          sum = ReduceSum<keepdims = 0>(y, first)
          m = ReduceMean<axes = [0], keepdims = 0>(y)
          shape = Shape(y) c = Gather(shape, first)
          one = Squeeze(c) r = Range(start, one, step)
          two = Concat<axis = 0>(y, x)
          rows = ReduceSum<keepdims = 0>(y, last) soft = Softmax<axis = 0>(rows) }""",
        {
            "zero": np.float32(0), "first": np.array([0]), "last": np.array([1]), "start": np.int64(0),
            "step": np.int64(1),
        },
    ),
    # What exporters make of kept rows: padded to a fixed size, the best of them, written to their places.
    "kept_rows": TextGraph(
        """g (float[12,3] x, float[12] m) => (float[12,3] padded, float[q] best, int64[q] at, float[r,r] gram,
                                              float[t,3] last, float[n,3] turned, float[12,3] back,
                                              float[1,2,n] wide) {
          nz = NonZero(m) k = Squeeze(nz, first) r = Gather<axis = 0>(x, k) s = Shape(r) n = Gather(s, first)
          left = Sub(twelve, n) p = Concat<axis = 0>(first, first, left, first) padded = Pad(r, p)
          c = ReduceSum<keepdims = 0>(r, one) most = Min(n, five) best, at = TopK(c, most)
          t = Transpose<perm = [1, 0]>(r) gram = MatMul(r, t)
          last = Slice(r, three_before, far, first)
          turned = Slice(r, before, far_before, first, before)
          ku = Unsqueeze(k, one) back = ScatterND(empty, ku, r)
          tu = Unsqueeze(t, first) wide = Conv<pads = [1, 1]>(tu, taps) }""",
        {
            "first": np.array([0]), "one": np.array([1]), "twelve": np.array([12]), "five": np.array([5]),
            "three_before": np.array([-3]), "far": np.array([2**63 - 1]), "before": np.array([-1]),
            "far_before": np.array([-(2**62)]), "empty": np.zeros((12, 3), np.float32),
            "taps": np.arange(18, dtype=np.float32).reshape(2, 3, 3),
        },
    ),
    # The size alone is read: what was counted is not.
    "size_alone": TextGraph(
        """g (float[4,6] x) => (int64[1] c, float[n] ones, int64 d, float[k] line) {
          i = NonZero(x) s = Shape(i) c = Gather(s, last) ones = ConstantOfShape<value = one>(c)
          size = Size(i) d = Mul(size, size) line = Expand(number, c) }""".replace(
            "value = one", "value = float[1] {1.0}"
        ),
        {"last": np.array([1]), "number": np.float32([0.5])},
    ),
    "boxes": TextGraph(
        """g (float[2,30,4] x, float[2,3,30] s) => (int64[n,3] y) {
          y = NonMaxSuppression(x, s, most, overlap, least) }""",
        {"most": np.array([5]), "overlap": np.float32([0.4]), "least": np.float32([0.25])},
    ),
    "boxes_centred": TextGraph(
        """g (float[1,b,4] x, float[1,2,b] s, int64 most, float overlap) => (int64[n,3] y) {
          y = NonMaxSuppression<center_point_box = 1>(x, s, most, overlap) }""",
        dims={"b": (1, 40)},
    ),
    "boxes_bounded": TextGraph(
        """g (float[1,30,4] x, float[1,1,30] s) => (int64[n,3] y) {
          y = NonMaxSuppression(x, s, most, overlap) }""",
        {"most": np.array(2**62), "overlap": np.float32(0.9)},
        bounds={"y": 12},
    ),
    # The end of a detector as PyTorch's exporters write it: the boxes and scores that are kept.
    "detector": TextGraph(
        """g (float[1,60,6] x) => (float[n,4] boxes, float[n] scores, int64[n] classes) {
          a, c = Split<axis = 2>(x, parts) t = Transpose<perm = [0, 2, 1]>(c)
          kept = NonMaxSuppression<center_point_box = 1>(a, t, most, overlap, least)
          places = Slice(kept, two, three, one) place = Squeeze(places, one)
          rows = Squeeze(a, first) boxes = Gather<axis = 0>(rows, place)
          scores = GatherND(t, kept)
          kinds = Gather<axis = 1>(kept, middle) classes = Cast<to = 7>(kinds) }""",
        {
            "parts": np.array([4, 2]), "most": np.array([8]), "overlap": np.float32([0.5]),
            "least": np.float32([0.3]), "first": np.array([0]), "one": np.array([1]), "two": np.array([2]),
            "three": np.array([3]), "middle": np.int64(1),
        },
    ),
    # torchvision's batched_nms after a threshold: boxes of other classes are moved apart, ten are kept.
    "batched": TextGraph(
        """g (float[1,7,64] p) => (float[k,4] boxes, float[k] scores, int64[k] labels) {
          t = Transpose<perm = [0, 2, 1]>(p) rows = Squeeze(t, first)
          c, wh, s = Split<axis = 1>(rows, parts)
          e = Exp(wh) lo = Sub(c, e) hi = Add(c, e) all = Concat<axis = 1>(lo, hi)
          prob = Sigmoid(s) top = ReduceMax<axes = [1], keepdims = 0>(prob)
          cls = ArgMax<axis = 1, keepdims = 0>(prob)
          good = Greater(top, half) nz = NonZero(good) keep = Squeeze(nz, first)
          b = Gather<axis = 0>(all, keep) sc = Gather<axis = 0>(top, keep) cl = Gather<axis = 0>(cls, keep)
          far = ReduceMax<keepdims = 0>(b) step = Add(far, plus) number = Cast<to = 1>(cl)
          moved = Mul(number, step) column = Unsqueeze(moved, one) apart = Add(b, column)
          bu = Unsqueeze(apart, first) su = Unsqueeze(sc, both)
          kept = NonMaxSuppression(bu, su, most, limit) place = Gather<axis = 1>(kept, two)
          best = Slice(place, first, ten, first)
          boxes = Gather<axis = 0>(b, best) scores = Gather<axis = 0>(sc, best)
          labels = Gather<axis = 0>(cl, best) }""",
        {
            "half": np.float32(0.3), "most": np.array([2**63 - 1]), "limit": np.float32([0.5]),
            "two": np.int64(2), "first": np.array([0]), "one": np.array([1]), "both": np.array([0, 1]),
            "ten": np.array([10]),
            "parts": np.array([2, 2, 3]), "plus": np.float32(1),
        },
    ),
    # torchvision's suppression: no boxes give an empty list without asking the operator.
    "perhaps_none": TextGraph(
        """g (float[8,3] x, bool on) => (float[n,3] y, float[3,n] z, float[m,3] w, float[k,2] kept) {
          y, t = If (on) <
            then_branch = a () => (float[n,3] p, float[3,n] q) {
              p = Exp(x) q = Transpose<perm = [1, 0]>(p) },
            else_branch = b () => (float[n,3] p, float[3,n] q) {
              p = Identity(no_rows) q = Identity(no_columns) }>
          z = Add(t, t)
          rows = Compress<axis = 0>(x, some)
          w = If (on) <
            then_branch = c () => (float[m,3] r) { r = Identity(no_rows) },
            else_branch = d () => (float[m,3] r) { r = Neg(rows) }>
          kept = Gather<axis = 1>(w, ends) }""",
        {
            "no_rows": np.zeros((0, 3), np.float32), "no_columns": np.zeros((3, 0), np.float32),
            "some": np.array([1, 0, 1, 1, 0], bool), "ends": np.array([0, 2]),
        },
    ),
    "unique": TextGraph(
        "g (int64[7,5] x) => (int64[n] y, int64[n] i, int64[35] v, int64[n] c) { y, i, v, c = Unique(x) }"
    ),
    "unique_first": TextGraph(
        """g (float[b,6] x) => (float[n] y, int64[n] i, int64[m] v, int64[n] c) {
          y, i, v, c = Unique<sorted = 0>(x) }""",
        dims=BATCH,
    ),
    "unique_rows": TextGraph(
        """g (int64[3,9,2] x) => (int64[3,n,2] y, int64[n] i, int64[9] v, int64[n] c) {
          y, i, v, c = Unique<axis = 1>(x) }"""
    ),
    "top_k": TextGraph("g (float[3,8] x, int64[1] k) => (float[3,n] y, int64[3,n] i) { y, i = TopK(x, k) }"),
    "top_k_first": TextGraph(
        """g (float[b,8] x, int64[1] k) => (float[n,8] y, int64[n,8] i) {
          y, i = TopK<axis = 0, largest = 0>(x, k) }""",
        dims=BATCH,
    ),
    "twice": TextGraph(
        """g (float[9,3] x) => (int64[1,k] y) {
          a = Greater(x, zero) n = NonZero(a) first = Gather<axis = 0>(n, top) v = Cast<to = 1>(first)
          far = Greater(v, two) y = NonZero(far) }""",
        {"zero": np.float32(0), "top": np.int64(0), "two": np.float32(2)},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CompiledGraphs:
    return CompiledGraphs(tmp_path_factory.mktemp("counted"), GRAPHS)


def sparse(seed: int, shape: Sequence[int], share: float) -> Array:
    """Normal numbers; all but about the fraction `share` are 0."""
    random = np.random.default_rng(seed)
    values = random.normal(size=shape).astype(np.float32)
    return np.where(random.random(shape) < share, values, np.float32(0)).astype(np.float32)


SHARES = (0.0, 0.3, 0.7, 1.0)


@pytest.mark.parametrize("share", SHARES)
def test_positions_of_what_is_not_zero(built: CompiledGraphs, share: float) -> None:
    built.check("non_zero", sparse(1, (4, 6), share))
    built.check("non_zero_bool", sparse(2, (3, 2, 5), share) != 0)
    for batch in (1, 4):
        built.check("non_zero_open", sparse(3, (batch, 6), share), b=batch)
        built.check("masked_select", sparse(4, (batch, 6), share), b=batch)
        built.check("masked_update", sparse(4, (batch, 6), share), np.float32([7]), b=batch)
    built.check("twice", sparse(5, (9, 3), share))


def test_nan_and_negative_zero(built: CompiledGraphs) -> None:
    x = np.zeros((4, 6), np.float32)
    x[0, 1], x[2, 2], x[3, 5] = np.nan, -0.0, -np.inf
    assert built.check("non_zero", x)[0].shape == (2, 2)


@pytest.mark.parametrize("share", SHARES)
def test_slices_by_a_condition(built: CompiledGraphs, share: float) -> None:
    random = np.random.default_rng(6)
    built.check("compress", sparse(7, (3, 5, 2), 1), random.random(4) < share)
    built.check("compress_flat", sparse(8, (3, 5), 1), random.random(15) < share)


@pytest.mark.parametrize("kept", [0, 2, 6])
def test_the_run_compares_sizes_that_have_to_agree(built: CompiledGraphs, kept: int) -> None:
    random, x = np.random.default_rng(kept), sparse(12, (6,), 1)
    c, d = (random.permutation(np.arange(6) < kept) for _ in range(2))
    built.check("agreed", x, c, d)
    with pytest.raises(TooManyError):
        execute(built.steps["agreed"], built.library, [x, c, random.permutation(np.arange(6) < 3)])


@pytest.mark.parametrize("on", [False, True])
def test_a_branch_without_elements(built: CompiledGraphs, on: bool) -> None:
    found = built.check("perhaps_none", sparse(10, (8, 3), 1), np.array(on))
    assert [one.shape for one in found] == [(8 * on, 3), (3, 8 * on), (3 - 3 * on, 3), (3 - 3 * on, 2)]


@pytest.mark.parametrize("kept", [1, 3, 8])
def test_readers_of_a_counted_axis(built: CompiledGraphs, kept: int) -> None:
    scores = np.where(np.arange(8) < kept, 1, -1).astype(np.float32)
    built.check("readers", sparse(9, (8, 3), 1), np.random.default_rng(kept).permutation(scores))


@pytest.mark.parametrize("kept", [1, 2, 7, 12])
def test_what_exporters_make_of_kept_rows(built: CompiledGraphs, kept: int) -> None:
    random = np.random.default_rng(kept)
    mask = random.permutation((np.arange(12) < kept).astype(np.float32))
    built.check("kept_rows", sparse(11, (12, 3), 1), mask, absolute=1e-4)


def test_nothing_is_written_beyond_a_bound(built: CompiledGraphs) -> None:
    x = np.zeros((4, 6), np.float32)
    x[1, :5] = 1
    assert built.check("non_zero_bounded", x)[0].shape == (2, 5)
    x[3, 3] = 1
    with pytest.raises(TooManyError, match="y: 6"):
        execute(built.steps["non_zero_bounded"], built.library, [x])


def corners(random: np.random.Generator, *shape: int) -> Array:
    """Boxes with two corners in any order, some without an area."""
    boxes = random.random((*shape, 4)).astype(np.float32)
    boxes[..., 2:] = np.where(random.random((*shape, 1)) < 0.1, boxes[..., :2], boxes[..., 2:])
    return boxes


@pytest.mark.parametrize("seed", range(4))
def test_boxes_that_are_kept(built: CompiledGraphs, seed: int) -> None:
    random = np.random.default_rng(seed)
    for levels in (3, 1000):  # of three different scores, many are equal
        scores = (random.integers(0, levels, (2, 3, 30)) / levels).astype(np.float32)
        built.check("boxes", corners(random, 2, 30), scores)
        for count in (1, 17, 40):
            wide = random.random((1, count, 4)).astype(np.float32) * np.float32([4, 4, 3, 3])
            scores = (random.integers(0, levels, (1, 2, count)) / levels).astype(np.float32) - np.float32(0.5)
            most = np.array(random.integers(0, 45))
            built.check("boxes_centred", wide, scores, most, np.array(random.random(), np.float32), b=count)
    x = random.random((1, 60, 6)).astype(np.float32)
    built.check("detector", x)
    for spread in (0.5, 3):
        p = (random.normal(size=(1, 7, 64)) * spread).astype(np.float32)
        p[:, :2] *= 3
        built.check("batched", p, absolute=1e-5)


def test_no_box_and_all_boxes(built: CompiledGraphs) -> None:
    apart = np.stack([np.arange(30), np.zeros(30), np.arange(30) + 0.5, np.ones(30)], -1)
    boxes = np.float32([apart, apart])
    assert len(built.check("boxes", boxes, np.zeros((2, 3, 30), np.float32))[0]) == 0
    assert len(built.check("boxes", boxes, np.full((2, 3, 30), 0.5, np.float32))[0]) == 2 * 3 * 5
    assert len(built.check("detector", np.zeros((1, 60, 6), np.float32))[0]) == 0


def test_more_boxes_than_the_bound(built: CompiledGraphs) -> None:
    apart = np.stack([np.arange(30), np.zeros(30), np.arange(30) + 0.5, np.ones(30)], -1)[None]
    boxes, scores = apart.astype(np.float32), np.linspace(0, 1, 30, dtype=np.float32)[None, None]
    with pytest.raises(TooManyError, match="y: 30"):
        execute(built.steps["boxes_bounded"], built.library, [boxes, scores])
    boxes[0, 11:] = boxes[0, 11]
    built.check("boxes_bounded", boxes, scores[:, :, ::-1].copy())


@pytest.mark.parametrize("kinds", [1, 2, 6, 1000])
def test_distinct_elements(built: CompiledGraphs, kinds: int) -> None:
    random = np.random.default_rng(kinds)
    built.check("unique", random.integers(-kinds, kinds, (7, 5)))
    built.check("unique_rows", random.integers(0, kinds, (3, 9, 2)))
    for batch in (1, 4):
        x = random.integers(0, kinds, (batch, 6)).astype(np.float32)
        built.check("unique_first", np.where(x == 0, np.float32(-0.0), x), b=batch)


def test_a_number_of_best_elements_of_the_run(built: CompiledGraphs) -> None:
    random = np.random.default_rng(3)
    for count in (0, 1, 5, 8):
        built.check("top_k", random.integers(0, 5, (3, 8)).astype(np.float32), np.array([count]))
    for batch, count in ((1, 1), (4, 2), (4, 4)):
        built.check("top_k_first", sparse(4, (batch, 8), 0.5), np.array([count]), b=batch)
    with pytest.raises(TooManyError):
        execute(built.steps["top_k"], built.library, [sparse(5, (3, 8), 1), np.array([9])])


@pytest.mark.parametrize("share", SHARES)
def test_a_size_without_the_elements(built: CompiledGraphs, share: float) -> None:
    built.check("size_alone", sparse(10, (4, 6), share))
