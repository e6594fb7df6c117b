"""Inputs of uint8 and float16 that a kernel converts for a model of float32, against stand-ins.

What is tested: values, strides, scales of each channel in one and in two launches, order on the stream, what
is refused, each failure of the driver.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from kiln.emit.cuda_conversions import with_conversion
from kiln.emit.headers import cuda_include_flag, include_flags
from kiln.emit.source import runtime_sources

from . import double

_IMAGE, _FEATURES = (1, 4, 4, 5), (2, 20, 3)
_COPY = """extern "C" __global__ void copy(const float *from, float *to) {
  to[threadIdx.x] = from[threadIdx.x];
}
"""
_REFUSED = {
    "signed": ("KILN_BAD_DTYPE", "image: int8, allowed float32"),
    "doubles": ("KILN_BAD_DTYPE", "features: float64, allowed float32"),
    "pageable": ("KILN_BAD_DEVICE", "image: on device type 1, allowed 2..3 (1: CPU, 2: CUDA, 3: pinned)"),
    "other GPU": ("KILN_BAD_GPU", "image: on GPU 1, the session is on 0"),
    "gaps": ("KILN_BAD_STRIDES", "image axis 3: stride 8, allowed 4 (compact, row-major)"),
    "null": ("KILN_NULL_DATA", "image: data or shape is null"),
    "odd address": ("KILN_BAD_ALIGNMENT", "features: address is 1 bytes past a multiple of 2"),
    "in place": ("KILN_OVERLAP", "image: overlaps memory that the run reads or writes"),
    "no scale": ("KILN_NULL_ARGUMENT", "image: null where a pointer is needed"),
    "other axis": ("KILN_BAD_SHAPE", "image axis 3: 5, allowed 4"),
    "no such axis": ("KILN_BAD_RANK", "features: rank 0, allowed 3"),
    "rank": ("KILN_BAD_RANK", "image: rank 3, allowed 4"),
    "no scalings": ("KILN_NULL_ARGUMENT", "argument: null where a pointer is needed"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, the stand-ins for the driver and the kernels, and the bytes of the inputs."""
    work = tmp_path_factory.mktemp("converted")
    double.driver(work / "driver")
    plan = {"kernels": [{"symbol": "copy"}]}
    double.kernels_on_cpu(with_conversion(_COPY, ["float32"]), plan, work / "kernels.so")
    sources = [double.HERE / "try_converted.c", *runtime_sources("none", "hosted", None, gpu=True)]
    flags = ["-std=gnu11", "-O1", *include_flags(), cuda_include_flag(), "-lpthread", "-ldl"]
    double.zig("cc", [*flags, *map(str, sources), "-o", str(work / "try_converted")])
    image, features, tables = _content()
    image.tofile(work / "image.bin")
    features.tofile(work / "features.bin")
    np.concatenate(tables).tofile(work / "tables.bin")
    return work


def _content() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float16], list[npt.NDArray[np.float32]]]:
    random = np.random.default_rng(7)
    image = random.integers(0, 256, _IMAGE).astype(np.uint8)
    features = random.standard_normal(_FEATURES).astype(np.float16)
    features[0, :3, 0] = np.inf, 6e-8, -65504  # of subnormal numbers, and the greatest
    return image, features, [random.standard_normal(n).astype(np.float32) for n in (4, 4, 20, 20)]


def _run(folder: Path, **settings: object) -> dict[str, list[str]]:
    done = subprocess.run(
        [str(folder / "try_converted"), str(folder)],
        env=double.environment(folder / "driver", kernels=folder / "kernels.so", **settings),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return {line.split("\t")[0]: line.split("\t")[1:] for line in done.stdout.splitlines()}


def _scaled(
    x: npt.NDArray[np.generic], scale: npt.NDArray[np.float32], offset: npt.NDArray[np.float32]
) -> bytes:
    """x * scale + offset along axis 1, rounded once: float64 holds such products and sums of them exactly."""
    shape = (1, -1, *[1] * (x.ndim - 2))
    exact = x.astype(np.float64) * scale.reshape(shape).astype(np.float64)
    return (exact + offset.reshape(shape)).astype(np.float32).tobytes()


@pytest.mark.heavy
def test_converted_inputs(folder: Path) -> None:
    image, features, (scale, offset, scales, offsets) = _content()
    pixels = np.ascontiguousarray(image.reshape(1, 4, 5, 4).transpose(0, 3, 1, 2))  # of rows of pixels
    second = _scaled(features, scales, offsets)
    zeros = np.zeros(1, np.float32)
    want = {
        "pinned": _scaled(image, scale, offset) + second,
        "on the GPU": _scaled(image, scale, offset) + second,
        "rows of pixels": _scaled(pixels, scale, offset) + second,
        "pinned rows of pixels": _scaled(pixels, scale, offset) + second,
        "one scale": _scaled(image, scale[:1], zeros) + features.astype(np.float32).tobytes(),
    }
    lines = _run(folder)
    for what, content in want.items():
        assert lines[what] == ["KILN_OK", "", content.hex()], what
    nothing = bytes(len(want["pinned"])).hex()
    assert {what: tuple(line) for what, line in lines.items() if what not in want} == {
        what: (*refused, nothing) for what, refused in _REFUSED.items()
    }


@pytest.mark.heavy
def test_failures_of_the_driver(folder: Path, tmp_path: Path) -> None:
    """Of the copy of a pinned input and of the conversions, of which the last input has two launches."""
    _run(folder, log=tmp_path / "calls")
    names = [line.split()[0] for line in (tmp_path / "calls").read_text(encoding="utf-8").splitlines()]
    begun = names.index("cuGraphUpload")
    first_run = names[: names.index("cuGraphLaunch", begun)]
    calls = [at for at, name in enumerate(first_run) if name in ("cuMemcpyHtoDAsync_v2", "cuLaunchKernel")]
    calls = [at for at in calls if at > begun]
    assert [names[at] for at in calls].count("cuLaunchKernel") == 3 and len(calls) == 5
    for at in calls:
        (tmp_path / "calls").unlink()
        lines = _run(folder, log=tmp_path / "calls", fail=f"{at}:700")
        assert lines["pinned"][0] == "KILN_GPU_FAILED" and lines["on the GPU"][0] == "KILN_OK"
        last = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()[-1]
        assert last.startswith("left: contexts 0 memory 0 pinned 0 modules 0 streams 0 graphs 0 events 0")
