"""The pages name files, stages and terms that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import kiln
import pytest
from kiln.config import list_targets, load_target
from kiln.stages import STAGES

ROOT = Path(kiln.__file__).resolve().parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
# Pages name a file by its path from one of these folders.
PACKAGE = "build_tools/kiln"
BASES = ("", "build_tools", PACKAGE, f"{PACKAGE}/kernels", f"{PACKAGE}/device", "runtime_c", "docs")
# Files of the user's own, of examples and of builds.
EXAMPLES = {
    "app", "backends", "build", "cmake", "components", "golden", "include", "lib", "licences", "mine",
    "metadata", "models", "operators", "pkgconfig", "src", "trust",
}  # fmt: skip
EXAMPLE_FILES = {"build_tools/kiln/report/names.py"}


def places(text: str, suffixes: str) -> Iterator[str]:
    """Paths with a folder and a suffix of `suffixes`, or that end in a slash, between back quotes."""
    name = r"[A-Za-z_][\w.-]*"
    yield from re.findall(rf"`({name}(?:/[\w.-]+)+\.(?:{suffixes})|{name}(?:/[\w.-]+)*/)`", text)


def exists(name: str) -> bool:
    return any((ROOT / base / name).exists() for base in BASES)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_paths_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(places(text, "py|c|h|md|j2|yaml|txt|json|sh|cuh")) - set(
        re.findall(r"^\*\*`(.+)`\*\*$", text, re.M)
    )
    missing = {
        name for name in named - EXAMPLE_FILES if name.split("/")[0] not in EXAMPLES and not exists(name)
    }
    assert missing == set()


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_programs_compile_without_warnings_of_signs(page: Path) -> None:
    """The size macros of a header are unsigned: -Wextra warns where a signed counter is compared with one."""
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^\s*for \(int.* < [A-Z0-9_]+_(?:ELEMENTS|BYTES);.*", text, re.M) == []


def test_paths_are_found() -> None:
    """The pattern finds paths at all: each page of the architecture names many."""
    text = (ROOT / "docs/lowering.md").read_text(encoding="utf-8")
    assert len(set(places(text, "py|c|h"))) > 40


def test_paths_in_docstrings_and_comments_exist() -> None:
    """Paths such as `kernels/cpu/gemm_tile.py`, from the package's folder or one above it, exist."""
    missing = []
    packages = "|".join(sorted(path.name for path in Path(kiln.__file__).parent.iterdir() if path.is_dir()))
    pattern = re.compile(rf"\b((?:{packages}|runtime_c|tests)/[\w/.]+\.(?:py|c|h|j2|cuh))\b")
    for folder in ("build_tools", "runtime_c"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".c", ".h", ".cuh"):
                text = path.read_text(encoding="utf-8")
                missing += [f"{path.name}: {name}" for name in pattern.findall(text) if not exists(name)]
    assert missing == []


def test_every_page_is_in_the_sites_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not re.search(rf"[ -]{re.escape(page)}$", text, re.M)] == []


def test_every_stage_is_described() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    assert [name for name in STAGES if f"`{name}`" not in text] == []


def test_every_variant_is_listed() -> None:
    text = (ROOT / "docs/targets.md").read_text(encoding="utf-8").split("| target | variants |")[1]
    listed = {}
    for row in text.split("\n\n")[0].splitlines()[2:]:
        targets, variants = (set(re.findall("`([^`]+)`", cell)) for cell in row.split(" | "))
        listed |= dict.fromkeys(targets, variants)
    shipped = [(entry.name, load_target(entry.name)) for entry in list_targets() if entry.name != "host"]
    assert listed == {
        name: {target.base, *(variant.name for variant in target.variants)}
        for name, target in shipped
        if target.variants
    }


def test_terms_are_in_alphabetical_order() -> None:
    rows = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").split("| --- | --- |\n")[1].splitlines()
    terms = [row[2:].split(" |")[0].lower().replace("-", " ") for row in rows]
    assert terms == sorted(set(terms))
    assert len(terms) > 60
