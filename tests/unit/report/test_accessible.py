"""The pages for readers with a keyboard, a screen reader or weak sight: names, headings, contrast."""

from __future__ import annotations

import re
from pathlib import Path

import kiln.report
import pytest

from .test_html import Tags, page
from .test_in_browser import measured

TEMPLATES = Path(kiln.report.__file__).parent / "templates"


def luminance(colour: str) -> float:
    """Relative luminance of #rgb or #rrggbb by WCAG 2.2."""
    digits = "".join(2 * digit for digit in colour[1:]) if len(colour) == 4 else colour[1:]
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_enough_contrast(dark: bool) -> None:
    """4.5 to 1, as WCAG asks of text of any size, on both backgrounds."""
    light, _, other = (TEMPLATES / "report.css").read_text().partition("@media (prefers-color-scheme: dark)")
    sheet = light + (other.partition("}")[0] if dark else "")
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]+)", sheet))
    low = []
    for text in ("ink", "soft", "ember", "good", "live"):
        for under in ("paper", "tint"):
            dim, bright = sorted(luminance(colours[name]) for name in (text, under))
            ratio = (bright + 0.05) / (dim + 0.05)
            if ratio < 4.5:
                low.append((text, under, round(ratio, 2)))
    assert low == []


def test_tables_that_scroll_are_reached_by_the_keyboard_and_named() -> None:
    tags = Tags()
    tags.feed(page(**measured()))
    scrolling = [attrs for _, attrs in tags.found if attrs.get("class") in ("wide", "arena-scroll")]
    assert len(scrolling) >= 5
    assert all(attrs.get("tabindex") == "0" and attrs.get("role") == "region" for attrs in scrolling)
    names = [attrs.get("aria-label") for attrs in scrolling]
    assert all(names) and len(set(names)) == len(names)


def test_headings_and_heads_of_columns() -> None:
    """No level of headings is left out, and no column is without a name."""
    for name in ("report.html.j2", "profile.html.j2"):
        text = (TEMPLATES / name).read_text()
        levels = [int(level) for level in re.findall(r"<h([1-6])", text)]
        assert all(after <= before + 1 for before, after in zip([0, *levels], levels, strict=False))
        assert not re.search(r"<th[^>]*></th>", text)
    assert "<h4" not in page() and '"h4"' not in (TEMPLATES / "report.js").read_text()
