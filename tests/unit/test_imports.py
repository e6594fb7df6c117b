"""What pip has installed is imported: libraries that do not fit each other are told in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from kiln.errors import KilnError
from kiln.imports import check_imports


def installed(folder: Path, name: str, content: str, version: str = "1.0") -> None:
    """A distribution `name` with one module, in `folder`."""
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(content)
    about = folder / f"{module}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "RECORD").write_text(f"{module}.py,,\n")


def test_what_does_not_fit_is_named_with_the_way(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(tmp_path)}
    installed(tmp_path, "zz-torch", "__version__ = '2.0+cpu'; print('hello')", "2.0")
    installed(tmp_path, "zzvision", "raise RuntimeError('operator zz::nms does not exist\\nmore')", "0.3")
    installed(tmp_path, "zzkill", "import os; os.kill(os.getpid(), 4)")
    python = Path(sys.executable)
    check_imports(python, ["zz-torch"], environment)
    told = {
        "zzvision": "zzvision 0.3 is installed there, next to zz-torch 2.0+cpu, but cannot be imported: "
        "RuntimeError: operator zz::nms does not exist; libraries that belong together must be of one index",
        "zzkill": "zzkill is installed there, but its import ends with SIGILL; libraries that belong togeth",
        "zzmissing": "'zzmissing' is not installed there",
    }
    for name, line in told.items():
        with pytest.raises(KilnError) as raised:
            check_imports(python, ["zz-torch", name], environment)
        assert str(raised.value).startswith(f"{python}: {line}") and "\n" not in str(raised.value)
    with pytest.raises(KilnError, match=r"what is installed there cannot be tried: .*No such file"):
        check_imports(tmp_path / "python", ["zzvision"])
