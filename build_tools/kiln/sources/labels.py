"""Loads the names of a classifier's classes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from kiln.config.data import LabelList, Labels
from kiln.errors import KilnError
from kiln.sources.fetch import fetch

_ADAPTER: TypeAdapter[Labels] = TypeAdapter(Labels)


def load_labels(labels: Labels | Mapping[str, Any]) -> list[str]:
    """Class names in the order of the model's output. Raises KilnError if the file is not a list of names."""
    if isinstance(labels, Mapping):
        labels = _ADAPTER.validate_python(labels)
    if isinstance(labels, LabelList):
        return list(labels.names)
    path = fetch(labels.source)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise KilnError(f"{path}: class names: not a text file in UTF-8") from error
    if labels.kind == "lines":
        return [line.strip() for line in text.splitlines() if line.strip()]
    try:
        data = json.loads(text)
        if isinstance(data, dict):
            data = [data[str(index)] for index in range(len(data))]
    except (ValueError, KeyError, RecursionError) as error:
        raise KilnError(
            f"{path}: class names: a JSON list, or an object from 0 up, expected: {error}"
        ) from error
    if not isinstance(data, list) or not all(isinstance(name, str) for name in data):
        raise KilnError(f"{path}: class names: a JSON list of text expected")
    return data
