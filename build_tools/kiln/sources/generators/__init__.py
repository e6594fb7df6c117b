"""Generators of model files: networks with random weights from a seed, or weights read from a checkpoint.

A generator is a module here with `generate(seed, weights) -> bytes`. Equal arguments give equal bytes on
every machine, which the SHA-256 in the model's YAML checks.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from kiln.config.check import choices
from kiln.errors import KilnError


def generate(name: str, seed: int, weights: Path | None) -> bytes:
    """Content of the model file that the generator `name` creates. Raises KilnError for an unknown name."""
    known = sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))
    if name not in known:
        raise KilnError(f"unknown generator '{name}'{choices(name, known)}")
    data: bytes = importlib.import_module(f"{__name__}.{name}").generate(seed, weights)
    return data
