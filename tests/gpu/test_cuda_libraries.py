"""Libraries that are loaded besides the driver, with stand-ins that compute on this processor.

What is tested: results in every bucket, what is asked of the library and when, that all is given back, each
call's failure, and a library that is not there. What is not: the libraries themselves.
"""

from __future__ import annotations

import platform
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import scons_real
from kiln.config import load_target
from kiln.files import read_json
from kiln.toolchain import link, oldest_cpu_command

from . import double, small_models
from .conftest import TARGET

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the bundle is for x86-64 machines"),
]

_CUBLAS, _CUDNN = "fake_cublaslt.c:libcublasLt.so.13", "fake_cudnn.c:libcudnn.so.9"
_OF_CUDNN = "left: handles 0 descriptors 0"
# At exit: what the driver, and the library, have given out and not got back.
_GIVEN_BACK = {
    "left: contexts 0 memory 0 pinned 0 modules 0 streams 0 graphs 0 events 0, current 0",
    "left: handles 0 products 0 layouts 0 preferences 0",
    _OF_CUDNN,
}
# bfloat16 takes the same way as float16, with another type.


@dataclass(frozen=True)
class LibraryProgram:
    """A folder with a bundle whose steps a library computes, the stand-ins, and try_library.c."""

    folder: Path
    model: str
    byoc: tuple[str, ...]

    @property
    def doubles(self) -> Path:
        return self.folder / "doubles"

    def run(self, *sizes: int, **settings: object) -> tuple[list[list[str]], list[str]]:
        """Run try_library; returns its lines, and the calls that the driver and the library got."""
        log = self.folder / "calls"
        log.unlink(missing_ok=True)
        kernels = self.folder / "kernels.so"
        done = subprocess.run(
            [str(self.folder / "try_library"), *map(str, sizes)],
            env=double.environment(self.doubles, kernels=kernels, log=log, **settings),
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), (settings, done.stdout)
        calls = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        return [line.split("\t") for line in done.stdout.splitlines()], calls

    def golden(self) -> str:
        """`scons … test`: golden vectors of every bucket, guards, repeated runs, wrong arguments."""
        kernels = str(self.folder / "kernels.so")
        environment = {"LD_LIBRARY_PATH": str(self.doubles), "KILN_FAKE_KERNELS": kernels}
        words = f"target={TARGET}", f"model={self.model}", *self.byoc
        return scons_real.build_with_tree(self.folder, *words, "test", **environment)


def build(folder: Path, model: str, library: str, *byoc: str, bucket: str = "exact") -> LibraryProgram:
    """The project. `library`: C file of the stand-in and the name under which it is loaded, with a colon.

    `bucket`: the kind of the bucket for a size of 4.
    """
    scons_real.own_project(folder)
    small_models.write(folder, f"[1, {{{bucket}: 4}}]")
    scons_real.build_with_tree(folder, f"target={TARGET}", f"model={model}", *byoc)
    project = LibraryProgram(folder, model, byoc)
    double.driver(project.doubles)
    source, name = library.split(":")
    double.zig(
        "cc", ["-std=gnu11", "-O1", "-shared", "-fPIC", "-fno-sanitize=undefined", f"-I{double.HERE}",
         str(double.HERE / source), "-o", str(project.doubles / name)]
    )  # fmt: skip
    stages = folder / "build" / ".stages" / TARGET / model
    plan = double.read_plan(stages)
    text = (stages / "objects" / f"{model}.cu").read_text(encoding="utf-8")
    double.kernels_on_cpu(text, plan, folder / "kernels.so")
    bundle = folder / "build" / TARGET / model
    flags = [f'-DKILN_HEADER="{model}.h"', f"-DKILN_MODEL={model}", f"-I{bundle / 'include'}", "-std=c11"]
    files = [double.HERE / "try_library.c", bundle / "lib" / f"lib{model}.a"]
    target = load_target(TARGET)
    command = [*oldest_cpu_command(target), "-O2", *flags, *map(str, files)]
    link(target, [*command, "-o", str(folder / "try_library")], "linking try_library")
    return project


@pytest.fixture(scope="module")
def cublas(tmp_path_factory: pytest.TempPathFactory) -> LibraryProgram:
    folder = tmp_path_factory.mktemp("cublas")
    return build(folder, "attention", _CUBLAS, "byoc=cublas", bucket="pad")


def test_golden_vectors_with_cublas(cublas: LibraryProgram) -> None:
    assert "checks of repeated runs, guards and wrong arguments ok" in cublas.golden()
    manifest = read_json(cublas.folder / "build" / TARGET / "attention" / "manifest.json")
    (library,) = manifest["libraries"]
    assert (library["name"], library["heap"], library["files"]) == ("cuBLASLt", "library", [])
    assert "dense 4x5x24 24x24 bias residual relu" in library["subgraphs"]
    assert "matmul 4x5x5 4x5x24" in library["subgraphs"]


@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32"])
def test_other_precisions_with_cublas(precision: str, tmp_path: Path) -> None:
    project = build(tmp_path, "attention", _CUBLAS, "byoc=cublas", f"precision={precision}")
    assert "checks of repeated runs, guards and wrong arguments ok" in project.golden()
    _, calls = project.run(4)
    assert sum(call.startswith("cublasLtMatmul ") for call in calls) == 6 * 5, (
        "twice before a capture, two captures, one by steps"
    )
    compute = 77 if precision == "tf32" else 68
    assert {call for call in calls if call.startswith("compute ")} == {f"compute {compute}"}


def test_what_cublas_is_asked(cublas: LibraryProgram) -> None:
    printed, calls = cublas.run(1, 4, 6, 6, 5)
    assert [line for line in printed if line[0] == "same"] == [["same", "1", ""]] * 5
    assert all(line[1] == "KILN_OK" for line in printed if line[0] != "same")
    assert {call for call in calls if call.startswith("left: ")} == _GIVEN_BACK - {_OF_CUDNN}
    count = Counter(call.split()[0] for call in calls)
    # Products that it gets: 5 dense ones and one of activations; buckets 1, padded to 4, and dynamic.
    assert count["cublasLtCreate"] == 1
    assert {call for call in calls if call.startswith("compute ")} == {"compute 68"}, "float32, not tf32"
    # The algorithm is asked for before a graph is captured; with dynamic sizes, when they change: 6, then 5.
    assert count["cublasLtMatmulAlgoGetHeuristic"] == 6 * (2 + 2)
    # Run before the capture, and captured; run step by step; the other buckets, whose launches depend on the
    # size, are run whole and step by step, once and three times.
    assert count["cublasLtMatmul"] == 6 * (2 + 1 + (1 + 3) * 2)
    first = [call.split()[0] for call in calls]
    for at in (i for i, name in enumerate(first) if name == "cuStreamBeginCapture_v2"):
        end = first.index("cuStreamEndCapture", at)
        assert set(first[at + 1 : end]) <= {"cublasLtMatmul", "cuLaunchHostFunc", "cuLaunchKernelEx"}


@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32"])
def test_other_precisions_with_cudnn(precision: str, tmp_path: Path) -> None:
    project = build(tmp_path, "convolutions", _CUDNN, "byoc=cudnn", f"precision={precision}")
    assert "checks of repeated runs, guards and wrong arguments ok" in project.golden()
    _, calls = project.run(4)
    assert sum(call.startswith("cudnnConvolutionBias") for call in calls) == 4 * 5, (
        "twice before a capture, two captures, by steps"
    )
    math = {"fp16": 1, "bf16": 1, "tf32": 0}[precision]
    assert {call for call in calls if call.startswith("math ")} == {f"math {math}"}


@pytest.fixture(scope="module")
def cudnn(tmp_path_factory: pytest.TempPathFactory) -> LibraryProgram:
    folder = tmp_path_factory.mktemp("cudnn")
    return build(folder, "convolutions", _CUDNN, "byoc=cudnn")


def test_golden_vectors_with_cudnn(cudnn: LibraryProgram) -> None:
    assert "checks of repeated runs, guards and wrong arguments ok" in cudnn.golden()
    manifest = read_json(cudnn.folder / "build" / TARGET / "convolutions" / "manifest.json")
    (library,) = manifest["libraries"]
    assert {key for key in library["subgraphs"] if key.startswith("conv2d 4x")} == {
        "conv2d 4x9x8x4 3x3x4x12 p1x1x1x1 s2x1 bias relu",
        "conv2d 4x5x8x12 3x3x12x12 p2x1x2x1 d2x1 bias relu",
        "conv2d 4x5x8x12 1x1x12x12 bias residual relu",
        "conv2d 4x5x8x12 1x3x12x7 p0x1x0x1 bias",
    }


def test_what_cudnn_is_asked(cudnn: LibraryProgram) -> None:
    printed, calls = cudnn.run(1, 4, 6, 6, 3)
    assert [line for line in printed if line[0] == "same"] == [["same", "1", ""]] * 5
    assert {call for call in calls if call.startswith("left: ")} >= {_OF_CUDNN}
    count = Counter(call.split()[0] for call in calls)
    assert {call for call in calls if call.startswith("math ")} == {"math 3"}, "float32, not tf32"
    assert count["cudnnGetConvolutionForwardAlgorithm_v7"] == 4 * (2 + 2)
    assert count["cudnnConvolutionBiasActivationForward"] == 4 * (2 + 2 + 2 + 3 * 2)


@pytest.mark.parametrize("library", ["cublas", "cudnn"])
def test_every_failure_is_told_and_nothing_is_left(library: str, request: pytest.FixtureRequest) -> None:
    project: LibraryProgram = request.getfixturevalue(library)
    words = {"cublas": "the requested functionality is not supported", "cudnn": "CUDNN_STATUS_NOT_SUPPORTED"}
    code = {"cublas": 15, "cudnn": 3000}[library]
    _, calls = project.run(1, 6)
    count = Counter(name for name in (call.split()[0] for call in calls) if name.startswith(library))
    tried = 0
    for name, times in count.items():
        if "Destroy" in name:
            continue  # nobody to tell
        for at in sorted({0, times // 2, times - 1}):
            printed, after = project.run(1, 6, library_fail=f"{name}:{at}:{code}")
            failed = [line for line in printed if line[1].startswith("KILN_LIB")]
            assert [line[1] for line in failed] == ["KILN_LIBRARY"], (name, at, printed)
            assert failed[0][2] == f"{words[library]}: error {code} of the library that computes it"
            left = {line for line in after if line.startswith("left: ")}
            opened = f"{library}{'Lt' if library == 'cublas' else ''}Create 0" in after
            assert left <= _GIVEN_BACK and len(left) == 1 + opened, (name, at)
            tried += 1
    assert tried > 20


def test_a_library_that_is_not_there_is_named(cublas: LibraryProgram) -> None:
    library = cublas.doubles / "libcublasLt.so.13"
    library.rename(library.with_suffix(".away"))
    try:
        printed, calls = cublas.run(1)
    finally:
        library.with_suffix(".away").rename(library)
    (line,) = printed
    assert line[:2] == ["open", "KILN_LIBRARY_ABSENT"]
    assert line[2].startswith("libcublasLt.so.13: cannot open shared object file")
    assert line[2].endswith(": a library that the model calls cannot be loaded")
    assert calls[-1] in _GIVEN_BACK
