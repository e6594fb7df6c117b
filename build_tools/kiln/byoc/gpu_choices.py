"""Measured choices among GPU kernels: for each subgraph, the fastest backend, and the tile of its kernel.

A file byoc/measured/<gpu>-<arch>.json holds {"gpu", "arch", "precisions": {precision: {key: {…}}}}. `gpu` is
the driver's name of the GPU, in the file's name in lower case with dashes: nvidia-h200-sm_90.json. A key is
that of a subgraph (kiln.byoc.match.Match.key); its entry holds `backend`, the fastest one ("kiln": Kiln's own
kernels), and `tiles`, by backend the numbers of its fastest kernel (kiln.byoc.backend.Code.tile). `us`, by
backend, are the measured microseconds. `product`: how Kiln's own kernels name the subgraph's product, if
tensor cores compute it (kiln.kernels.gpu.block_tile.ProductTiles); the tile of "kiln" is for that name. A
target names the GPU in `cuda: {tuned_for: …}`; the file is that of its newest architecture. Subgraphs without
an entry follow the rules of the backends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kiln.config.target import Cuda
from kiln.errors import KilnError
from kiln.files import atomic_write, read_json

FOLDER = Path(__file__).parent / "measured"
OWN = "kiln"


def file_name_of_gpu(gpu: str) -> str:
    """The driver's name of a GPU as part of a file's name: `NVIDIA H200` becomes `nvidia-h200`."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def choices_file(gpu: str, arch: str, folder: Path | None = None) -> Path:
    """Path of the choices for a GPU; `gpu`: its name as `file_name_of_gpu` writes it."""
    return (folder or FOLDER) / f"{gpu}-{arch}.json"


def choices_of(cuda: Cuda | None, precision: str, folder: Path | None = None) -> dict[str, Any]:
    """The measured choices for a target and a precision, by key; empty if there are none.

    Raises KilnError for a file that does not have the form above.
    """
    if cuda is None or cuda.tuned_for is None:
        return {}
    path = choices_file(cuda.tuned_for, cuda.newest, folder)
    if not path.is_file():
        return {}
    content = read_json(path)
    entries = content.get("precisions", {}).get(precision, {}) if isinstance(content, dict) else None
    if not isinstance(entries, dict):
        raise KilnError(f"{path}: {{'precisions': {{'{precision}': {{…}}}}}} expected")
    for key, entry in entries.items():
        _check_entry(path, key, entry)
    return entries


def _check_entry(path: Path, key: str, entry: Any) -> None:
    """Raise KilnError unless `entry` is the entry of a subgraph."""
    if not isinstance(entry, dict) or not isinstance(entry.get("backend"), str):
        raise KilnError(f"{path}: {key}: 'backend' is the name of a backend, or '{OWN}'")
    tiles = entry.get("tiles", {})
    if not isinstance(tiles, dict) or not all(
        isinstance(tile, list) and tile and all(type(n) is int and n > 0 for n in tile)
        for tile in tiles.values()
    ):
        raise KilnError(f"{path}: {key}: 'tiles' holds, by backend, a list of positive numbers")
    if not isinstance(entry.get("product", ""), str):
        raise KilnError(f"{path}: {key}: 'product' is a text")
    us = entry.get("us", {})
    if not isinstance(us, dict) or not all(type(n) in (int, float) and n > 0 for n in us.values()):
        raise KilnError(f"{path}: {key}: 'us' holds, by backend, a positive number")


def tiles_of(entries: Mapping[str, Any], backend: str) -> dict[str, tuple[int, ...]]:
    """The measured tiles of one backend, by the subgraph's key."""
    return {key: tuple(e["tiles"][backend]) for key, e in entries.items() if backend in e.get("tiles", {})}


def products_of(entries: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The measured tiles of Kiln's own kernels, by the product's name."""
    entries_of_kiln = [
        entry for entry in entries.values() if entry.get("product") and OWN in entry.get("tiles", {})
    ]
    return {entry["product"]: tuple(entry["tiles"][OWN]) for entry in entries_of_kiln}


def merge(
    folder: Path | None, gpu: str, arch: str, precision: str, new: Mapping[str, Mapping[str, Any]]
) -> Path:
    """Merge entries by key into the file of a GPU, one line each; returns its path.

    Raises KilnError where the file cannot be written.
    """
    path = choices_file(file_name_of_gpu(gpu), arch, folder)
    old = read_json(path) if path.is_file() else {}
    precisions = {**old.get("precisions", {})}
    precisions[precision] = {**precisions.get(precision, {}), **new}
    blocks = []
    for name in sorted(precisions):
        rows = [
            f"   {json.dumps(key)}: {json.dumps(precisions[name][key])}" for key in sorted(precisions[name])
        ]
        blocks.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n  }")
    head = f' "gpu": {json.dumps(gpu)},\n "arch": {json.dumps(arch)},\n'
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, "{\n" + head + ' "precisions": {\n' + ",\n".join(blocks) + "\n }\n}\n")
    except OSError as error:
        raise KilnError(f"{path}: cannot write: {error.strerror or error}") from error
    return path
