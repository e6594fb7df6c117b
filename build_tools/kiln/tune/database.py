"""Writes tuning records to tir/tuned/<cpu>-<isa>.json, one line per kernel, for readable diffs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiln.config import Target
from kiln.errors import KilnError
from kiln.files import atomic_write, read_json
from kiln.tir.tuning_records import MEASURED, file_of


def merge(folder: Path, cpu: str, target: Target, measured: Mapping[str, Mapping[str, Any]]) -> Path:
    """Merge tuning records by kernel into the file of a CPU; returns the file's path.

    Kernels for which the heuristics are best are removed from the file. Raises KilnError where the file
    cannot be written.
    """
    path = file_of(cpu, target.vector.isa, folder)
    file_content = read_json(path) if path.is_file() else {}
    kernels = dict(file_content.get("kernels", {}))
    for key, entry in measured.items():
        kernels.pop(key, None)
        if set(entry) - set(MEASURED):
            kernels[key] = entry
    if kernels or file_content:
        try:
            atomic_write(path, as_text({"cpu": cpu, "isa": target.vector.isa}, kernels))
        except OSError as error:
            raise KilnError(f"{path}: cannot write: {error.strerror or error}") from error
    return path


def as_text(head: Mapping[str, Any], kernels: Mapping[str, Any]) -> str:
    """JSON text of a file of tuning records, with a line for each kernel."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    rows = [f"  {json.dumps(key)}: {json.dumps(kernels[key])}" for key in sorted(kernels, key=_order)]
    body = ' "kernels": {\n' + ",\n".join(rows) + "\n }" if rows else ' "kernels": {}'
    return "{\n" + ",\n".join([*lines, body]) + "\n}\n"


def _order(key: str) -> list[tuple[int, Any]]:
    """Sort key: large images first, then few channels; about the order of the layers of a network."""
    sizes = [[int(n) for n in word.lstrip("sdg").split("x")] for word in key.split()[1:]]
    x, weights = sizes[:2]
    return [(0, -x[1] * x[2]), (1, weights), (2, sizes)]
