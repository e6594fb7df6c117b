"""manifest.json, the description of a bundle: its interface, sizes, tools and files.

The types here are dictionaries with known keys, since programs that only run a bundle (`kiln.load`) install
neither pydantic nor anything else that could check records.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

from kiln.errors import KilnError

NAME = "manifest.json"


class ManifestQuantisation(TypedDict):
    """Scale and zero point of a quantised tensor: real = (level - zero_point) * scale."""

    scale: float
    zero_point: int


class ManifestPort(TypedDict):
    """An input or output; an entry of `shape` is a number or a size expression, see kiln.config.sizes."""

    name: str
    c_name: str
    dtype: str
    shape: list[Any]
    layout: str | None
    quant: ManifestQuantisation | None
    bytes: int


class ManifestTarget(TypedDict):
    """The system and processor that a bundle is for."""

    name: str
    triple: str
    cpu: str
    features: list[str]
    deployment: str


class ManifestVariant(TypedDict):
    """A variant of the kernels: its name, and the processor features that it needs."""

    name: str
    features: list[str]


class ManifestParameters(TypedDict):
    """Bytes of the parameters, and whether they are embedded or in a file."""

    bytes: int
    storage: str
    section: str | None


class ManifestBucket(TypedDict):
    """A bucket: the sizes that it accepts by dimension, and bytes of its arena."""

    name: str
    strategy: str
    dims: dict[str, dict[str, int]]
    arena_bytes: int
    lower_bound_bytes: int


class ManifestBudget(TypedDict):
    """A limit of a run; `kind`: instructions or latency_ms."""

    owner: str
    kind: str
    limit: int | float


class ManifestLibrary(TypedDict):
    """An external library, its files in lib/, and the subgraphs that it computes.

    `heap`: who owns memory that it allocates at run time.
    """

    backend: str
    name: str
    version: str
    licence: str
    heap: str | None
    files: list[str]
    link: list[str]
    subgraphs: list[str]


class ManifestFile(TypedDict):
    """A file of the bundle: path in it, size in bytes, SHA-256."""

    name: str
    bytes: int
    sha256: str


class BuiltModel(TypedDict):
    """The entries about the model and its build. `linked`: figures of size.json, see docs/json.md."""

    format: int
    name: str
    description: str | None
    licence: str | None
    homepage: str | None
    model_hash: str
    target: ManifestTarget
    variants: list[ManifestVariant]
    threads: str
    inputs: list[ManifestPort]
    outputs: list[ManifestPort]
    dims: list[dict[str, Any]]
    states: list[dict[str, Any]]
    state_bytes: int
    params: ManifestParameters
    buckets: list[ManifestBucket]
    linked: dict[str, Any] | None
    run_budgets: list[ManifestBudget]
    libraries: list[ManifestLibrary]
    tools: dict[str, str]


class Manifest(BuiltModel):
    """The content of manifest.json."""

    precision: dict[str, Any]
    byoc: dict[str, Any] | None
    source_sha256: str
    files: list[ManifestFile]


def read_manifest(bundle: Path) -> Manifest:
    """Read manifest.json in a bundle's folder. Raises KilnError where it is missing or damaged."""
    path = bundle / NAME
    try:
        manifest: Manifest = json.loads(path.read_text(encoding="utf-8"))
        name = manifest["name"]
    except (FileNotFoundError, NotADirectoryError):
        problem = f"not a bundle: no {NAME}" if bundle.exists() else "no such folder"
        raise KilnError(f"{bundle}: {problem}; a bundle is build/TARGET/MODEL") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise KilnError(f"{path}: not the manifest of a bundle: {error}") from None
    if not isinstance(name, str) or not name.isidentifier():
        raise KilnError(f"{path}: 'name' is {name!r}, allowed is a C identifier")
    return manifest
