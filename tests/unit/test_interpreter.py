"""Modules that Kiln runs in processes of their own, in a folder of the user."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from kiln.interpreter import module_command

pytestmark = pytest.mark.fast


def test_modules_of_the_current_folder_are_not_imported(tmp_path: Path) -> None:
    for name in ("json", "runpy", "argparse"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the current folder')")
    done = subprocess.run(
        module_command("json.tool", "--compact"), cwd=tmp_path, input="[1, 2]", capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1,2]\n", "")
