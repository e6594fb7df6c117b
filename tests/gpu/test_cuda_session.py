"""Sessions on a GPU, against a stand-in for the driver that runs the kernels on this processor.

What is tested: results, the order and number of calls, that all is given back, and each call's failure.
What is not: machine code, and anything about time.
"""

from __future__ import annotations

import ctypes
import platform
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import scons_real

from . import double
from .conftest import MODEL, TARGET, SessionProgram

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the bundle is for x86-64 machines")

_EMPTY = "left: contexts 0 memory 0 pinned 0 modules 0 streams 0 graphs 0 events 0, current 0"
# Calls that give something back: where one of them fails there is nobody to tell.
_GIVES_BACK = ("Release", "Pop", "Unload", "Free", "Destroy")


def run(
    built: SessionProgram, tmp_path: Path, *arguments: str, **settings: object
) -> tuple[dict[str, list[list[str]]], list[str]]:
    """Run the program; returns its lines by their first word, and the calls that the driver got."""
    log = tmp_path / "calls"
    log.unlink(missing_ok=True)
    done = subprocess.run(
        [str(built.program), str(built.bundle / "golden" / "image.input0.bin"), *arguments],
        env=double.environment(built.driver, kernels=built.kernels, log=log, **settings),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), (settings, done.stdout)
    lines_of: dict[str, list[list[str]]] = {}
    for line in done.stdout.splitlines():
        word, *values = line.split("\t")
        lines_of.setdefault(word, []).append(values)
    return lines_of, log.read_text(encoding="utf-8").splitlines() if log.exists() else []


def expected(built: SessionProgram) -> str:
    return (built.bundle / "golden" / "image.output0.bin").read_bytes().hex()


@pytest.mark.parametrize("reverse", ["0", "1"])
def test_results_of_every_way_to_run(
    built: SessionProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reverse: str
) -> None:
    monkeypatch.setenv("KILN_CUDA_REVERSED", reverse)
    lines_of, _ = run(built, tmp_path)
    for word in ("open", "open another"):
        assert lines_of[word] == [["KILN_OK", ""]]
    for word in ("run", "steps", "in place", "copied"):
        assert lines_of[word] == [["KILN_OK", ""]] * 2, word
    assert lines_of["output"] == [[expected(built), ""]] * 8
    assert lines_of["closed"] == [["1", ""]]
    wrong = "KILN_BAD_GPU", f"{built.plan['inputs'][0]['name']}: on GPU 1, the session is on 0"
    assert lines_of["other GPU"] == [list(wrong)] * 2


def test_order_among_work_of_the_caller(built: SessionProgram, tmp_path: Path) -> None:
    """A run starts after the copy that the caller put on a stream, and ends before the one that follows."""
    lines_of, calls = run(built, tmp_path, "streams")
    ok, result = ["KILN_OK", ""], expected(built)
    assert lines_of["open"] == [ok] * 3
    for word in ("default stream", "own stream", "enqueued"):
        assert lines_of[word] == [ok], word
    assert lines_of["output"] == [[result, ""]] * 3
    assert lines_of["early"] == [["0" * len(result), ""]], "it waited"
    name = built.plan["inputs"][0]["name"]
    text = f"{name}: on device type 1, allowed 2..3 (1: CPU, 2: CUDA, 3: pinned)"
    assert lines_of["pageable"] == [["KILN_BAD_DEVICE", text]]
    assert lines_of["closed"] == [["KILN_NOT_OPEN", "session: not open"]] * 3
    count = Counter(call.split()[0] for call in calls)
    assert count["cuEventRecord"] == count["cuStreamWaitEvent"] == 1, "without the caller's stream only"
    assert calls[-1] == _EMPTY


@pytest.mark.parametrize("what", ["close", "cancel", "run"])
def test_called_from_on_step(built: SessionProgram, tmp_path: Path, what: str) -> None:
    """Closing and cancelling end the run, and running again is refused; all is given back."""
    lines_of, calls = run(built, tmp_path, what)
    ends = what != "run"
    assert lines_of["run"][0][0] == ("KILN_CANCELLED" if ends else "KILN_OK")
    assert lines_of["inner"][0][0] == ("KILN_OK" if ends else "KILN_BUSY")
    assert (lines_of["output"] == [[expected(built), ""]]) == (not ends)
    assert calls[-1] == _EMPTY


def test_calls_of_the_driver(built: SessionProgram, tmp_path: Path) -> None:
    _, calls = run(built, tmp_path)
    assert calls[-1] == _EMPTY
    count = Counter(call.split()[0] for call in calls)
    steps = len(built.plan["buckets"][0]["steps"])
    assert count["cuInit"] == count["cuModuleLoadData"] == count["cuDevicePrimaryCtxRetain"] == 1
    assert count["cuMemAlloc_v2"] == 3, "the parameters once, and memory of two sessions"
    assert count["cuMemHostAlloc"] == count["cuStreamCreate"] == count["cuGraphInstantiateWithFlags"] == 2
    assert count["cuLaunchKernelEx"] == 2 * 2 * steps, "two captures, two runs step by step"
    assert count["cuLaunchKernel"] == 0, "all may begin early"
    assert count["cuGraphUpload"] == 2
    assert count["cuGraphLaunch"] == 2 * 3
    # Up: the parameters, and of each session a run, the steps, nothing in place.
    assert count["cuMemcpyHtoDAsync_v2"] == 1 + 2 * 2
    assert count["cuMemcpyDtoDAsync_v2"] == 2
    assert count["cuMemcpyDtoHAsync_v2"] == 2 * 3


def test_kernels_are_launched_early_only_where_their_code_waits(
    built: SessionProgram, tmp_path: Path
) -> None:
    """On a GPU of another architecture than the bundle's, the driver compiles PTX of an older one."""
    lines_of, calls = run(built, tmp_path, arch=100)
    count = Counter(call.split()[0] for call in calls)
    assert count["cuLaunchKernel"] > 0 and count["cuLaunchKernelEx"] == 0
    assert lines_of["output"] == [[expected(built), ""]] * 8


@pytest.mark.heavy
def test_every_failure_of_the_driver_is_told_and_nothing_is_left(
    built: SessionProgram, tmp_path: Path
) -> None:
    """Each call up to the first run's end fails in turn, once as a failure and once for want of memory."""
    _, calls = run(built, tmp_path, "again")
    names = [call.split()[0] for call in calls]
    first_run = names.index("cuGraphLaunch") + 4
    texts = {2: "out of memory", 700: "an illegal memory access was encountered: error 700"}
    for at, name in enumerate(names[:first_run]):
        code = 2 if "Alloc" in name else 700
        lines_of, after = run(built, tmp_path, "again", fail=f"{at}:{code}")
        assert after[at] == f"{name} {code}"
        if any(word in name for word in _GIVES_BACK):
            continue
        failed = [row for rows in lines_of.values() for row in rows if row[0].startswith("KILN_GPU")]
        status = "KILN_GPU_MEMORY" if code == 2 else "KILN_GPU_FAILED"
        assert [row[0] for row in failed] == [status], (at, name, lines_of)
        assert failed[0][1].startswith(texts[code]), (at, name)
        assert after[-1] == _EMPTY, (at, name)


def test_what_is_wrong_with_the_machine_is_named(built: SessionProgram, tmp_path: Path) -> None:
    lines_of, calls = run(built, tmp_path, gpus=0)
    assert lines_of == {
        "open": [["KILN_GPU_ABSENT", "no CUDA-capable device is detected: no GPU 0, 0 found"]]
    }
    lines_of, calls = run(built, tmp_path, image=90, arch=89)
    text = "sm_90: the model is built for these, the GPU is sm_{} (error {} of its driver)"
    assert lines_of["open"] == [["KILN_GPU_ARCH", text.format(89, 209)]]
    assert calls[-1] == _EMPTY


@pytest.mark.parametrize("error", [218, 221, 222, 223])
def test_ptx_that_the_driver_cannot_compile(built: SessionProgram, tmp_path: Path, error: int) -> None:
    """PTX of a newer toolkit than the driver, or a driver without its compiler, is code for no GPU there."""
    lines_of, calls = run(built, tmp_path, loads=error)
    text = f"sm_90: the model is built for these, the GPU is sm_90 (error {error} of its driver)"
    assert lines_of["open"] == [["KILN_GPU_ARCH", text]]
    assert calls[-1] == _EMPTY


def test_a_program_starts_without_a_driver(built: SessionProgram) -> None:
    done = subprocess.run(
        [str(built.program), str(built.bundle / "golden" / "image.input0.bin")],
        env={"LD_LIBRARY_PATH": str(built.folder)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if "KILN_OK" in done.stdout or "KILN_GPU_A" in done.stdout:
        pytest.skip("this machine has NVIDIA's driver")
    word, status, text = done.stdout.strip().split("\t")
    assert (done.returncode, word, status) == (0, "open", "KILN_GPU_DRIVER")
    assert text.startswith("libcuda.so.1: ")
    assert text.endswith(": the driver of the GPU cannot be loaded")


def test_golden_vectors_and_wrong_arguments(built: SessionProgram) -> None:
    """`scons … test` as on every target: golden vectors, guards, repeated runs, wrong arguments."""
    environment = {"LD_LIBRARY_PATH": str(built.driver), "KILN_FAKE_KERNELS": str(built.kernels)}
    printed = scons_real.build_with_tree(
        built.folder, f"target={TARGET}", f"model={MODEL}", "test", **environment
    )
    assert "checks of repeated runs, guards and wrong arguments ok" in printed


def _hopper() -> bool:
    """Whether GPU 0 of this machine is one that TARGET is for."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    major = ctypes.c_int()
    return (
        cuda.cuInit(0) == 0
        and cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, 0) == 0
        and major.value == 9
    )


@pytest.mark.skipif(not _hopper(), reason="no GPU of architecture sm_90 with NVIDIA's driver here")
def test_golden_vectors_on_a_gpu(built: SessionProgram) -> None:
    printed = scons_real.build_with_tree(built.folder, f"target={TARGET}", f"model={MODEL}", "test")
    assert "checks of repeated runs, guards and wrong arguments ok" in printed
