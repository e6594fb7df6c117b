"""Runs the model generators, the Python modules in `models/generators` of Kiln itself."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from kiln.config.check import choices
from kiln.errors import KilnError
from kiln.paths import data_dir

_PACKAGE = "kiln_model_generators"


def generate(name: str, seed: int, weights: Path | None) -> bytes:
    """Content of the model file that the generator `name` writes from `seed` or from the file `weights`.

    Only Kiln's own folder is searched: a `models/generators` in the user's folder is not executed. Raises
    KilnError for an unknown name.
    """
    names = sorted(path.stem for path in _folder().glob("[!_]*.py"))
    if name not in names:
        raise KilnError(f"unknown generator '{name}'{choices(name, names)}")
    data: bytes = load_module(name).generate(seed, weights)
    return data


def load_module(name: str) -> ModuleType:
    """The module `name` of `models/generators`, as part of a package: the modules import each other."""
    if _PACKAGE not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            _PACKAGE, _folder() / "__init__.py", submodule_search_locations=[str(_folder())]
        )
        assert spec is not None and spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[_PACKAGE] = package
        spec.loader.exec_module(package)
    return importlib.import_module(f"{_PACKAGE}.{name}")


def _folder() -> Path:
    return data_dir("models") / "generators"
