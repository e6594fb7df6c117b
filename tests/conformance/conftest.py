"""Bundles that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest
from scons_real import copy_tree, scons


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build folder of a project that has built resnet for x86_64 and aarch64."""
    folder = copy_tree(tmp_path_factory.mktemp("built"))
    scons(folder, "target=x86_64,aarch64", "model=resnet")
    return folder / "build"
