"""Write the table of docs/sizes.md from finished and tested builds: `sizes_table.py x86_64 aarch64`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- sizes -->\n", "<!-- end of sizes -->\n"
HEAD = ("model", "target", "flash", "parameters", "arena", "lower bound", "error", "limit")


def main(targets: list[str]) -> int:
    """Write one row for each model and target whose bundle is built and tested; returns 0."""
    page = ROOT / "docs" / "sizes.md"
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    models = sorted(path.stem for path in (ROOT / "models").glob("*.yaml"))
    found = [row(target, model) for model in models for target in targets]
    rows = [HEAD, ("---", "---", *["---:"] * 6), *filter(None, found)]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    page.write_text(before + BEGIN + table + END + rest.split(END)[1], encoding="utf-8")
    return 0


def row(target: str, model: str) -> tuple[str, ...] | None:
    """Cells of one bundle: sizes in bytes, and the error that comes closest to its limit, with that limit.

    None where the bundle is not built and tested.
    """
    manifest = _read(ROOT / "build" / target / model / "manifest.json")
    test = _read(ROOT / "build" / ".stages" / target / model / "test.json")
    if manifest is None or test is None:
        return None
    largest = max(manifest["buckets"], key=lambda bucket: bucket["arena_bytes"])
    params = manifest["params"]
    separate = params["bytes"] if params["storage"] == "file" else 0
    sizes = [
        manifest["linked"]["flash_bytes"] + separate,
        params["bytes"],
        largest["arena_bytes"],
        largest["lower_bound_bytes"],
    ]
    outputs = [output for vector in test["vectors"] for output in vector["outputs"]]
    worst = max(outputs, key=lambda output: output["error"] / output["limit"] if output["limit"] else 0)
    unit = f" {worst['unit']}" if worst["unit"] else ""
    errors = [f"{worst['error']:.2g}{unit}", f"{worst['limit']:.2g}{unit}"]
    return (model, target, *(f"{size:,}" for size in sizes), *errors)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
