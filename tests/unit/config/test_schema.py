"""The JSON Schemas accept the same files as Kiln, and refuse the same mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
from kiln.__main__ import main
from kiln.config import document
from kiln.files import read_json
from kiln.paths import data_dir

Check = Callable[[Any], Any]


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Check]:
    out = tmp_path_factory.mktemp("schema")
    assert main(["schema", "--out", str(out)]) == 0
    return {
        kind: fastjsonschema.compile(read_json(out / f"{kind}.schema.json"), use_default=False)
        for kind in ("target", "model")
    }


@pytest.mark.parametrize("path", sorted(data_dir("targets").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_targets_fit(path: Path, schemas: dict[str, Check]) -> None:
    schemas["target"](document.read(path).data)


@pytest.mark.parametrize("path", sorted(data_dir("models").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_models_fit(path: Path, schemas: dict[str, Check]) -> None:
    schemas["model"](document.read(path).data)


@pytest.mark.parametrize(
    "change",
    [{"tolerence": {}}, {"format": "onx"}, {"dims": {"n": {"min": 1}}}, {"source": {"kind": "pipy"}}],
)
def test_mistakes_do_not_fit(change: dict[str, Any], schemas: dict[str, Check]) -> None:
    good = document.read(data_dir("models") / "resnet.yaml").data
    with pytest.raises(fastjsonschema.JsonSchemaValueException):
        schemas["model"]({**good, **change})


def test_every_key_has_a_description(tmp_path: Path) -> None:
    """Of targets, models and devices, however deep: an editor shows it next to the key."""
    assert main(["schema", "--out", str(tmp_path)]) == 0
    assert main(["device-schema", "--out", str(tmp_path / "device.schema.json")]) == 0
    for path in sorted(tmp_path.iterdir()):
        assert lacking_descriptions(read_json(path), path.name) == []


def lacking_descriptions(schema: Any, place: str) -> list[str]:
    """The keys without a description in `schema`, a JSON Schema or a part of one at `place`."""
    if isinstance(schema, list):
        return [key for part in schema for key in lacking_descriptions(part, place)]
    if not isinstance(schema, dict):
        return []
    keys = schema["properties"] if isinstance(schema.get("properties"), dict) else {}
    lacking = [f"{place}.{key}" for key, value in keys.items() if not value.get("description", "").strip()]
    return lacking + [
        key for name, part in schema.items() for key in lacking_descriptions(part, f"{place}/{name}")
    ]


def test_short_forms_fit(schemas: dict[str, Check]) -> None:
    good = document.read(data_dir("models") / "resnet.yaml").data
    dims = {"n": {"min": 1, "max": 8, "buckets": [1, {"exact": 2}, {"pad": 4}, {"range": [5, 8]}]}}
    schemas["model"]({**good, "dims": dims, "budget": {"flash_bytes": "32KiB"}})
    schemas["model"]({**good, "state": {"h_in": "h_out", "c_in": {"output": "c_out", "initial": 0.5}}})


def test_devices_fit(tmp_path: Path) -> None:
    out = tmp_path / "device.schema.json"
    assert main(["device-schema", "--out", str(out)]) == 0
    check = fastjsonschema.compile(read_json(out), use_default=False)
    for path in data_dir("devices").glob("*.yaml"):
        check(document.read(path).data)
    good = {"description": "", "target": "aarch64", "transport": {"kind": "ssh", "host": "pi4"}}
    check(good)
    for change in (
        {"transport": {"kind": "telnet"}},
        {"folder": "a"},
        {"transport": {"kind": "ssh"}},
        {"x": 1},
    ):
        with pytest.raises(fastjsonschema.JsonSchemaValueException):
            check({**good, **change})
