"""Write README.md's table of sizes from the bundles that are built: `readme_sizes.py x86_64 aarch64`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- sizes -->\n", "<!-- end of sizes -->\n"


def main(targets: list[str]) -> int:
    """One row a model, one column a target; a bundle that is not built is left empty."""
    readme = ROOT / "README.md"
    before, rest = readme.read_text(encoding="utf-8").split(BEGIN)
    models = sorted(path.stem for path in (ROOT / "models").glob("*.yaml"))
    rows = [["model", *targets], ["---"] * (len(targets) + 1)]
    rows += [[model, *(cell(target, model) for target in targets)] for model in models]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    readme.write_text(before + BEGIN + table + END + rest.split(END)[1], encoding="utf-8")
    return 0


def cell(target: str, model: str) -> str:
    """Flash and arena of one bundle."""
    manifest = ROOT / "build" / target / model / "manifest.json"
    if not manifest.is_file():
        return ""
    content: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))
    arena = max(bucket["arena_bytes"] for bucket in content["buckets"])
    return f"{content['linked']['flash_bytes']:,} / {arena:,}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
