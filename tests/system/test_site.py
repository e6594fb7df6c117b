"""The site of ./kiln docs: it is built without a warning, needs no network, fits and can be searched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import waiting
from browser import Browser
from kiln import packages
from scons_real import ROOT

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="mkdocs-material needs Python 3.11 or newer"),
]
PAGES = (
    "index", "guides/index", "guides/microcontroller", "guides/dynamic-shapes", "reference/kiln",
    "reference/python", "models", "quantisation", "trust", "architecture", "zoo",
)  # fmt: skip
DRAWN = "document.querySelector('div.mermaid')"


@pytest.fixture(scope="module")
def site() -> Path:
    done = subprocess.run(
        [sys.executable, "build_tools/pages/build.py"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "build/site/index.html\n"
    return ROOT / "build/site"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if shutil.which("chromium") is None:
        pytest.skip(packages.missing_program("chromium"))
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    """No page loads a script, style, font or picture from another place."""
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    loads = re.compile(
        r"""<(?:script|img|iframe)[^>]*\bsrc="?(?:https?:)?//|<link[^>]*\bhref="?(?:https?:)?//"""
    )
    assert [page.name for page in pages if loads.search(page.read_text(encoding="utf-8"))] == []


def test_the_apis_are_there(site: Path) -> None:
    header = (ROOT / "runtime_c/include/kiln.h").read_text(encoding="utf-8").split("for generated plans")[0]
    functions = set(re.findall(r"^\w[\w *]*?\b(kiln_\w+)\(", header, re.M))
    page = (site / "reference/kiln.html").read_text(encoding="utf-8")
    assert len(functions) > 25
    assert [name for name in functions if f"<code>{name}</code>" not in page] == []
    python = (site / "reference/python.html").read_text(encoding="utf-8")
    assert all(
        f'id="{name}"' in python for name in ("kiln.load", "kiln.build", "kiln.runtime.network.Network.run")
    )


@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_and_say_nothing(site: Path, chromium: Browser, width: int, tmp_path: Path) -> None:
    for name in PAGES:
        chromium.open(site / f"{name}.html", width, "dark" if name == "trust" else "light")
        chromium.screenshot(tmp_path / "page.png", whole=False)
        assert (name, chromium.overflowing()) == (name, [])
        assert (name, chromium.errors) == (name, [])


def test_diagrams_are_drawn(site: Path, chromium: Browser) -> None:
    chromium.open(site / "index.html", 1280)
    _wait(chromium, f"{DRAWN} && {DRAWN}.shadowRoot !== undefined && {DRAWN}.offsetHeight > 50")
    assert chromium.errors == []


def test_a_word_is_found(site: Path, chromium: Browser) -> None:
    chromium.open(site / "guides/index.html", 1280)
    chromium.value("document.querySelector('.md-search__input').focus()")
    chromium.value(
        "(() => { const field = document.querySelector('.md-search__input'); field.value = 'monocypher';"
        " field.dispatchEvent(new Event('keyup', {bubbles: true}));"
        " field.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    results = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
    _wait(chromium, f"{results}.length > 0")
    assert any("/trust.html" in link for link in chromium.value(results))
    assert chromium.errors == []


def _wait(browser: Browser, condition: str) -> None:
    waiting.until(lambda: browser.value(f"Boolean({condition})"), condition)


def test_a_broken_link_is_an_error(site: Path, tmp_path: Path) -> None:
    """A copy of the tree whose docs have a link to a page, and one to a heading, that do not exist."""
    copy = tmp_path / "kiln"
    for name in ("docs", "build_tools", "runtime_c", "benchmarks"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [*ROOT.glob("*.md"), ROOT / "mkdocs.yml"]:
        shutil.copy(path, copy)
    (copy / "build").mkdir()
    (copy / "build/pages").symlink_to(ROOT / "build/pages")
    for link, said in (("no-page.md", "no-page.md"), ("trust.md#no-heading", "no-heading")):
        shutil.copy(ROOT / "docs/farm.md", copy / "docs")
        with (copy / "docs/farm.md").open("a", encoding="utf-8") as page:
            page.write(f"\n[a link]({link})\n")
        done = subprocess.run(
            [sys.executable, "build_tools/pages/build.py"],
            cwd=copy,
            capture_output=True,
            text=True,
            env=os.environ,
        )
        assert done.returncode == 2 and said in done.stderr, done.stderr
        assert done.stderr.splitlines()[-1].startswith("kiln: error: docs: ")
