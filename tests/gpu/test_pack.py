"""The pack for a machine with a GPU, run on this machine against the stand-in for the driver."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from . import double, pack
from .conftest import MODEL, Built

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the bundle is for x86-64 machines")


def test_a_pack_runs_where_there_is_no_kiln(built: Built, tmp_path: Path) -> None:
    pack.main([str(tmp_path / "pack"), "--bundle", f"{MODEL}.int8={built.bundle}"])
    part = tmp_path / "pack" / "part0"
    environment = {**double.environment(built.driver, kernels=built.kernels), "PYTHONPATH": ""}
    words = [sys.executable, str(part / "on_gpu.py"), "--repeat", "2", "--milliseconds", "1"]
    done = subprocess.run(
        [*words, "--out", str(tmp_path / "out")],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "golden vectors: 1 of 1 bundles are right" in done.stdout
    results = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    (golden,) = results["golden"].values()
    assert golden["faults"] == [] and golden["of_the_limit"] <= 1
    assert golden["same"] == golden["repeated"] == 2
    (times,) = results["time"].values()
    (bucket,) = times.values()
    assert bucket["least"] > 0 and len(bucket["steps"]) == len(built.plan["buckets"][0]["steps"])
    assert len(results["sanitize"]) == 4 and len(results["ncu"]) == 1


def test_parts_of_a_pack() -> None:
    sizes = {"a": 50, "b": 30, "c": 20, "d": 9, "huge": 200}
    assert pack.divide(sizes, 60) == [["huge"], ["a", "d"], ["b", "c"]]
