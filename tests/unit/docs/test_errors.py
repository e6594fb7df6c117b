"""docs/errors.md names every status of the runtime, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import kiln
from kiln.paths import data_dir

DOCS = Path(kiln.__file__).parents[2] / "docs"


def test_every_status_has_a_cause_and_a_remedy() -> None:
    header = (data_dir("runtime_c") / "include/kiln.h").read_text()
    statuses = re.findall(r"^    (KILN_\w+) = \d+", header.split("typedef enum kiln_where")[0], re.MULTILINE)
    rows = re.findall(
        r"^\| `(KILN_\w+)` \| (.+?) \| (.*?) ?\|$", (DOCS / "errors.md").read_text(), re.MULTILINE
    )
    assert sorted(name for name, _, _ in rows) == sorted(statuses)
    assert [name for name, cause, remedy in rows if not (cause and remedy)] == ["KILN_OK"]
