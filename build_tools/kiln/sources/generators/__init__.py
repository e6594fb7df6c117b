"""Programs that make a model file: networks whose weights are drawn from a seed, or read from a checkpoint.

A generator is a module here with `generate(seed, weights) -> bytes`. The same arguments give the same
bytes on every machine, which the SHA-256 in the model's YAML holds it to.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from kiln.config.check import choices
from kiln.errors import KilnError


def generate(name: str, seed: int, weights: Path | None) -> bytes:
    """The model file that a generator makes. Raises KilnError for a generator that does not exist."""
    known = sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))
    if name not in known:
        raise KilnError(f"unknown generator '{name}'{choices(name, known)}")
    data: bytes = importlib.import_module(f"{__name__}.{name}").generate(seed, weights)
    return data
