"""Converts an image to a model's input, as the model's `preprocess` section specifies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from kiln.config.data import Preprocess
from kiln.errors import KilnError

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
# Formats that Pillow decodes itself; for EPS it would start a PostScript interpreter.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_ROTATIONS = {
    90: Image.Transpose.ROTATE_270,
    180: Image.Transpose.ROTATE_180,
    270: Image.Transpose.ROTATE_90,
}


def load_image(path: Path, crop: Sequence[int] | None = None, rotate: int = 0) -> Image.Image:
    """Load an image file as RGB.

    `crop`: [top, left, height, width] in pixels; `rotate`: degrees clockwise, applied after the crop. Raises
    KilnError naming the file if it is not an image of a known format, or if the crop is not inside the image.
    """
    try:
        with Image.open(path, formats=_FORMATS) as opened:
            image = opened.convert("RGB")
    except Exception as error:  # Pillow's decoders raise many kinds of exceptions for damaged files
        raise KilnError(f"{path}: cannot be read as an image: {error}") from error
    if crop is not None:
        top, left, height, width = crop
        if top < 0 or left < 0 or top + height > image.height or left + width > image.width:
            size = f"{image.height}x{image.width}"
            raise KilnError(f"{path}: crop {list(crop)} is outside the image of {size} (height x width)")
        image = image.crop((left, top, left + width, top + height))
    rotated: Image.Image = image if rotate == 0 else image.transpose(_ROTATIONS[rotate])
    return rotated


def preprocess(
    image: Image.Image,
    settings: Preprocess,
    dtype: str = "float32",
    quant: tuple[float, int] | None = None,
) -> npt.NDArray[Any]:
    """Convert an image to an input tensor of shape [1, C, H, W] or [1, H, W, C].

    For an integer `dtype`, `quant` is the input's (scale, zero point): the values are divided by the
    scale, rounded to nearest, shifted by the zero point and clipped to the dtype's range.
    """
    if isinstance(settings, dict):
        settings = Preprocess.model_validate(settings)
    pixels, padding = _fit(image, settings)
    values: npt.NDArray[Any] = np.asarray(pixels, dtype=np.float32).reshape(pixels.height, pixels.width, -1)
    if settings.channels == "BGR":
        values = values[:, :, ::-1]
    values = values * np.float32(settings.scale)
    values = (values - np.asarray(settings.mean, np.float32)) / np.asarray(settings.std, np.float32)
    values = np.pad(values, (*padding, (0, 0)), constant_values=np.float32(settings.pad))
    if settings.layout == "NCHW":
        values = values.transpose(2, 0, 1)
    values = np.ascontiguousarray(values[np.newaxis])
    if np.issubdtype(np.dtype(dtype), np.integer):
        scale, zero_point = quant or (1.0, 0)
        limits = np.iinfo(dtype)
        values = np.clip(np.rint(values / np.float32(scale)) + zero_point, limits.min, limits.max)
    return values.astype(dtype)


_Padding = tuple[tuple[int, int], tuple[int, int]]


def _fit(image: Image.Image, settings: Preprocess) -> tuple[Image.Image, _Padding]:
    """The resized image, and the padding in pixels to `settings.size`: ((top, bottom), (left, right))."""
    height, width = settings.size
    image = image.convert("L" if settings.channels == "L" else "RGB")
    if settings.resize == "stretch":
        return _resize(image, height, width, settings), ((0, 0), (0, 0))
    if settings.resize == "shorter_side":
        ratio = max((settings.resize_to or 0) / min(image.size), height / image.height, width / image.width)
        rows, columns = round(image.height * ratio), round(image.width * ratio)
        image = _resize(image, max(rows, height), max(columns, width), settings)
        top, left = (image.height - height) // 2, (image.width - width) // 2
        return image.crop((left, top, left + width, top + height)), ((0, 0), (0, 0))
    if settings.resize == "fit_height":
        columns = min(width, max(1, round(image.width * height / image.height)))
        return _resize(image, height, columns, settings), ((0, 0), (0, width - columns))
    ratio = min(height / image.height, width / image.width)
    rows = min(height, max(1, round(image.height * ratio)))
    columns = min(width, max(1, round(image.width * ratio)))
    above, left = (height - rows) // 2, (width - columns) // 2
    padding = ((above, height - rows - above), (left, width - columns - left))
    return _resize(image, rows, columns, settings), padding


def _resize(image: Image.Image, height: int, width: int, settings: Preprocess) -> Image.Image:
    return image.resize((width, height), _FILTERS[settings.filter])
