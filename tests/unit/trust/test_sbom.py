"""Bills of materials: valid by the standards' schemas, and complete."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import cyclonedx.schema
import fastjsonschema
import pytest
from kiln.manifest import read_manifest
from kiln.trust import sbom
from kiln.trust.sign import sign

from .bundles import bundle, keys

SCHEMAS = Path(cyclonedx.schema.__file__).parent / "_res"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed bundle."""
    made = tmp_path_factory.mktemp("sbom")
    sign(bundle(made / "tiny"), keys(made, "one")[0], 1)
    return made / "tiny"


def valid(content: dict[str, Any]) -> bool:
    """Whether CycloneDX's own schema of version 1.6 accepts `content`."""

    def load(uri: str) -> Any:
        return json.loads((SCHEMAS / uri.rpartition("/")[2]).read_text())

    schema = (SCHEMAS / "bom-1.6.SNAPSHOT.schema.json").read_text()
    known = {"http": load, "https": load}
    fastjsonschema.compile(json.loads(schema), handlers=known, use_formats=False)(content)
    return True


def test_cyclonedx(folder: Path) -> None:
    content = json.loads((folder / sbom.CYCLONEDX).read_text())
    assert valid(content) and content["specVersion"] == "1.6"
    parts = {part["name"]: part for part in content["components"]}
    assert set(parts) == {
        "tiny", "tiny parameters", "kiln runtime", "DLPack header", "OpenBLAS", "Monocypher",
    }  # fmt: skip
    assert parts["tiny"]["hashes"] == [{"alg": "SHA-256", "content": "cd" * 32}]
    assert parts["tiny"]["licenses"] == [{"license": {"name": "MIT (the authors)"}}]
    assert parts["OpenBLAS"]["licenses"] == [{"license": {"id": "BSD-3-Clause"}}]
    assert parts["Monocypher"]["licenses"] == [{"expression": "BSD-2-Clause OR CC0-1.0"}]
    tools = content["metadata"]["tools"]["components"]
    assert {tool["purl"] for tool in tools} == {"pkg:pypi/kiln-build@0.1.0", "pkg:pypi/ziglang@0.17.0"}
    (whole,) = (one for one in content["dependencies"] if one["ref"] == "bundle")
    assert len(whole["dependsOn"]) == len(parts)


@pytest.mark.heavy
def test_a_wrong_bill_is_refused(folder: Path) -> None:
    content = json.loads((folder / sbom.CYCLONEDX).read_text())
    with pytest.raises(fastjsonschema.JsonSchemaException):
        valid({**content, "components": [{"name": "no type"}]})


def test_spdx(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.loads((folder / sbom.SPDX).read_text())
    assert (content["spdxVersion"], content["dataLicense"]) == ("SPDX-2.3", "CC0-1.0")
    packages = {one["name"]: one for one in content["packages"]}
    assert {"tiny for board", "tiny", "OpenBLAS", "Monocypher", "kiln-build"} <= set(packages)
    assert packages["tiny"]["licenseDeclared"] == "NOASSERTION"
    assert packages["tiny"]["licenseComments"] == "MIT (the authors)"
    assert packages["Monocypher"]["licenseDeclared"] == "BSD-2-Clause OR CC0-1.0"
    names = [one["SPDXID"] for one in content["packages"]]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", name) for name in names)
    related = {one["relatedSpdxElement"] for one in content["relationships"]}
    related |= {one["spdxElementId"] for one in content["relationships"]}
    assert related == {*names, "SPDXRef-DOCUMENT"}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert sbom.spdx(folder, read_manifest(folder))["creationInfo"]["created"] == "1970-01-02T00:00:00Z"
