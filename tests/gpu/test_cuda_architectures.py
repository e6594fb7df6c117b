"""GPU architectures that a target may name are those that the pinned nvcc compiles for."""

from __future__ import annotations

import subprocess

import pytest
from kiln.config.target import GPUS
from kiln.sources.cuda_toolkit import cuda_toolkit


@pytest.mark.heavy  # downloads the toolkit
def test_a_target_may_name_every_architecture_that_nvcc_knows() -> None:
    command = [str(cuda_toolkit() / "bin" / "nvcc"), "--list-gpu-code"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert {f"sm_{number}" for number in GPUS} == set(listed)
