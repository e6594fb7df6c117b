"""The page in headless Chromium: no overflow, no message of the console, and working controls."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from kiln import packages
from kiln.report.measured import asset
from kiln.report.origins import SourceNode

from .test_html import page

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(shutil.which("chromium") is None, reason=packages.missing_program("chromium")),
]

STEPS = [
    {"bucket": "static", "index": i, "kernel": "tiny_conv", "time": t, "share": t / 5}
    for i, t in ((0, 2.0), (1, 3.0))
]
NODES = [
    SourceNode("first/" + "conv" * 20, "Conv", ("x", "w"), ("a",), None),
    SourceNode("second", "Conv", ("a", "w"), ("y",), None),
]
VARIANTS = [
    {"name": name, "features": ["avx2"] * 20, "code_bytes": 10, "own_code_bytes": 5}
    for name in ("base", "v3")
]


def measured() -> dict[str, Any]:
    error = {"limit": 1.0, "snr_db": 30.0, "vector": "v"}
    rows = [{"tensor": "a", "error": 0.5, "passed": True}, {"tensor": "y", "error": None, "passed": False}]
    return {
        "profile": {"steps": STEPS, "time_unit": "ms", "variant": "v3", "runner": "host CPU"},
        "compared": {"tensors": [{**row, **error} for row in rows]},
        "nodes": NODES,
    }


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(**measured()), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_and_says_nothing(
    chromium: Browser, file: Path, width: int, scheme: str, tmp_path: Path
) -> None:
    chromium.open(file, width, scheme)
    assert chromium.overflowing() == []
    chromium.screenshot(tmp_path / "page.png")
    assert chromium.errors == []
    dark = chromium.value("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark is (scheme == "dark")


def test_nothing_is_cut_off_on_paper(chromium: Browser, file: Path) -> None:
    """Printed, a table or graph cannot be scrolled: a sheet of A4 is 794 pixels wide."""
    chromium.open(file, 794)
    chromium.call("Emulation.setEmulatedMedia", media="print")
    assert chromium.overflowing() == []
    cut = "[...document.querySelectorAll('main *')].filter(e => e.scrollWidth > e.clientWidth + 1 &&"
    assert chromium.value(f"{cut} getComputedStyle(e).overflowX !== 'visible').map(e => e.className)") == []


def test_a_step_is_one_click_away(chromium: Browser, file: Path) -> None:
    """The first step beyond its limit is shown at once; a click shows another one."""
    chromium.open(file, 1280)
    facts = "document.querySelector('.facts').textContent"
    assert chromium.value("document.querySelectorAll('.graph .node').length") == 4
    assert chromium.value("document.querySelectorAll('.graph .edge').length") == 3
    shown = chromium.value(facts)
    assert "second" in shown and "FAIL" in shown and "3 ms, 60.0 %" in shown
    chromium.value("document.querySelectorAll('.graph .node.step')[0].dispatchEvent(new MouseEvent('click'))")
    shown = chromium.value(facts)
    assert NODES[0].name in shown and "arena+64" in shown and "128 bytes written" in shown
    assert chromium.value("document.querySelectorAll('.graph .node.failed').length") == 1
    assert chromium.errors == []


def test_the_steps_are_sorted_and_filtered(chromium: Browser, file: Path) -> None:
    chromium.open(file, 1280)
    rows = "[...document.querySelectorAll('table.steps tbody tr')].filter(r => !r.hidden).map(r => r.id)"
    head = "[...document.querySelectorAll('table.steps th')].find(h => h.textContent === 'ms')"
    chromium.value(f"{head}.click()")
    assert chromium.value(rows) == ["static-1", "static-0"]
    chromium.value(f"{head}.click()")
    assert chromium.value(rows) == ["static-0", "static-1"]
    field = "document.querySelector('input[data-filters]')"
    chromium.value(f"{field}.value = 'SECOND conv2d'; {field}.dispatchEvent(new Event('input'))")
    assert chromium.value(rows) == ["static-1"]
    assert chromium.value("document.querySelector('[data-counts]').textContent") == "1 of 2 steps"


def test_the_layout_library_is_the_published_one() -> None:
    pin = json.loads(asset("dagre.json"))
    content = asset(pin["file"]).encode()
    assert base64.b64encode(hashlib.sha512(content).digest()).decode() == pin["sha512"]
    assert "Permission is hereby granted" in asset("dagre.LICENSE") and pin["licence"] == "MIT"
    assert asset("dagre.LICENSE").splitlines()[0] in page()
