"""Every case of the pack for a machine with a GPU: built, packed, run against the stand-in for the driver.

Kernels do nothing there, so that a large model takes no longer than a small one: launches, graphs, memory,
modules, libraries and the programs of the pack are tried, not the numbers. Building all cases takes hours;
one of them is tried with `-k`.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from . import double, pack

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the bundles are for x86-64 machines"),
]
_LIBRARIES = {"fake_cublaslt.c": "libcublasLt.so.13", "fake_cudnn.c": "libcudnn.so.9"}
# What the list has to have: precisions, 8-bit integers, dynamic sizes, and batches.
_FORMS = (
    "fp32",
    "tf32",
    "fp16",
    "bf16",
    "resnet",
    "magika",
    "@8",
    "@32",
    "triton",
    "cutlass",
    "cudnn,cublas",
)


def test_the_list_has_all_forms() -> None:
    assert [form for form in _FORMS if not any(form in case for case in pack.CASES)] == []
    assert len(set(pack.CASES)) == len(pack.CASES)


@pytest.fixture(scope="module")
def doubles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-ins for the driver and for the libraries."""
    folder = double.driver(tmp_path_factory.mktemp("doubles"))
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-fno-sanitize=undefined"]
    for source, name in _LIBRARIES.items():
        double.zig("cc", [*flags, str(double.HERE / source), f"-Wl,-soname,{name}", "-o", str(folder / name)])
    return folder


@pytest.mark.parametrize("case", pack.CASES)
def test_a_case_runs_without_a_gpu(case: str, doubles: Path, tmp_path: Path) -> None:
    """Its programs end well, every step is launched, and pixels of uint8 are taken like float32."""
    pack.main([str(tmp_path / "pack"), case])
    program = tmp_path / "pack" / "part0" / "on_gpu.py"
    words = [
        sys.executable,
        str(program),
        "--repeat",
        "1",
        "--milliseconds",
        "1",
        "--out",
        str(tmp_path / "out"),
    ]
    environment = {**double.environment(doubles), "PYTHONPATH": ""}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    (golden,), (times,), (converted,) = (results[step].values() for step in ("golden", "time", "converted"))
    assert "failed" not in golden and golden["repeated"] == golden["same"] == 1
    assert times and all(bucket["least"] > 0 and bucket["in_place"] > 0 for bucket in times.values())
    assert "failed" not in converted
