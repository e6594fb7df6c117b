"""Kernels that a backend delivers as PTX: modules of their own in a bundle, and graphs of dynamic sizes."""

from __future__ import annotations

import platform
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import scons_real
from kiln.config import load_target
from kiln.toolchain import link, oldest_cpu_command, run
from networks import save_network
from onnx import helper

from . import double
from .conftest import TARGET

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
    # By `run`: with `link`'s flags and --no-as-needed zig cannot start its linker.
    run([*double.compiler("cc")[1], *shared, *linked], "compiling a stand-in")
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


@pytest.mark.heavy
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
