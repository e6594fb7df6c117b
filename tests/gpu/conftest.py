"""A bundle for a GPU, built once, and what stands in for the GPU. No test here needs one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import scons_real
from kiln.config import load_target
from kiln.toolchain import link, oldest_cpu_command

from . import double

TARGET, MODEL = "cuda_sm90", "resnet"


@dataclass(frozen=True)
class SessionProgram:
    """A folder with a bundle of MODEL for TARGET, its plan, the stand-ins, and a program with sessions."""

    folder: Path
    plan: Mapping[str, Any]
    driver: Path
    kernels: Path
    program: Path

    @property
    def bundle(self) -> Path:
        return self.folder / "build" / TARGET / MODEL


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> SessionProgram:
    folder = scons_real.own_project(tmp_path_factory.mktemp("cuda"))
    scons_real.build_with_tree(folder, f"target={TARGET}", f"model={MODEL}")
    stages = folder / "build" / ".stages" / TARGET / MODEL
    plan = double.read_plan(stages)
    driver = double.driver(folder / "driver")
    source = (stages / "objects" / f"{MODEL}.cu").read_text(encoding="utf-8")
    kernels = double.kernels_on_cpu(source, plan, folder / "kernels.so")
    bundle, program = folder / "build" / TARGET / MODEL, folder / "try_session"
    flags = [f'-DKILN_HEADER="{MODEL}.h"', f"-DKILN_MODEL={MODEL}", f"-I{bundle / 'include'}", "-std=c11"]
    files = [str(double.HERE / "try_session.c"), str(bundle / "lib" / f"lib{MODEL}.a"), "-o", str(program)]
    target = load_target(TARGET)
    link(target, [*oldest_cpu_command(target), "-O2", *flags, *files], "linking try_session")
    return SessionProgram(folder, plan, driver, kernels, program)
