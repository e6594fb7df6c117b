"""Layers in patches: the same values as without, fewer bytes at once, and the choice for a limit of RAM."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tvm
from kiln.config import load_target
from kiln.config.memory import Region
from kiln.lower.patch_choice import in_patches, ram_limit
from kiln.lower.patches import bands, divided, macs_of, regions
from kiln.lower.row_rules import Need, rule_of
from relaxed import Array, const, module, operators, run_by_tvm
from tvm import relax, te

op = relax.op
RNG = np.random.default_rng(3)
IMAGE = ((1, 19, 14, 3), "float32")


def weights(*shape: int) -> Any:
    return const(RNG.normal(0, 1, shape))


def emit(expr: Any) -> Any:
    return relax.BlockBuilder.current().emit(expr)


def convolved(x: Any, kernel: Any, stride: int = 1, pad: int = 1, dilation: int = 1, groups: int = 1) -> Any:
    padded = emit(op.nn.pad(x, [0, 0, pad, pad, pad, pad, 0, 0], "constant", 0.5)) if pad else x
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    return emit(op.nn.conv2d(padded, kernel, strides=stride, dilation=dilation, groups=groups, **layouts))


def network(x: Any) -> Any:
    """A stem, a residual block with a depthwise convolution, pools, and the rest of a classifier."""
    stem = emit(op.nn.relu(op.add(convolved(x, weights(3, 3, 3, 8), stride=2), weights(1, 1, 1, 8))))
    inner = convolved(stem, weights(3, 3, 1, 8), groups=8)
    block = emit(op.add(op.multiply(inner, weights(8)), stem))
    wide = convolved(block, weights(3, 2, 8, 5), pad=2, dilation=2)
    pooled = emit(op.nn.max_pool2d(wide, (3, 2), (2, 2), [1, 1, 1, 0], layout="NHWC"))
    mean = emit(
        op.nn.avg_pool2d(pooled, (2, 2), (1, 1), [1, 0, 0, 0], layout="NHWC", count_include_pad=False)
    )
    scale = emit(op.sigmoid(emit(op.mean(mean, [1, 2], True))))
    return op.reshape(emit(op.multiply(mean, scale)), [1, -1])


def made() -> Any:
    global RNG
    RNG = np.random.default_rng(3)
    return module([IMAGE], network)


def test_bands_cover_all_rows() -> None:
    for rows in range(1, 12):
        for parts in range(1, rows + 1):
            rows_of_bands = bands(rows, parts)
            assert [row for first, last in rows_of_bands for row in range(first, last)] == list(range(rows))
            assert len(rows_of_bands) <= parts


@pytest.mark.slow
@pytest.mark.parametrize("parts", [*(pytest.param(n, marks=pytest.mark.heavy) for n in (2, 7)), 3])
def test_values_are_those_of_the_whole_image(parts: int) -> None:
    mod = made()
    region = regions(mod)
    x: Array = RNG.normal(0, 1, IMAGE[0]).astype("float32")
    (want,) = run_by_tvm(mod, [x])
    tried = 0
    for number in range(0, len(region), 3):  # pads, the stem, the residual sum, the pools
        new = divided(mod, region[number], min(parts, region[number].rows))
        if new is None:
            continue
        tried += 1
        (got,) = run_by_tvm(new, [x])
        assert np.allclose(got, want, rtol=1e-6, atol=1e-6), number
        assert operators(new).count("concat") == 1
    assert tried >= 3


def branches(x: Any) -> Any:
    """Branches of unlike receptive fields that are joined, as in Inception; half of the channels go on."""
    stem = emit(op.nn.relu(convolved(x, weights(3, 3, 3, 8))))
    stem = emit(op.nn.max_pool2d(stem, (3, 2), (2, 2), [0, 1, 0, 0], (1, 1), True, layout="NHWC"))
    pooled = emit(op.nn.max_pool2d(stem, (3, 3), (1, 1), [1, 1, 1, 1], layout="NHWC"))
    wide = emit(op.nn.relu(convolved(stem, weights(3, 3, 8, 5), pad=2, dilation=2)))
    joined = emit(op.concat([convolved(stem, weights(1, 1, 8, 4), pad=0), wide, pooled], -1))
    half = emit(op.strided_slice(joined, [3], [3], [11]))
    return op.mean(emit(op.nn.relu(convolved(half, weights(3, 3, 8, 6), stride=2))), [1, 2])


def signal(x: Any) -> Any:
    """A network on a signal: TFLite's and ONNX's convolutions of one axis, as images of one row."""
    image = emit(op.reshape(x, [1, 1, 67, 3]))
    wide = emit(op.nn.relu(op.add(convolved(image, weights(1, 9, 3, 16), pad=0, stride=2), weights(16))))
    pooled = emit(op.nn.max_pool2d(wide, (1, 3), (1, 2), [0, 1, 0, 1], layout="NHWC"))
    padded = emit(op.nn.pad(pooled, [0, 0, 0, 0, 2, 0, 0, 0]))
    causal = emit(op.nn.relu(convolved(padded, weights(1, 3, 16, 8), pad=0)))
    return op.mean(causal, [1, 2])


@pytest.mark.parametrize(
    ("shape", "body", "axis", "share"),
    [((1, 42, 14, 3), branches, 1, 0.6), ((1, 67, 3), signal, 2, 0.6)],
)
def test_branches_and_signals(shape: tuple[int, ...], body: Any, axis: int, share: float) -> None:
    mod = module([(shape, "float32")], body)
    new, chosen = in_patches(mod, 1)
    assert chosen is not None and chosen.bytes_after < share * chosen.bytes_before
    if body is signal:  # the result, and for its last element 7 of the first convolution and 21 of the signal
        assert chosen.bytes_after >= (15 * 8 + 7 * 16 + 21 * 3) * 4
    assert {region.axis for region in regions(mod)} == {axis}
    x: Array = RNG.normal(0, 1, shape).astype("float32")
    assert np.allclose(run_by_tvm(new, [x])[0], run_by_tvm(mod, [x])[0], rtol=1e-5, atol=1e-5)


def rescaled(x: Any, y: Any) -> Any:
    """A function as front ends write it: of two images and a number for each channel."""

    def compute(a: Any, b: Any, factors: Any) -> Any:
        total = te.compute(a.shape, lambda *at: a(*at) * factors(at[-1]) + b(*at), name="total")
        return te.compute(a.shape, lambda *at: total(*at) * total(*at) - a(*at), name="rescaled")

    return emit(relax.BlockBuilder.current().call_te(compute, x, y, weights(8)))


def test_functions_of_front_ends_are_computed_by_rows() -> None:
    """Sums of int16, PReLU of 8 bits and the like are no operators; bands of a height share a function."""

    def block(x: Any) -> Any:
        stem = convolved(x, weights(3, 3, 3, 8))
        total = rescaled(convolved(stem, weights(3, 3, 8, 8)), stem)
        return emit(op.mean(emit(op.nn.relu(convolved(total, weights(3, 3, 8, 4), stride=2))), [1, 2]))

    mod = module([((1, 40, 14, 3), "float32")], block)
    new, chosen = in_patches(mod, 1)
    assert chosen is not None and chosen.layers == 6 and chosen.bytes_after < 0.5 * chosen.bytes_before
    # The stem, which two kernels read, and with padding the stem and the total.
    assert chosen.bytes_before == (40 * 14 + 2 * 42 * 16) * 8 * 4
    names = [var.name_hint for var, function in new.functions_items() if "_rows" in var.name_hint]
    assert 1 <= len(names) <= 3 < chosen.parts
    x: Array = RNG.normal(0, 1, (1, 40, 14, 3)).astype("float32")
    assert np.allclose(run_by_tvm(new, [x])[0], run_by_tvm(mod, [x])[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "element",
    [
        lambda a, row: a(0, 18 - row, 0, 0),
        lambda a, row: a(0, row, row % 14, 0),
        lambda a, row: a(0, row, 0, 0) * tvm.tirx.Cast("float32", row),
    ],
    ids=["another row", "a place of the row", "its number"],
)
def test_functions_that_depend_on_the_row_end_a_region(element: Any) -> None:
    def body(x: Any) -> Any:
        def compute(a: Any) -> Any:
            return te.compute(a.shape, lambda n, row, column, channel: element(a, row), name="made")

        made = emit(relax.BlockBuilder.current().call_te(compute, emit(op.nn.relu(x))))
        return op.nn.relu(emit(op.nn.relu(made)))

    mod = module([IMAGE], body)
    called = [str(call.op.name) for region in regions(mod) for _, call in region.calls]
    assert called and "relax.call_tir" not in called


def test_a_tensor_that_the_whole_image_needs_ends_the_region() -> None:
    """The mean over the image, and everything after it, is outside; the cut before it is the last one."""
    mod = made()
    last = regions(mod)[-1]
    assert str(last.calls[-1][1].op.name) == "relax.nn.avg_pool2d"


def test_a_region_begins_at_a_transposed_input() -> None:
    """A region in patches may begin at an input that is transposed, such as the image of an NCHW model."""

    def transposed(x: Any) -> Any:
        image = emit(op.permute_dims(x, [0, 2, 3, 1]))
        wide = convolved(emit(op.nn.relu(convolved(image, weights(3, 3, 3, 24)))), weights(3, 3, 24, 24))
        return emit(op.mean(emit(op.nn.relu(wide)), [1, 2]))

    mod = module([((1, 3, 19, 14), "float32")], transposed)
    new, chosen = in_patches(mod, 40_000)  # two feature maps of 19 x 14 x 24 floats take 51 KB
    assert chosen is not None and chosen.bytes_before > 40_000 >= chosen.bytes_after + 512
    # Each band transposes its own rows: the result of 19 x 14 x 24 floats is the only one that is whole.
    _, least = in_patches(mod, 1)
    assert least is not None and least.bytes_after < (19 + 3) * 14 * 24 * 4 + 19 * 14 * 3 * 4
    x: Array = RNG.normal(0, 1, (1, 3, 19, 14)).astype("float32")
    assert np.allclose(run_by_tvm(new, [x])[0], run_by_tvm(mod, [x])[0], rtol=1e-5, atol=1e-5)


def test_rows_that_parts_share_are_counted() -> None:
    region = regions(made())[-1]
    whole, more = macs_of(region, 1)[0], macs_of(region, 4)[1]
    assert macs_of(region, 1) == (whole, whole) and whole < more < 3 * whole


def test_the_choice_for_a_limit() -> None:
    mod = made()
    same, nothing = in_patches(mod, 1 << 20)
    assert same is mod and nothing is None and in_patches(mod, None) == (mod, None)
    # 19 x 14 x 3 floats come from outside; the largest feature maps are 10 x 7 x 8 and 14 x 11 x 8 floats.
    new, chosen = in_patches(mod, 9500)
    assert chosen is not None and chosen.bytes_after <= 9500 - 512 < chosen.bytes_before
    assert chosen.macs > chosen.more_macs > 0 and chosen.parts > 1 and chosen.layers > 1
    x: Array = RNG.normal(0, 1, IMAGE[0]).astype("float32")
    assert np.allclose(run_by_tvm(new, [x])[0], run_by_tvm(mod, [x])[0], rtol=1e-6, atol=1e-6)
    _, least = in_patches(mod, 1)  # no choice keeps it: the lowest peak
    assert least is not None and least.bytes_after <= chosen.bytes_after


def test_what_is_stored_in_an_estimate() -> None:
    """The estimate counts each band's rows of the input, but no product that only a sum reads."""

    def summed(x: Any) -> Any:
        result = convolved(convolved(x, weights(3, 3, 4, 8), pad=0), weights(3, 3, 8, 16), pad=0)
        stored = emit(op.reshape(result, [1, 16, 16, 16]))
        return op.sum(emit(op.multiply(stored, const(np.array(2.0)))), [1, 2])

    mod = module([((1, 20, 20, 4), "float32")], summed)
    first, second = 18 * 18 * 8 * 4, 16 * 16 * 16 * 4  # bytes of the convolutions' results
    assert in_patches(mod, first + second + 512)[1] is None
    _, least = in_patches(mod, 1)
    assert least is not None and least.bytes_before == first + second
    rows = (
        5 * 20 * 4 * 4 + 3 * 18 * 8 * 4
    )  # of the input and of the first convolution, for a row of the second
    assert least.bytes_after == second + rows


def test_what_cannot_be_divided() -> None:
    across = module([IMAGE], lambda x: op.nn.pad(op.nn.relu(x), [1, 0, 0, 0, 0, 0, 0, 0]))
    table = module([IMAGE], lambda x: op.nn.relu(op.add(x, weights(1, 19, 1, 1))))
    rows = module([((1, 8, 8), "float32")], lambda x: op.nn.relu(op.nn.relu(x)))
    assert [len(regions(mod)) for mod in (across, table, rows)] == [1, 0, 0]
    (binding, *_) = made()["main"].body.blocks[0].bindings
    rule = rule_of(binding.value)
    assert rule is not None and rule.rows_read(0, 1) is None  # of the pad: a band of padding alone
    assert rule.rows_read(0, 2) == Need(0, 1, 1, 0)


@pytest.mark.parametrize(("greatest", "divides"), [(100, True), (5000, False)])
def test_dynamic_sizes_are_counted_at_their_greatest(greatest: int, divides: bool) -> None:
    """Layers on an image of fixed size, beside a tensor of up to 32 * `greatest` bytes, which no patch makes
    smaller."""
    rows = tvm.tirx.Var("rows", "int64")

    def body(image: Any, table: Any) -> Any:
        wide = convolved(emit(op.nn.relu(convolved(image, weights(3, 3, 3, 24)))), weights(3, 3, 24, 24))
        mean = emit(op.mean(emit(op.nn.relu(wide)), [1, 2, 3]))
        return op.add(mean, emit(op.sum(emit(op.nn.softmax(emit(op.nn.softmax(table)))))))

    mod = module([IMAGE, ((rows, 8), "float32")], body)
    dims = {"rows": {"dim": "rows", "divide": 1, "min": 1, "max": greatest}}
    mod["main"] = mod["main"].with_attr("kiln.dims", json.dumps(dims))
    assert (in_patches(mod, 40_000)[1] is not None) == divides


@pytest.mark.parametrize(
    ("holds", "limit"),
    [
        ([["code"], ["data", "heap"]], 2000),
        ([["code"], ["data"], ["heap"]], 3000 + 512),  # 512: variables, which are in another region
        ([["code"], ["data"], ["arena"], ["heap"]], 3000 + 512),
        ([["code"], ["data", "arena"], ["arena"], ["heap"]], 2000 + 3000 + 512),
    ],
)
def test_the_arena_has_the_regions_that_hold_it(holds: list[list[str]], limit: int) -> None:
    """Bytes of the regions: 1000, 2000 and so on."""
    memory = [
        Region(name=f"r{number}", origin=number << 20, bytes=1000 * (number + 1), holds=kinds)  # type: ignore[arg-type]
        for number, kinds in enumerate(holds)
    ]
    target = load_target("cortex_m4").model_copy(update={"memory": memory})
    assert ram_limit(target, [None]) == limit
    assert ram_limit(target, [700, None]) == 700
