"""The page: equal bytes for equal inputs, nothing from outside, names of any kind kept harmless."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from kiln.config import load_target, target_config
from kiln.config.byoc import Byoc
from kiln.config.library_choices import LibraryChoices, LibraryTime, TimedSubgraph
from kiln.config.measured_errors import PrecisionFile
from kiln.golden.schema import GoldenEntry
from kiln.plan.schema import Plan
from kiln.report import arena
from kiln.report.html import PageContent, render
from plans import plan_of, size_file
from records import golden_file, golden_tensor

VOID = {"meta", "br", "line", "rect", "polyline", "input"}


def plan() -> Plan:
    tensor = {"name": "a<b>", "offset": 64, "bytes": 128, "first": 0, "last": 1, "kind": "activation"}
    io = {"dtype": "int8", "layout": "NHWC", "quant": {"scale": 0.5, "zero_point": 3}, "bytes": 12}
    return plan_of(
        name="tiny",
        target="aarch64",
        model_hash="11" * 32,
        inputs=[{"name": "<script>alert(1)</script>", "c_name": "x", "shape": [1, 12], **io}],
        outputs=[{"name": "y", "c_name": "y", "shape": [1, 12], **io}],
        params={
            "bytes": 24,
            "align": 64,
            "storage": "embedded",
            "section": None,
            "tensors": [{"name": "w", "offset": 0, "bytes": 24, "dtype": "int8", "shape": [24]}],
        },
        kernels=[
            {
                "symbol": "tiny_conv",
                "args": [{"dtype": "int8", "const": True}, {"dtype": "int8", "const": False}],
                "parallel": True,
                "ops": [{"name": "relax.nn.conv2d", "attrs": {"strides": [2, 2], "groups": 1}}],
                "flops": 4000,
            }
        ],
        buckets=[
            {
                "name": "static",
                "dims": {"batch": 1},
                "arena_bytes": 192,
                "lower_bound_bytes": 128,
                "steps": [
                    {
                        "kernel": "tiny_conv",
                        "extent": 4,
                        "label": "conv2d" + "+multiply" * 12,
                        "args": [
                            {"at": "input", "index": 0, "offset": 0},
                            {"at": "arena", "offset": 64, "bytes": 128},
                        ],
                    },
                    {
                        "kernel": "tiny_conv",
                        "extent": 4,
                        "label": "conv2d",
                        "args": [
                            {"at": "arena", "offset": 64, "bytes": 128},
                            {"at": "output", "index": 0, "offset": 0},
                        ],
                    },
                ],
                "tensors": [tensor],
            }
        ],
    )


LINKED = {
    "sections": {"text": 100, "rodata": 50, "data": 0, "bss": 8},
    "flash_bytes": 150,
    "ram_bytes": 8,
    "code": {"kernels": 60, "plan": 20, "runtime": 10, "threads": 5, "platform": 0, "other": 5},
    "kernels": [{"symbol": "tiny_conv", "label": "nn.conv2d", "bytes": 60}],
}


def page(
    *,
    linked: bool = True,
    golden: bool = True,
    precision: PrecisionFile | None = None,
    byoc: LibraryChoices | None = None,
    **more: Any,
) -> str:
    size = size_file(
        (192,),
        LINKED if linked else None,
        params={"bytes": 24, "storage": "embedded"},
        budgets=[{"owner": "model tiny", "kind": "flash", "limit": 200, "used": 150}],
    )
    output = golden_tensor("y", [1, 12], "int8")
    vectors = golden_file([GoldenEntry(name="random1", inputs=[], outputs=[output])])
    result = {"name": "y", "error": 1.0, "limit": 2.0, "unit": "levels"}
    return render(
        PageContent(
            plan=plan(),
            target=target_config(load_target("aarch64")),
            size=size,
            golden=vectors if golden else None,
            tolerance={"tolerance": {"absolute": 1e-5, "relative": 1e-4, "levels": 2}} if golden else {},
            test={"runner": "qemu", "checks": [{}], "vectors": [{"name": "random1", "outputs": [result]}]}
            if golden
            else {},
            precision=precision,
            byoc=byoc,
            **more,
        )
    )


class Tags(HTMLParser):
    """Fails on an element that is closed out of order; collects attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(("linked", "golden"), [(True, True), (False, False)])
def test_page(linked: bool, golden: bool) -> None:
    text = page(linked=linked, golden=golden)
    assert text == page(linked=linked, golden=golden)
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert not any(tag in ("img", "link", "iframe") for tag, _ in tags.found)
    assert not any(key in attrs for _, attrs in tags.found for key in ("src", "onclick", "onload"))
    assert all(str(attrs["href"]).startswith("#") for _, attrs in tags.found if "href" in attrs)
    assert "url(" not in text and "http:" not in text and "https:" not in text
    assert "<script>alert(1)</script>" in tags.text and "<script>alert" not in text and "a<b>" in tags.text
    assert ("2 levels" in tags.text) is golden
    anchors = {str(attrs["id"]) for _, attrs in tags.found if "id" in attrs}
    assert all(str(a["href"])[1:] in anchors for _, a in tags.found if "href" in a)


def test_shown_values() -> None:
    tags = Tags()
    tags.feed(page())
    assert "0.5 × (q − 3)" in tags.text
    assert "strides=[2,2]" in tags.text and "groups" not in tags.text
    assert "1.500 of this bound" in tags.text
    assert "4\u202f000" in tags.text
    assert "arena+64" in tags.text
    assert "8 thousand" in tags.text


@pytest.mark.parametrize(
    ("error", "failed", "told"),
    [
        (0.00123, None, "0.00123 |0.5 "),
        (None, None, "not finite|0.5 "),
        (0.0, "no such function", "measured when it was built: no such function."),
    ],
)
def test_precision(error: float | None, failed: str | None, told: str) -> None:
    output = {"name": "y", "error": error, "limit": 0.5, "unit": "", "passed": False}
    vectors = [] if failed else [{"name": "random1", "outputs": [output]}]
    content = {"precision": "fp16", "failed": failed, "vectors": vectors, "not_finite": {}}
    tags = Tags()
    tags.feed(page(precision=PrecisionFile.model_validate(content)))
    assert tags.open == []
    assert "computed in fp16" in tags.text
    assert all(part in tags.text for part in told.split("|"))
    assert "levels. Measured on qemu" in tags.text and "passed. The model" in tags.text


def test_what_auto_has_chosen_is_shown_with_its_reason() -> None:
    own = LibraryTime(kiln=3.5, us=7.0, ratio=2.0, worth=False)
    library = LibraryTime(kiln=3.5, us=1.5, ratio=0.43, worth=True)
    section = Byoc(backends=["auto"])
    parts = [
        TimedSubgraph(
            part="dense <1>", count=2, times={"a": own, "b": library}, chosen="b",
            why="b takes 0.43 of the time",
        ),
        TimedSubgraph(part="other", count=1, times={"a": None}, chosen="kiln", why="not timed"),
    ]  # fmt: skip
    about = LibraryChoices(
        byoc=section, backends=["a", "b", "c"], measured_on="a CPU", parts=parts,
        summary="libraries compute 2 of 3 subgraphs",
    )  # fmt: skip
    tags = Tags()
    tags.feed(page(byoc=about))
    assert tags.open == []
    words = " ".join(tags.text.split())
    assert "libraries compute 2 of 3 subgraphs. Each part was timed alone, in turns, on a CPU." in words
    assert "dense <1>23.57.01.5–bb takes 0.43 of the time" in words
    assert "other1??––kilnnot timed" in words
    nothing = LibraryChoices(byoc=section, backends=[], summary="nobody is asked")
    assert "nobody is asked." in page(byoc=nothing)


def test_arena_is_drawn_to_scale() -> None:
    drawing = arena.draw(plan().buckets[0], ["conv2d", "conv2d"])
    ((x, y, width, height),) = re.findall(
        r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', drawing
    )
    grid = [float(v) for v in re.findall(r'class="grid" x1="\d+" x2="\d+" y1="([\d.]+)"', drawing)]
    row = (grid[0] - grid[1]) / 32  # ticks are 32 bytes apart: 192 / 6
    assert float(width) == pytest.approx(arena.WIDTH - 80, abs=0.1)
    assert float(height) == pytest.approx(128 * row, abs=0.1)
    assert float(y) + float(height) == pytest.approx(grid[0] - 64 * row, abs=0.1)
    assert float(x) == 70


@pytest.mark.parametrize(("top", "last"), [(1, 1), (7, 6), (30, 30), (149, 100)])
def test_ticks(top: int, last: int) -> None:
    ticks = arena.ticks(top)
    assert ticks[0] == 0 and ticks[-1] == last and len(ticks) <= 7


def test_ticks_of_bytes_are_round_in_binary() -> None:
    assert arena.ticks(149504, powers_of_two=True) == [0, 32768, 65536, 98304, 131072]
