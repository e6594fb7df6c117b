"""The signed statement of a bundle: in-toto's Statement v1 with SLSA's provenance v1.

Its subjects are all files of the bundle with their SHA-256; its predicate contains the model from which, the
target and by which tools it was built. `release` is a number that a device accepts only if it is not below
the greatest that it has seen. The statement has no dates: equal bundles have equal statements.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kiln.errors import KilnError
from kiln.manifest import Manifest
from kiln.sources.cache import file_sha256
from kiln.trust import PROVENANCE

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
PAYLOAD = "application/vnd.in-toto+json"
BUILD_TYPE = "urn:kiln-build:bundle:v1"
MOST_RELEASE = 2**63 - 1


def statement(bundle: Path, manifest: Manifest, release: int) -> dict[str, Any]:
    """The statement of the bundle in the folder `bundle`, without its signature."""
    target = manifest["target"]
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": value}} for name, value in digests(bundle).items()],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "model": manifest["name"],
                    "target": target["name"],
                    "release": release,
                },
                "internalParameters": {
                    "model_hash": manifest["model_hash"],
                    "triple": target["triple"],
                    "cpu": target["cpu"],
                    "features": target["features"],
                    "threads": manifest["threads"],
                    "precision": manifest.get("precision", {}).get("name"),
                },
                "resolvedDependencies": _dependencies(manifest),
            },
            "runDetails": {
                "builder": {"id": "urn:kiln-build:local", "version": dict(manifest["tools"])},
            },
        },
    }


def _dependencies(manifest: Manifest) -> list[dict[str, Any]]:
    """The model's file, the tools and the linked libraries, as SLSA's resource descriptors."""
    model = {"name": f"{manifest['name']}: model file", "digest": {"sha256": manifest["source_sha256"]}}
    tools = [
        {"uri": f"pkg:pypi/{'kiln-build' if name == 'kiln' else name}@{version}"}
        for name, version in sorted(manifest["tools"].items())
    ]
    libraries = [
        {"name": f"{library['name']} {library['version']}"} for library in manifest.get("libraries", [])
    ]
    return [model, *tools, *libraries]


def digests(bundle: Path) -> dict[str, str]:
    """SHA-256 of every file of a bundle but the signed statement itself, by name, sorted.

    Raises KilnError for a symbolic link, which could be read from elsewhere later, and for a pipe, a socket
    or a device, whose content is not in the folder.
    """
    by_name = {}
    for path in sorted(bundle.rglob("*")):
        name = path.relative_to(bundle).as_posix()
        if path.is_symlink():
            raise KilnError(f"{path}: a symbolic link; a bundle consists of files")
        if path.is_dir():
            continue
        if not path.is_file():
            raise KilnError(f"{path}: neither a file nor a folder; a bundle consists of files")
        if name != PROVENANCE:
            by_name[name] = file_sha256(path)
    return by_name
