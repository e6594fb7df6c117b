"""Hooks of mkdocs: pages that are made from other files of the repository, and links to such files.

README.md becomes the first page; CONTRIBUTING.md, SECURITY.md and the pages about benchmarks come with it.
The pages of the APIs are made from the headers and from the modules' docstrings. Links to files that are no
pages lose their target and keep their text.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/results/README.md": "benchmark-results.md",
}
PYTHON = {
    "kiln": ["load", "build"],
    "kiln.command_line.build": ["BuiltBundle"],
    "kiln.runtime.network": ["Network"],
    "kiln.runtime.bound_run": ["BoundRun"],
    "kiln.errors": ["KilnError"],
    "kiln.runtime.library": ["RunError"],
    "kiln.operators.declaration": ["OwnOperator", "OwnTensor", "OwnQuant"],
}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside of docs/."""
    sys.path.insert(
        0, str(Path(__file__).resolve().parent)
    )  # mkdocs restores the path after loading this file
    import c_api

    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    for title, header, without in (
        ("C API", "kiln.h", ("for generated plans",)),
        ("C API for GPUs", "kiln_cuda.h", ()),
    ):
        text = c_api.page(ROOT / "runtime_c/include" / header, title, without)
        files.append(File.generated(config, f"reference/{Path(header).stem}.md", content=text))
    files.append(File.generated(config, "reference/python.md", content=_python()))
    for path in sorted((ROOT / "build/pages/assets").iterdir()):
        files.append(File.generated(config, f"assets/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links between files of the repository → links between pages."""
    uri = page.file.src_uri
    source = next((source for source, name in PAGES.items() if name == uri), f"docs/{uri}")
    return _LINK.sub(lambda match: _link(match, source, uri), markdown)


def _link(match: re.Match[str], source: str, uri: str) -> str:
    mark, text, target, anchor = match[1], match[2], match[3], match[4] or ""
    if re.match(r"\w+:", target):
        return match[0]
    there = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    page = PAGES.get(there) or (there.removeprefix("docs/") if there.startswith("docs/") else None)
    if page is not None:
        shown = _title(there) if text.endswith(".md") else text
        return f"{mark}[{shown}]({posixpath.relpath(page, posixpath.dirname(uri) or '.')}{anchor})"
    if not (ROOT / there).exists():
        return match[0]  # mkdocs says that it is broken
    return text


def _title(source: str) -> str:
    """The title of a page of the repository, in place of its file's name."""
    return (ROOT / source).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _python() -> str:
    """The page of the Python API: mkdocstrings reads the docstrings."""
    parts = ["# Python API\n\n[Bundles in Python](../python.md) shows how these are used.\n"]
    for module, names in PYTHON.items():
        parts += [f"::: {module}.{name}\n" for name in names]
    return "\n".join(parts)
