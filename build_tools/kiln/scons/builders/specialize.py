"""specialize: padding around a bucket's graph, and functions for special cases (contents of an input)."""

from __future__ import annotations

from typing import Any

from kiln.scons.bucket_build import Part
from kiln.scons.builders.importing import interface
from kiln.scons.builders.padding import padding
from kiln.scons.builders.simplify import simplify
from kiln.scons.stage import Stage, declare


def specialize(part: Part, dump: bool) -> tuple[str, list[Any]]:
    """Declare the specialised module; returns its folder and files.

    Without padding and special cases, returns the folder and files of the simplified module.
    """
    before, files = simplify(part, dump)
    if not part.is_special:
        return before, files
    config, bucket, folder = (
        part.unit.slice("specialize"),
        part.bucket_json(),
        f"{part.of_model}/specialize",
    )
    whole = interface(part.unit) if bucket else None
    padded = any(segment.strategy == "pad" for segment in part.box.dims.values())
    proof = padding(part.unit) if padded else None
    stage = Stage(
        "specialize",
        part.model_subject,
        ["--in", before, "--config", str(config), "--out", folder]
        + (["--bucket", str(bucket), "--interface", str(whole)] if bucket else [])
        + (["--padding", str(proof)] if proof else []),
        [config, *files, *filter(None, [bucket, whole, proof]), *part.unit.local_files("specialize")],
        [f"{folder}/module.json", f"{folder}/params.safetensors", f"{folder}/interface.json"],
        speaks=True,
    )
    return folder, declare(stage)
