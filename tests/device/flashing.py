"""Small bundles and the stages that bring them to devices, as the build calls them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked
import numpy as np
from kiln.config import Target, canonical_json, target_config
from kiln.device.deploy.copies import file_of
from kiln.device.deploy.registry import device_config, load_device
from kiln.device.flash import bundle_files, version_id
from kiln.emit.bundle import list_files
from kiln.emit.link import has_shared, shared
from kiln.files import read_json
from kiln.plan.schema import parse_plan

from . import tiny

PACKAGE = Path(__file__).resolve().parents[2] / "build_tools"


@dataclass
class BuiltBundle:
    """The tiny bundle, its target, and the folder of both."""

    folder: Path
    bundle: Path
    target: Target

    @property
    def id(self) -> str:
        """The name of the bundle's version in installed.json."""
        return version_id(bundle_files(self.bundle, read_json(self.bundle / "manifest.json"), "all"))

    @property
    def library(self) -> Path:
        """The static library."""
        return self.bundle / "lib/libtiny.a"

    def bytes(self) -> int:
        """The sum of the sizes of all files of the bundle."""
        return sum(path.stat().st_size for path in self.bundle.rglob("*") if path.is_file())


def build(
    folder: Path, target: Target, weights: Sequence[float] = (0.5, -2.0, 3.0), **how: Any
) -> BuiltBundle:
    """The bundle of tiny.py with the given weights and a manifest; `how`: arguments of tiny.build."""
    before = tiny.W.copy()
    tiny.W[:] = np.array(weights, np.float32)
    try:
        bundle = tiny.build(folder / "tiny", target, **how)
    finally:
        tiny.W[:] = before
    if has_shared(target):
        plan, objects = parse_plan(tiny.plan()), sorted((bundle / "objects").glob("*.o"))
        kernels = [kernel.symbol for kernel in plan.kernels]
        shared(target, plan.name, [plan.name], kernels, plan.threads, objects, bundle)
    shutil.rmtree(bundle / "objects")
    write_manifest(bundle, target, how.get("storage", "embedded"))
    (folder / "target.json").write_text(canonical_json(target_config(target)))
    return BuiltBundle(folder, bundle, target)


def write_manifest(bundle: Path, target: Target, storage: str = "embedded", **changes: Any) -> None:
    """Write manifest.json for the files of the bundle; `changes` replaces entries."""
    (bundle / "manifest.json").unlink(missing_ok=True)
    manifest = {
        "format": 1,
        "name": "tiny",
        "model_hash": tiny.plan()["model_hash"],
        "target": {"name": target.name},
        "variants": [{"name": target.base}],
        "params": {"bytes": 12, "storage": storage},
        "buckets": [{"arena_bytes": 88}],
        "files": list_files(bundle),
        **changes,
    }
    (bundle / "manifest.json").write_text(json.dumps(manifest))


@dataclass
class DeviceStages:
    """Runs stages on one device; `folder` gets the files that they write."""

    folder: Path
    device: Path  # its YAML

    def words(self, stage: str, *flags: str) -> list[str]:
        """The stage's name and flags, after its device.json has been written."""
        config = self.folder / "device.json"
        config.write_text(canonical_json(device_config(load_device(self.device))))
        return [stage, "--device", str(config), *flags]

    def start(self, stage: str, *flags: str, **environment: str) -> subprocess.Popen[str]:
        """Start a stage on the device."""
        return subprocess.Popen(
            [sys.executable, "-m", "kiln", *self.words(stage, *flags)],
            env=_environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, stage: str, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a stage on the device to its end."""
        return forked.run_stage(self.words(stage, *flags), Path.cwd(), _environment(environment))

    def flags(self, built: BuiltBundle) -> list[str]:
        """The flags of device-flash and device-test for a bundle."""
        work, out = str(built.folder / "work"), str(self.folder / "out.json")
        target = str(built.folder / "target.json")
        return ["--bundle", str(built.bundle), "--target", target, "--work", work, "--out", out]

    def flash(self, built: BuiltBundle, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the stage device-flash to its end."""
        return self.run("device-flash", *self.flags(built), **environment)

    def flashed(self, built: BuiltBundle) -> Any:
        """Flash the bundle; returns the record that the stage wrote. It must succeed."""
        done = self.flash(built)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        return json.loads((self.folder / "out.json").read_text())

    def refused(self, built: BuiltBundle, **environment: str) -> str:
        """Flash the bundle; returns the line of the error. The stage must fail with one line and status 2."""
        done = self.flash(built, **environment)
        assert done.returncode == 2, done.stdout + done.stderr
        assert done.stderr.startswith("kiln: error: ") and done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    def installed(self, goal: str, *flags: str) -> subprocess.CompletedProcess[str]:
        """Run the stage device-installed with the goal `rollback` or `status`."""
        return self.run("device-installed", "--goal", goal, "--model", "tiny", *flags)


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PACKAGE), "COLUMNS": "160", **more}


def yaml_of(path: Path, folder: str, target: str = "host", **transport: Any) -> Path:
    """Write a device's YAML."""
    about = {"description": "a test's", "target": target, "transport": transport}
    if transport["kind"] not in ("gdb", "pyocd"):
        about["folder"] = folder
    path.write_text(json.dumps(about, ensure_ascii=False))  # JSON is YAML
    return path


Pair = tuple[BuiltBundle, BuiltBundle]


def in_use(folder: Path) -> str | None:
    """The id of the bundle in use, all of whose files must be whole."""
    current = folder / "store/tiny/current"
    if not current.exists():
        return None
    # Resolved once: what the killed program has started may still switch to the other bundle.
    version = current.resolve() if current.is_dir() else current.parent / current.read_text().strip()
    installed = json.loads((version / "installed.json").read_text())
    for entry in installed["files"]:
        assert file_of(entry["name"], version / entry["name"]).sha256 == entry["sha256"]
    sums = subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=version, check=False)
    assert sums.returncode == 0
    return str(installed["id"])
