"""Products on matrix units: what they compute, by an emulation of wmma, for even and odd sizes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from kiln.config.target import Cuda
from kiln.kernels.gpu import dlight
from kiln.kernels.gpu.block_tile import Gpu, ProductTiles, tile_and_parts
from kiln.kernels.gpu.half import stored_as
from kiln.kernels.gpu.multiprocessor import multiprocessor_of
from kiln.tir.kernel_name import digest
from tvm import te, tirx, topi

from .launched import Kernels
from .test_cuda_kernels import ARCHS, CUDA, _conv

Array = npt.NDArray[Any]
F, H = "float32", "half"  # of which there are two types
HALVES = {"float16": ARCHS, "bfloat16": [arch for arch in ARCHS if arch != "sm_75"]}


def _silu(x: Any) -> Any:
    return topi.multiply(x, topi.sigmoid(x))


def _batched(a: Any, b: Any) -> Any:
    k = te.reduce_axis((0, a.shape[-1]), "k")
    shape = [*a.shape[:-1], b.shape[-1]]
    return te.compute(shape, lambda s, h, i, j: te.sum(a[s, h, i, k] * b[s, h, k, j], axis=k), "batched")


# name → shapes and types of the inputs, type of the result, the computation, the same by NumPy
Case = tuple[list[tuple[tuple[int, ...], str]], str, Callable[..., Any], Callable[..., Array]]
CASES: dict[str, Case] = {
    **{
        f"product_{m}_{n}_{k}": ([((m, k), H), ((k, n), H)], H, topi.matmul, lambda a, b: a @ b)
        for m, n, k in [(16, 16, 16), (64, 64, 96), (8, 8, 8), (33, 41, 70), (65, 200, 48)]
    },
    "bias_relu": (
        [((40, 64), H), ((64, 24), H), ((24,), F)],
        H,
        lambda a, b, c: topi.nn.relu(topi.add(topi.matmul(a, b), c)),
        lambda a, b, c: np.maximum(a @ b + c, 0),
    ),
    "residual_silu": (
        [((40, 50), H), ((50, 72), H), ((40, 72), H)],
        H,
        lambda a, b, c: _silu(topi.add(topi.matmul(a, b), c)),
        lambda a, b, c: (a @ b + c) / (1 + np.exp(-(a @ b + c))),
    ),
    "from_float32": ([((40, 64), F), ((64, 24), H)], F, topi.matmul, lambda a, b: a @ b),
    "transposed": (
        [((30, 20), H), ((50, 20), H)],
        H,
        lambda a, b: topi.matmul(a, b, False, True),
        lambda a, b: a @ b.T,
    ),
    "attention": (
        [((2, 3, 37, 24), H), ((2, 3, 24, 37), H)],
        H,
        _batched,
        lambda a, b: a @ b,
    ),
    "conv": (
        [((2, 9, 9, 5), H), ((3, 3, 5, 17), H), ((17,), F)],
        H,
        lambda x, w, b: topi.nn.relu(topi.add(topi.nn.conv2d_nhwc(x, w, 2, [1, 1, 1, 1], 1), b)),
        lambda x, w, b: np.maximum(_conv(x, w, 2, 1) + b, 0),
    ),
    "pointwise": (
        [((1, 7, 7, 32), H), ((1, 1, 32, 64), H), ((1, 7, 7, 64), H)],
        H,
        lambda x, w, r: topi.add(topi.nn.conv2d_nhwc(x, w, 1, 0, 1), r),
        lambda x, w, r: _conv(x, w, 1, 0) + r,
    ),
    "residual_with_operators": (
        [((30, 32), H), ((32, 48), H), ((30, 48), H)],
        H,
        lambda a, b, r: topi.add(topi.matmul(a, b), topi.abs(topi.multiply(r, tirx.const(0.5, F)))),
        lambda a, b, r: a @ b + np.abs(r * 0.5),
    ),
    "few_channels": (
        [((2, 9, 9, 12), H), ((3, 3, 12, 17), H)],
        H,
        lambda x, w: topi.nn.conv2d_nhwc(x, w, 2, [1, 1, 1, 1], 1),
        lambda x, w: _conv(x, w, 2, 1),
    ),
    "first_conv": (
        [((1, 20, 20, 3), F), ((7, 7, 3, 16), H)],
        H,
        lambda x, w: topi.nn.conv2d_nhwc(x, w, 2, [3, 3, 3, 3], 1),
        lambda x, w: _conv(x, w, 2, 3),
    ),
}  # fmt: skip


# The gate has one of the types: kernels differ in its name alone.
@pytest.fixture(scope="module", params=["float16", pytest.param("bfloat16", marks=pytest.mark.heavy)])
def half(request: pytest.FixtureRequest) -> str:
    """The type that the cases call `half`."""
    return str(request.param)


@pytest.fixture(scope="module")
def kernels(half: str, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    lowered, target = {}, Cuda(archs=HALVES[half], ptx=False)
    for name, (inputs, out, compute, _) in CASES.items():
        tensors = [te.placeholder(shape, F, f"x{i}") for i, (shape, _) in enumerate(inputs)]
        func = te.create_prim_func([*tensors, compute(*tensors)])
        dtypes = [half if dtype == H else dtype for dtype in (*(dtype for _, dtype in inputs), out)]
        lowered[name] = dlight.lower(stored_as(func, dtypes, half), dlight.tvm_target(target))
    return Kernels(lowered, target, tmp_path_factory.mktemp("tensor"))


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("order", ["0", "1"])
def test_values(kernels: Kernels, half: str, monkeypatch: pytest.MonkeyPatch, name: str, order: str) -> None:
    monkeypatch.setenv("KILN_CUDA_REVERSED", order)
    inputs, out, _, reference = CASES[name]
    random = np.random.default_rng(7)
    types = {H: np.dtype(half), F: np.dtype(F)}
    arrays = [random.standard_normal(shape).astype(types[dtype]) for shape, dtype in inputs]
    factors = [value.astype(types[H]) for value in arrays[:2]]
    want = reference(*(value.astype(F) for value in (*factors, *arrays[2:])))
    lowered = kernels.launches[name]
    assert (len(lowered.launches), lowered.scratch) == (1, []), "what follows a product is computed with it"
    got = kernels.run(name, arrays, want.shape)
    assert got.dtype == types[out]
    unit = float(ml_dtypes.finfo(types[out]).eps)  # type: ignore[no-untyped-call]
    np.testing.assert_allclose(got.astype(F), want, rtol=max(unit, 1e-5), atol=1e-5)


PARTS: dict[str, Case] = {
    "product": ([((40, 1024), H), ((1024, 24), H), ((24,), F)], H, *CASES["bias_relu"][2:]),
    "read_twice": (
        [((40, 1024), H), ((1024, 24), H), ((24,), F)],
        H,
        lambda a, b, c: _silu(topi.add(topi.matmul(a, b), c)),
        lambda a, b, c: (a @ b + c) / (1 + np.exp(-(a @ b + c).astype(float))),
    ),
    "batched": ([((2, 3, 17, 1024), H), ((2, 3, 1024, 17), H)], F, _batched, lambda a, b: a @ b),
    "conv": (
        [((1, 7, 7, 128), H), ((3, 3, 128, 40), H), ((1, 7, 7, 40), H)],
        H,
        lambda x, w, r: topi.nn.relu(topi.add(topi.nn.conv2d_nhwc(x, w, 1, [1, 1, 1, 1], 1), r)),
        lambda x, w, r: np.maximum(_conv(x, w, 1, 1) + r, 0),
    ),
}  # fmt: skip


@pytest.mark.heavy
def test_long_sums_of_few_elements_are_divided(half: str, tmp_path: Path) -> None:
    """Few tiles would leave most of a GPU idle: blocks add parts of k, and a second kernel adds the parts."""
    lowered, target = {}, Cuda(archs=HALVES[half], ptx=False)
    for name, (inputs, out, compute, _) in PARTS.items():
        tensors = [te.placeholder(shape, F, f"x{i}") for i, (shape, _) in enumerate(inputs)]
        func = stored_as(
            te.create_prim_func([*tensors, compute(*tensors)]),
            [half if dtype == H else dtype for dtype in (*(dtype for _, dtype in inputs), out)], half,
        )  # fmt: skip
        lowered[name] = dlight.lower(func, dlight.tvm_target(target), multiprocessors=100)
    kernels = Kernels(lowered, target, tmp_path)
    random = np.random.default_rng(8)
    for name, (inputs, _, _, reference) in PARTS.items():
        first, second = lowered[name].launches
        parts = {"product": 8, "read_twice": 8, "batched": 6 * 8, "conv": 9}[name]
        assert int(first.grid[2]) == parts and len(lowered[name].scratch) == 1, (name, first.grid)
        arrays = _given(inputs, random, half)
        factors = [value.astype(half) for value in arrays[:2]]
        want = reference(*(value.astype(F) for value in (*factors, *arrays[2:])))
        assert second.grid[0] * second.block[0] >= want.size
        got = kernels.run(name, arrays, want.shape)
        unit = float(ml_dtypes.finfo(got.dtype).eps)  # type: ignore[no-untyped-call]
        np.testing.assert_allclose(got.astype(F), want, rtol=max(unit, 2e-4), atol=1e-4, err_msg=name)


def _given(inputs: list[tuple[tuple[int, ...], str]], random: Any, half: str) -> list[Array]:
    types = {H: np.dtype(half), F: np.dtype(F)}
    return [random.standard_normal(shape).astype(types[dtype]) for shape, dtype in inputs]


@pytest.mark.parametrize(
    ("extents", "innermost", "multiprocessors", "tile", "parts"),
    [
        ((1, 3136, 64, 576), 64, 1, (64, 64), 1),  # blocks share the multiprocessor: the fewest loads
        ((1, 3136, 64, 576), 64, 132, (32, 32), 1),  # it would be idle with few blocks
        (
            (1, 49, 512, 4608),
            512,
            132,
            (64, 32),
            9,
        ),  # few with every tile: parts of whole rows of the channels
        ((1, 49, 512, 2048), 2048, 132, (32, 32), 8),
        ((1, 49, 512, 2048), 2048, 1, (64, 64), 1),
        ((1, 64, 64, 1700), 1700, 132, (32, 32), 1),  # k is no whole number of steps
        ((1, 64, 64, 64), 64, 132, (32, 32), 1),  # too few steps to divide
        ((1, 16, 384, 384), 384, 132, (32, 32), 1),  # a second kernel would take longer than what it saves
    ],
)
def test_tiles_by_number_of_blocks(
    extents: tuple[int, ...], innermost: int, multiprocessors: int, tile: tuple[int, int], parts: int
) -> None:
    tile_parts = tile_and_parts(extents, innermost, Gpu(multiprocessors))
    assert tile_parts is not None and (tile_parts[0].sizes[:2], tile_parts[1]) == (tile, parts)


def test_tiles_by_architecture() -> None:
    """By the number of multiprocessors, and by what each of them has; of several architectures the least."""
    extents, tiles = (1, 784, 128, 1152), set()
    for archs, count in ((["sm_75"], 40), (["sm_86"], 84), (["sm_87"], 16), (["sm_90"], 132)):
        ruled = tile_and_parts(extents, 128, Gpu(count, multiprocessor_of(archs)))
        assert ruled is not None
        tiles.add((ruled[0].sizes, ruled[1]))
    assert len(tiles) == 4
    turing, hopper = multiprocessor_of(["sm_75"]), multiprocessor_of(["sm_90"])
    assert multiprocessor_of(["sm_90", "sm_75"]) == turing != hopper
    assert multiprocessor_of(["sm_999"]) == multiprocessor_of(["sm_121"])
    assert hopper.blocks(48 << 10, 128, 64) == 4 and turing.blocks(48 << 10, 128, 64) == 1


def test_tiles_are_ranked_and_a_measured_one_is_taken() -> None:
    """The first is the rule's, no two are equal, and what cannot be had is left to the rule."""
    extents = [1, 49, 512, 4608]
    ruled = tile_and_parts(extents, 512, Gpu(132))
    assert ruled is not None
    ranked = []
    while (
        ranked_tile := ProductTiles(Gpu(132), rank=len(ranked)).choose("float16", extents, 512, 32)
    ) is not None:
        ranked.append(ranked_tile)
    assert ranked[0] == ruled and len(set(ranked)) == len(ranked) > 4
    assert len({parts for _, parts in ranked}) > 1 and len({tile for tile, _ in ranked}) > 1
    last = ProductTiles(Gpu(132), rank=len(ranked) - 1)
    last.choose("float16", extents, 512, 32)
    assert ProductTiles(Gpu(132), last.chosen).choose("float16", extents, 512, 32) == ranked[-1]
    assert ProductTiles(Gpu(132), last.chosen).choose("int8", extents, 512, 32) == ruled
    (key,) = last.chosen
    assert ProductTiles(Gpu(132), {key: (7, 7, 7, 1)}).choose("float16", extents, 512, 32) == ruled
    assert ProductTiles(Gpu(132)).choose("float16", [1, 4, 512, 64], 64, 32) is None


def test_loads_have_no_branches(kernels: Kernels) -> None:
    """Padding is a predicate of asynchronous copies: no load of the image is in a branch."""
    for name, width in (("pointwise_0", 16), ("bias_relu_0", 16), ("transposed_0", 8), ("few_channels_0", 8)):
        assert f"kiln_copy_if<{width}>(" in kernels.text(name) and "condval" not in kernels.text(name), name
    assert "condval" not in kernels.text("conv_0"), "five channels: one by one"


def test_all_use_the_matrix_units(kernels: Kernels) -> None:
    for name in CASES:
        assert "wmma::mma_sync" in kernels.text(f"{name}_0"), name


def test_fragments_are_loaded_by_ldmatrix(kernels: Kernels) -> None:
    """nvcc would load those of bfloat16 number by number, and those of float16 twice."""
    assert "kiln_matrices(" in kernels.source and "nvcuda::wmma::" not in kernels.source


def test_equal_kernels_have_equal_names() -> None:
    """Fragments are named before they are declared; their place counts, not where they are in memory."""
    target, names = Cuda(archs=["sm_90"], ptx=False), set()
    for _ in range(2):
        inputs, out, compute, _ = CASES["pointwise"]
        tensors = [te.placeholder(shape, F, f"x{i}") for i, (shape, _) in enumerate(inputs)]
        func = te.create_prim_func([*tensors, compute(*tensors)])
        dtypes = ["float16" if dtype == H else dtype for dtype in (*(dtype for _, dtype in inputs), out)]
        lowered = dlight.lower(stored_as(func, dtypes, "float16"), dlight.tvm_target(target))
        names |= {digest(one.func) for one in lowered.launches}
    assert len(names) == 1


def test_a_row_does_not(tmp_path: Path) -> None:
    """Fifteen of sixteen rows of a fragment would be padding."""
    x, w = te.placeholder((1, 64), F, "x"), te.placeholder((64, 50), F, "w")
    func = stored_as(te.create_prim_func([x, w, topi.matmul(x, w)]), ["float16"] * 3)
    row = Kernels({"row": dlight.lower(func, dlight.tvm_target(CUDA))}, CUDA, tmp_path)
    assert "wmma" not in row.source.split('extern "C"', 1)[1]


def test_the_stand_in_rounds_to_bfloat16_by_itself(kernels: Kernels) -> None:
    """The emulation is compiled for a processor that has no instruction for it."""
    bits = np.random.default_rng(3).integers(0, 1 << 32, 3000, np.uint32)
    ties = np.array([0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7FC00001, 0x7F800001, 0xFF800000, 1, 0], np.uint32)
    single = np.concatenate([bits, ties]).view(np.float32)
    with np.errstate(invalid="ignore"):
        rounded = single.astype(ml_dtypes.bfloat16)
    bigger = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8 - 2.0**-40, 1 + 2.0**-8, -1e300, 2.0**-133 * 1.5])
    above = [1.0078125, 1.0, 1.0, -np.inf, 2.0**-132]
    for name, kind, number, want in (
        ("__truncsfbf2", ctypes.c_float, single, rounded),
        ("__truncdfbf2", ctypes.c_double, bigger, np.array(above, F)),
    ):
        convert = getattr(kernels.library, name)
        # A bfloat16 comes back in the low half of the register that a float comes back in.
        convert.argtypes, convert.restype = [kind], ctypes.c_float
        low = np.array([convert(float(value)) for value in number], np.float32).view(np.uint32)
        got = low.astype(np.uint16).view(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(got.astype(F), want.astype(F))


@pytest.mark.parametrize("which", ["first", pytest.param("every", marks=pytest.mark.heavy)])
def test_ptxas_compiles_all_kernels(kernels: Kernels, half: str, which: str, tmp_path: Path) -> None:
    """For the oldest architecture, and in the heavy test for all."""
    kernels.check_machine_code(HALVES[half][:1] if which == "first" else HALVES[half], tmp_path)
