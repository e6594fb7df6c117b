"""Running a stage as the build does, on bundles made once for all tests."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked
import pytest
from kiln.config import Target, canonical_json, load_target, target_config
from kiln.device.check.host_cpu import obstacle

from . import tiny
from .building import Project
from .flashing import DeviceStages, Pair, build, yaml_of

PACKAGE = Path(__file__).resolve().parents[2] / "build_tools"


@dataclass
class MadeBundle:
    """The tiny bundle for a target, and a folder in which stages run on it."""

    bundle: Path
    target: Target
    folder: Path

    def stage(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `python -m kiln NAME` with this bundle's --target, --bundle and --work."""
        target = self.folder / "target.json"
        target.write_text(canonical_json(target_config(self.target)))
        work = self.folder / "work"
        flags = ["--bundle", str(self.bundle), "--target", str(target), "--work", str(work)]
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
        return forked.run_stage([name, *flags, *arguments], Path.cwd(), environment)

    def test(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run device-test; its results are in `results`."""
        return self.stage("device-test", "--out", str(self.folder / "test.json"), *arguments)

    def results(self) -> Any:
        """The record that the last device-test wrote."""
        return json.loads((self.folder / "test.json").read_text())


Maker = Callable[..., MadeBundle]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """make(target, storage=…, kernels=…): the tiny bundle, the same one for the same arguments."""
    bundles: dict[tuple[str, str, str], MadeBundle] = {}

    def maker(target: Target, storage: str = "embedded", kernels: str = tiny.KERNELS) -> MadeBundle:
        target = target.for_variant(target.base)
        key = (canonical_json(target_config(target)), storage, kernels)
        if key not in bundles:
            folder = tmp_path_factory.mktemp("tiny")
            bundles[key] = MadeBundle(tiny.build(folder / "bundle", target, storage, kernels), target, folder)
        return bundles[key]

    return maker


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A user's own project; what one test has built there is up to date for the next."""
    return Project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def at_home(project: Project) -> Project:
    """`project`; the test is skipped if this machine cannot run code for the target x86_64."""
    reason = obstacle(load_target("x86_64"))
    if reason is not None:
        pytest.skip(f"x86_64: {reason}")
    return project


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Two bundles of one model for this machine, with other weights."""
    folder, target = tmp_path_factory.mktemp("bundles"), tiny.base_target()
    return build(folder / "a", target), build(folder / "b", target, (1, 2, 3))


@pytest.fixture
def desk(tmp_path: Path) -> DeviceStages:
    """A folder of this machine as a device."""
    return DeviceStages(tmp_path, yaml_of(tmp_path / "board.yaml", str(tmp_path / "store"), kind="local"))
