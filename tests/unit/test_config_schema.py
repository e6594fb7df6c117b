"""The JSON Schemas accept what Kiln accepts and refuse what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from kiln.__main__ import main
from kiln.config import document
from kiln.files import read_json
from kiln.paths import data_dir


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("schema")
    assert main(["schema", "--out", str(out)]) == 0
    validator = jsonschema.Draft202012Validator
    found = {kind: read_json(out / f"{kind}.schema.json") for kind in ("target", "model")}
    for schema in found.values():
        validator.check_schema(schema)
    return {kind: validator(schema) for kind, schema in found.items()}


@pytest.mark.parametrize("path", sorted(data_dir("targets").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_targets_fit(path: Path, schemas: dict[str, Any]) -> None:
    assert [error.message for error in schemas["target"].iter_errors(document.read(path).data)] == []


@pytest.mark.parametrize("path", sorted(data_dir("models").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_models_fit(path: Path, schemas: dict[str, Any]) -> None:
    assert [error.message for error in schemas["model"].iter_errors(document.read(path).data)] == []


@pytest.mark.parametrize(
    "change",
    [{"tolerence": {}}, {"format": "onx"}, {"dims": {"n": {"min": 1}}}, {"source": {"kind": "pipy"}}],
)
def test_mistakes_do_not_fit(change: dict[str, Any], schemas: dict[str, Any]) -> None:
    good = document.read(data_dir("models") / "resnet.yaml").data
    assert not schemas["model"].is_valid({**good, **change})


def test_short_forms_fit(schemas: dict[str, Any]) -> None:
    good = document.read(data_dir("models") / "resnet.yaml").data
    dims = {"n": {"min": 1, "max": 8, "buckets": [1, {"exact": 2}, {"pad": 4}, {"range": [5, 8]}]}}
    assert schemas["model"].is_valid({**good, "dims": dims, "budget": {"flash_bytes": "32KiB"}})
