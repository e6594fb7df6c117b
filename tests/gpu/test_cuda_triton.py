"""byoc=triton without Triton: matches, packed weights, tiles, refusals, and PTX in bundles."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scons_real
from kiln.byoc import registry
from kiln.byoc.backend import TargetFacts
from kiln.byoc.triton import compiler, kernel_call, products, tiles
from kiln.config import load_target
from kiln.config.byoc import Byoc
from kiln.config.target import Cuda
from kiln.emit.cuda_modules import texts_of
from kiln.errors import KilnError
from kiln.sources import triton_wheel
from kiln.toolchain import link, oldest_cpu_command
from networks import save_network
from onnx import helper

from . import double, triton_cases
from .conftest import TARGET

_GPU = tiles.GpuLimits(227 << 10, 132, 90)


@pytest.mark.parametrize("name", list(triton_cases.CASES))
def test_what_becomes_a_kernel(name: str) -> None:
    """The whole graph does, but for its conversions; each with the null pointers that they take."""
    steps = triton_cases.lowered(triton_cases.counted(triton_cases.case(name)), "fp16")
    codes = [kernel.external for kernel in steps.kernels if kernel.external is not None]
    assert [code.key.replace(" 21x144" * 3, "") for code in codes] == [
        key + (" 1x21x144" * 3 + " multiply") * (name == "attention" and "attention" in key)
        for key in triton_cases.CASES[name][2]
    ]
    left = {op["name"] for func in steps.kernels if func.external is None for op in map(vars, func.ops)}
    assert left <= {"astype", "multiply"}
    for step in steps.steps:
        code = next(kernel.external for kernel in steps.kernels if kernel.symbol == step.kernel)
        if code is not None:
            assert [size.dim for size in step.args[-2:]] == [0, 0]  # type: ignore[union-attr]
            assert code.ptx and code.dynamic_bytes and code.block == [step.launch.block[0], 1, 1]  # type: ignore[union-attr]


def test_dynamic_sizes_are_parameters() -> None:
    steps = triton_cases.lowered(triton_cases.open_rows(), "fp16")
    codes = {k.symbol: k.external for k in steps.kernels if k.external is not None}
    kinds = Counter(code.key.split()[0] for code in codes.values())
    assert kinds == {"dense": 2, "attention": 1, "conv2d": 1}
    for step in steps.steps:
        if step.kernel in codes:
            request = triton_cases.request_of(codes[step.kernel].source)
            numbers = [arg for arg in step.args if not isinstance(arg, str)]
            assert len(numbers) == 2 + sum(kind == "i32" for kind in request["types"].values())
            assert any(not isinstance(arg.dim, int) for arg in numbers)  # type: ignore[union-attr]
            assert request["constants"].get("SPLIT", 1) == 1


def test_a_constant_mask_above_the_diagonal_is_causal() -> None:
    steps = triton_cases.lowered(triton_cases.counted(triton_cases.case("causal")), "fp16")
    (code,) = [kernel.external for kernel in steps.kernels if kernel.external is not None]
    constants = triton_cases.request_of(code.source)["constants"]
    assert (constants["CAUSAL"], constants["HAS_MASK"], constants["mask"]) == (True, False, None)
    assert (constants["SIZE"], constants["D"]) == (20, 32)


@pytest.mark.parametrize("shape", [(40, 20), (1, 21), (21, 1)])
def test_a_mask_that_does_not_spread_over_keys_is_left(shape: tuple[int, int]) -> None:
    """Only keys, queries by keys, and those by heads and images, are masks."""
    full = [1, 1, *shape] if shape != (40, 20) else [1, 1, 21, 21]
    steps = triton_cases.lowered(triton_cases.counted(triton_cases.masked(full)), "fp16")
    keys = [kernel.external.key for kernel in steps.kernels if kernel.external is not None]
    assert len(keys) == (0 if shape == (21, 1) else 1)


def test_weights_are_padded_to_the_tile() -> None:
    steps = triton_cases.lowered(triton_cases.counted(triton_cases.case("strided")), "fp16")
    (code,) = [kernel.external for kernel in steps.kernels if kernel.external is not None]
    constants = triton_cases.request_of(code.source)["constants"]
    stored = next(value for value in steps.params.values() if value.ndim == 2)
    run = -(-10 // constants["K"]) * constants["K"]  # a row of the window: two places of five channels
    assert constants["ROWS"] and constants["EDGES"] and str(stored.dtype) == "float16"
    assert stored.shape == (3 * run, constants["WIDE"])
    assert constants["WIDE"] % constants["N"] == 0 and constants["COLUMNS"] == 37
    rows = stored.reshape(3, run, -1)
    assert not rows[:, 10:].any() and not stored[:, 37:].any() and rows[:, :10, :37].all()


def test_tf32_weights_are_rounded_to_nearest() -> None:
    values = np.array([1 + 2**-11, 1 + 2**-11 + 2**-20, -1 - 2**-11, np.inf, 3.5], np.float32)
    want = np.array([1 + 2**-10, 1 + 2**-10, -1 - 2**-10, np.inf, 3.5], np.float32)
    np.testing.assert_array_equal(products.rounded_tf32(values), want)
    assert np.isnan(products.rounded_tf32(np.array([np.nan], np.float32)))[0]


# rows, columns, depth of ResNet-50's 3x3 convolutions and its classifier at batch 1
@pytest.mark.parametrize(
    "sizes", [(3136, 64, 576), (784, 128, 1152), (196, 256, 2304), (49, 512, 4608), (1, 1000, 2048)]
)
def test_a_tile_keeps_the_gpu_busy(sizes: tuple[int, int, int]) -> None:
    tile = tiles.choose(tiles.ProductSizes(*sizes), _GPU)
    blocks = -(-sizes[0] // tile.m) * -(-sizes[1] // tile.n) * tile.split
    assert blocks >= 66, tile
    assert tile.shared_bytes(2) < _GPU.shared_bytes


@pytest.mark.parametrize("beside", ["norm", "residual"])
def test_a_thread_has_registers_for_more_than_sums(beside: str) -> None:
    """Tiles with a norm or a residual have at most 64 sums in a thread: with 128, ptxas spilled registers."""
    plain = tiles.ProductSizes(1576, 768, 192)
    sums = [
        {tile.m * tile.n // (32 * tile.warps) for tile in tiles.candidates(sizes, _GPU)}
        for sizes in (plain, replace(plain, **{beside: True}))
    ]
    assert [max(counts) for counts in sums] == [128, 64]


def test_tiles_fit_the_least_gpu_of_a_target() -> None:
    facts = TargetFacts("x86_64", "avx2", 1, 90, "fp16", Cuda(archs=["sm_86", "sm_90"], ptx=True))
    limits = kernel_call.limits_of(facts)
    assert limits.shared_bytes == 99 << 10 and kernel_call.architectures(facts) == [80, 86, 90]
    sizes = tiles.ProductSizes(100000, 4096, 4096)
    assert all(tile.shared_bytes(2) <= limits.shared_bytes for tile in tiles.candidates(sizes, limits))


def test_older_gpus_are_refused() -> None:
    with pytest.raises(KilnError, match=r"sm_80 and newer, the target names sm_75; use byoc=cutlass"):
        registry.selected_backends(Byoc(backends=["triton"]), load_target("cuda"))
    with pytest.raises(KilnError, match="it computes on an NVIDIA GPU, the target's kernels run on a CPU"):
        registry.selected_backends(Byoc(backends=["triton"]), load_target("x86_64"))


def test_a_python_without_a_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    with pytest.raises(KilnError, match=r"byoc=triton: Triton [\d.]+ has no wheel for Python 3\.10 on '"):
        triton_wheel.triton_folder()


def test_a_wheel_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KILN_CACHE", str(tmp_path))

    def offline(*_: object, **__: object) -> None:
        raise KilnError("triton 3.9.0: cannot download: the package index cannot be reached (no network?)")

    monkeypatch.setattr(triton_wheel, "unpack", offline)
    with pytest.raises(KilnError, match=r"^byoc=triton: triton 3\.9\.0: cannot download"):
        triton_wheel.triton_folder()
    assert not any((tmp_path / "triton").glob("*/triton"))


def test_a_compiler_that_refuses_or_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KILN_CACHE", str(tmp_path))
    request = compiler.KernelRequest("dense", "dense", {"x": "*fp16"}, {"M": 16}, [90], 4, 2)
    monkeypatch.setattr(compiler, "_ask", lambda _: {"error": "CompilationError: at 3:4\nand more"})
    with pytest.raises(KilnError, match=r'^byoc=triton: dense {"M": 16}: CompilationError: at 3:4$'):
        compiler.compile_kernel(request)
    monkeypatch.undo()
    monkeypatch.setenv("KILN_CACHE", str(tmp_path))
    monkeypatch.setattr(compiler, "triton_folder", lambda: tmp_path)  # no package there
    monkeypatch.setattr(compiler, "cuda_toolkit", lambda: tmp_path)
    with pytest.raises(KilnError, match=r"byoc=triton: dense .*No module named 'triton'"):
        compiler.compile_kernel(request)


def test_ptx_of_several_architectures_is_taken_apart() -> None:
    source = triton_cases.stand_in(compiler.KernelRequest("dense", "dense", {}, {}, [80, 90], 4, 2)).ptx
    assert list(texts_of("// by a compiler\n" + "".join(source))) == ["sm_80", "sm_90"]


# ---- PTX of a backend in a bundle, opened against the stand-in for the driver ----

_BACKEND = '''
from kiln.byoc.backend import Backend, Code, Launch, Library
from kiln.byoc.match import Pattern
from kiln.tir.symbols import product

_PTX = """.version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 memory[];
.visible .entry SYMBOL(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)
{
    ret;
}
"""


def patterns():
    from tvm.relax.dpl import is_op, wildcard
    x = wildcard()
    root = is_op("relax.nn.relu")(x)
    return [Pattern("relu", root, root, {"x": x})]


def generate(match, facts):
    launch = Launch((product(match.output.shape), 1, 1), (32, 1, 1), ptx=True, dynamic_bytes=65536)
    return Code(_PTX, ["x"], sizes=[0, 0], launch=launch)


BACKEND = Backend(
    "mine", archs=("x86_64",), library=Library("mine", "MIT", (), heap="none"), generate=generate,
    patterns=patterns, device="cuda",
)
'''
_ON_CPU = """
const unsigned {symbol}_args = 4, {symbol}_waits = 1;
void {symbol}_on_cpu(const unsigned *grid, const unsigned *block, void **args) {{
    const float *x = *(float **)args[0];
    float *y = *(float **)args[1];
    for (unsigned i = 0; i < grid[0]; i++)
        y[i] = *(void **)args[2] != 0 || *(void **)args[3] != 0 || block[0] != 32 ? -1 : x[i] > 0 ? x[i] : 0;
}}
"""
_MODEL = """\
source: {kind: file, path: ../two.onnx}
format: onnx
inputs:
  x: {shape: [n, 16], dtype: float32}
dims:
  n: {min: 1, max: 16, buckets: [1, {exact: 4}]}
golden:
  inputs:
    - {kind: normal, seed: 1}
tolerance: {absolute: 1e-6, relative: 1e-6}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = scons_real.own_project(tmp_path_factory.mktemp("ptx"))
    (folder / "backends").mkdir()
    (folder / "backends" / "mine.py").write_text(_BACKEND, encoding="utf-8")
    (folder / "models" / "two.yaml").write_text(_MODEL, encoding="utf-8")
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Mul", ["r", "w"], ["y"])]
    save_network(
        folder / "two.onnx", nodes, {"x": ["n", 16]}, {"y": ["n", 16]}, {"w": np.arange(16, dtype=np.float32)}
    )
    scons_real.build_with_tree(folder, f"target={TARGET}", "model=two", "byoc=mine")
    stages = folder / "build" / ".stages" / TARGET / "two"
    plan = double.read_plan(stages)
    own_kernels = [kernel for kernel in plan["kernels"] if "external" not in kernel]
    text = (stages / "objects" / "two.cu").read_text(encoding="utf-8")
    symbols = [kernel["symbol"] for kernel in plan["kernels"] if "external" in kernel]
    extra = folder / "ptx.c"
    extra.write_text("".join(_ON_CPU.format(symbol=symbol) for symbol in symbols), encoding="utf-8")
    double.kernels_on_cpu(text, {"kernels": own_kernels}, folder / "own.so")
    shared = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-fno-sanitize=undefined", "-Wl,--no-as-needed"]
    linked = [str(extra), str(folder / "own.so"), f"-Wl,-rpath,{folder}", "-o", str(folder / "kernels.so")]
    double.zig("cc", [*shared, *linked])
    double.driver(folder / "doubles")
    bundle = folder / "build" / TARGET / "two"
    flags = ['-DKILN_HEADER="two.h"', "-DKILN_MODEL=two", f"-I{bundle / 'include'}", "-std=c11"]
    files = [str(double.HERE / "try_library.c"), str(bundle / "lib" / "libtwo.a")]
    target = load_target(TARGET)
    link(target, [*oldest_cpu_command(target), "-O2", *flags, *files, "-o", str(folder / "try")], "linking")
    return folder


def _run(
    folder: Path, sizes: Sequence[int] = (1, 4, 3), **settings: object
) -> tuple[list[list[str]], list[str]]:
    log = folder / "calls"
    log.unlink(missing_ok=True)
    done = subprocess.run(
        [str(folder / "try"), *map(str, sizes)],
        env=double.environment(folder / "doubles", kernels=folder / "kernels.so", log=log, **settings),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split("\t") for line in done.stdout.splitlines()], log.read_text(
        encoding="utf-8"
    ).splitlines()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the bundle is for x86-64 machines")
def test_kernels_in_ptx_are_modules_of_their_own(project: Path) -> None:
    """Their shared memory is allowed before the first launch; without that the stand-in refuses it."""
    lines_of, calls = _run(project)
    assert [line[:2] for line in lines_of] == [
        ["open", "KILN_OK"], *([["run", "KILN_OK"], ["steps", "KILN_OK"], ["same", "1"]] * 3)
    ]  # fmt: skip
    count = Counter(call.split()[0] for call in calls)
    assert count["cuModuleLoadData"] == count["cuModuleUnload"] == 2
    assert count["cuFuncSetAttribute"] == 1
    assert count["cuLaunchKernelEx"] > 0 and count["cuLaunchKernel"] == 0, "both kinds wait themselves"
    assert calls[-1].startswith("left: contexts 0 memory 0 pinned 0 modules 0")
    image = project / "build" / ".stages" / TARGET / "two" / "objects"
    assert len(list(image.glob("*.fatbin"))) == 2
    golden = scons_real.build_with_tree(
        project, f"target={TARGET}", "model=two", "byoc=mine", "test",
        LD_LIBRARY_PATH=str(project / "doubles"), KILN_FAKE_KERNELS=str(project / "kernels.so"),
    )  # fmt: skip
    assert "checks of repeated runs, guards and wrong arguments ok" in golden


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the bundle is for x86-64 machines")
@pytest.mark.parametrize("name", ["cuModuleLoadData", "cuFuncSetAttribute"])
def test_a_module_that_fails_leaves_nothing(project: Path, name: str) -> None:
    _, calls = _run(project)
    call_number = max(number for number, call in enumerate(calls) if call.split()[0] == name)
    lines_of, calls = _run(project, fail=f"{call_number}:2")
    assert lines_of[0][:2] == ["open", "KILN_GPU_MEMORY"]
    assert calls[-1].startswith("left: contexts 0 memory 0 pinned 0 modules 0 streams 0 graphs 0")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the bundle is for x86-64 machines")
def test_graphs_of_the_sizes_used_last(project: Path) -> None:
    """The second run of dynamic sizes captures a graph, later ones launch it; the ninth size replaces one."""

    def calls_of(*sizes: int) -> Counter[str]:
        said, calls = _run(project, sizes)
        assert {tuple(line[:2]) for line in said[1:]} == {
            ("run", "KILN_OK"),
            ("steps", "KILN_OK"),
            ("same", "1"),
        }
        assert calls[-1].startswith("left: contexts 0 memory 0 pinned 0 modules 0 streams 0 graphs 0")
        return Counter(call.split()[0] for call in calls)

    fixed = calls_of(1)["cuGraphInstantiateWithFlags"]  # of the buckets for 1 and 4, made by kiln_open
    assert fixed == 2
    for sizes, made, launched in (
        ((3,), 0, 0),
        ((3, 5, 3, 5, 3), 2, 3),
        ((3, 1, 3, 4, 3), 1, 4),  # those of other buckets are not taken for them
        ((2, 2, 3, 5, 6, 7, 8, 9, 10, 2), 1, 2),  # eight sizes
        ((2, 2, 3, 5, 6, 7, 8, 9, 10, 11, 2, 2), 2, 2),  # nine: the first is forgotten
    ):
        count = calls_of(*sizes)
        assert count["cuGraphInstantiateWithFlags"] == fixed + made, sizes
        assert count["cuGraphLaunch"] == launched, sizes
    kept = calls_of(2, 2, 3, 5, 6, 7, 8, 9, 10, 10, 2, 2)
    assert count["cuStreamSynchronize"] == kept["cuStreamSynchronize"], "none waits for a forgotten graph"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the bundle is for x86-64 machines")
def test_a_graph_of_dynamic_sizes_that_cannot_be_made(project: Path) -> None:
    """Without memory for it the steps are launched; other errors of the capture end the run."""
    _, calls = _run(project, (3, 3))
    names = [call.split()[0] for call in calls]
    call_number = {
        name: max(at for at, one in enumerate(names) if one == name)
        for name in ("cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags")
    }
    lines_of, calls = _run(project, (3, 3, 3), fail=f"{call_number['cuGraphInstantiateWithFlags']}:2")
    assert [line[1] for line in lines_of] == ["KILN_OK", *["KILN_OK", "KILN_OK", "1"] * 3]
    assert sum(call.startswith("cuGraphInstantiate") for call in calls) == 3, "once, and the buckets' own"
    for at in call_number.values():
        lines_of, calls = _run(project, (3, 3), fail=f"{at}:700")
        assert lines_of[-1][:2] == ["run", "KILN_GPU_FAILED"]
        assert calls[-1].startswith("left: contexts 0 memory 0 pinned 0 modules 0 streams 0 graphs 0")
