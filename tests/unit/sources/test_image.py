"""Pictures become tensors: geometry, normalisation, layout, quantisation, each against arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kiln.config import Preprocess
from kiln.errors import KilnError
from kiln.sources.image import load_image, preprocess
from kiln.sources.labels import load_labels
from PIL import Image


def test_a_file_that_another_program_would_draw_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n")
    with pytest.raises(KilnError, match="cannot identify image file"):
        load_image(tmp_path / "a.png")


def picture(height: int, width: int) -> Image.Image:
    """Red counts columns, green counts rows, blue is constant."""
    rows, columns = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([columns, rows, np.full_like(rows, 200)], axis=2).astype(np.uint8))


def how(**changes: Any) -> Preprocess:
    return Preprocess.model_validate(
        {"size": [4, 6], "layout": "NHWC", "scale": 1.0, "filter": "nearest", **changes}
    )


def test_shorter_side_cuts_out_the_centre() -> None:
    got = preprocess(picture(4, 10), how())
    assert got.shape == (1, 4, 6, 3)
    assert got.dtype == np.float32
    assert got[0, 0, :, 0].tolist() == [2, 3, 4, 5, 6, 7]
    assert got[0, :, 0, 1].tolist() == [0, 1, 2, 3]


def test_resize_to_is_the_shorter_side() -> None:
    got = preprocess(picture(16, 24), how(resize_to=8, size=[8, 8]))
    assert got.shape == (1, 8, 8, 3)
    assert got[0, 0, :, 0].min() >= 4
    assert got[0, 0, :, 0].max() <= 20


def test_layout_and_channel_order() -> None:
    plain = preprocess(picture(4, 6), how())
    turned = preprocess(picture(4, 6), how(channels="BGR", layout="NCHW"))
    assert turned.shape == (1, 3, 4, 6)
    assert np.array_equal(turned[0, 2], plain[0, :, :, 0])
    assert preprocess(picture(4, 6), how(channels="L", layout="NCHW")).shape == (1, 1, 4, 6)


def test_normalisation_is_by_channel() -> None:
    got = preprocess(picture(4, 6), how(scale=0.5, mean=[1.0, 2.0, 3.0], std=[1.0, 2.0, 4.0]))
    assert got[0, 2, 3].tolist() == [0.5, -0.5, 24.25]


def test_letterbox_pads_both_sides() -> None:
    got = preprocess(picture(4, 4), how(resize="letterbox", pad=-1.0))
    assert got[0, :, [0, 5]].tolist() == [[[-1.0] * 3] * 4] * 2
    assert got[0, 0, 1:5, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("width", "filled"), [(3, 3), (6, 6), (60, 6)])
def test_fit_height_pads_right_or_squeezes(width: int, filled: int) -> None:
    got = preprocess(picture(4, width), how(resize="fit_height"))
    assert (got[0, 0, :, 2] == 200).tolist() == [True] * filled + [False] * (6 - filled)


def test_stretch() -> None:
    got = preprocess(picture(8, 6), how(resize="stretch"))
    assert got.shape == (1, 4, 6, 3)
    assert got[0, -1, -1, 0] == 5


def test_quantisation() -> None:
    got = preprocess(picture(4, 6), how(), "int8", (1.0, -128))
    assert got.dtype == np.int8
    assert got[0, 1, 2].tolist() == [-126, -127, 72]
    clipped = preprocess(picture(4, 6), how(), "int8", (0.5, 0))
    assert clipped[0, 1, 2].tolist() == [4, 2, 127]


def test_crop_and_turn(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    picture(6, 8).save(path)
    part = np.asarray(load_image(path, crop=[1, 2, 3, 4]))
    assert part.shape == (3, 4, 3)
    assert part[0, 0].tolist() == [2, 1, 200]
    turned = np.asarray(load_image(path, crop=[1, 2, 3, 4], rotate=90))
    assert np.array_equal(turned, np.rot90(part, -1))
    with pytest.raises(KilnError, match=r"crop \[4, 0, 3, 4\] is outside the image of 6x8"):
        load_image(path, crop=[4, 0, 3, 4])


def test_what_is_no_picture(tmp_path: Path) -> None:
    path = tmp_path / "x.jpg"
    path.write_text("no picture")
    with pytest.raises(KilnError, match=r"x\.jpg: cannot be read as an image"):
        load_image(path)
    with pytest.raises(KilnError, match=r"none\.jpg: cannot be read as an image"):
        load_image(tmp_path / "none.jpg")


def test_labels(tmp_path: Path) -> None:
    path = tmp_path / "names"
    given = {"kind": "json", "source": {"kind": "file", "path": str(path)}}
    for text in ('["a", "b"]', '{"0": "a", "1": "b"}'):
        path.write_text(text)
        assert load_labels(given) == ["a", "b"]
    for text in ('{"1": "b"}', "[1, 2]", "x"):
        path.write_text(text)
        with pytest.raises(KilnError, match="class names: a JSON list"):
            load_labels(given)
    path.write_text("a\n\nb\n")
    assert load_labels({**given, "kind": "lines"}) == ["a", "b"]
    assert load_labels({"kind": "list", "names": ["a", "b"]}) == ["a", "b"]
