"""Bills of materials of a bundle: CycloneDX 1.6 by its library, and SPDX 2.3.

Both list the model, its parameters, the runtime, linked libraries, the verifier's library, and the tools of
the build. They have no date of their own: equal bundles have equal bills. SPDX demands one, which is
SOURCE_DATE_EPOCH or 1970.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kiln.errors import KilnError
from kiln.files import json_text, write_together
from kiln.manifest import Manifest
from kiln.sources.cache import file_sha256
from kiln.trust import FOLDER

CYCLONEDX, SPDX = f"{FOLDER}/sbom.cdx.json", f"{FOLDER}/sbom.spdx.json"
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:kiln-build:sbom")
_LICENCES = {
    "kiln": "Apache-2.0", "apache-tvm": "Apache-2.0", "apache-tvm-ffi": "Apache-2.0", "ziglang": "MIT",
}  # fmt: skip


@dataclass(frozen=True)
class Material:
    """One part of a bundle, or a tool that made it; `kind` in CycloneDX's words."""

    kind: str
    name: str
    version: str | None = None
    licence: str | None = None
    sha256: str | None = None
    purl: str | None = None
    tool: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)


def materials(bundle: Path, manifest: Manifest) -> Iterator[Material]:
    """The materials of a bundle, from its manifest and its files."""
    params = manifest["params"]
    yield Material(
        "machine-learning-model", manifest["name"], manifest["model_hash"][:12], manifest.get("licence"),
        manifest["source_sha256"],
    )  # fmt: skip
    path = bundle / "params.bin"
    digest = file_sha256(path) if path.is_file() else None
    about = {"kiln:bytes": str(params["bytes"]), "kiln:storage": params["storage"]}
    licence = manifest.get("licence")
    yield Material("data", f"{manifest['name']} parameters", None, licence, digest, properties=about)
    version = manifest["tools"]["kiln"]
    yield Material("library", "kiln runtime", version, "Apache-2.0", purl=f"pkg:pypi/kiln-build@{version}")
    yield Material("library", "DLPack header", None, "Apache-2.0")
    if (bundle / FOLDER / "device").is_dir():
        yield Material("library", "Monocypher", "4.0.3", "BSD-2-Clause OR CC0-1.0")
    for library in manifest.get("libraries", []):
        yield Material("library", library["name"], str(library["version"]), library["licence"])
    for name, version in sorted(manifest["tools"].items()):
        package = "kiln-build" if name == "kiln" else name
        purl = f"pkg:pypi/{package}@{version}"
        yield Material("application", package, version, _LICENCES.get(name), purl=purl, tool=True)


def write_sboms(bundle: Path, manifest: Manifest) -> None:
    """Write both bills of materials into the bundle."""
    lists = {CYCLONEDX: cyclonedx(bundle, manifest), SPDX: spdx(bundle, manifest)}
    write_together({bundle / name: json_text(content) for name, content in lists.items()})


def cyclonedx(bundle: Path, manifest: Manifest) -> dict[str, Any]:
    """The bill of materials in CycloneDX 1.6."""
    try:
        from cyclonedx.contrib.license.factories import LicenseFactory
        from cyclonedx.model import HashAlgorithm, HashType, Property
        from cyclonedx.model.bom import Bom, BomMetaData
        from cyclonedx.model.component import Component, ComponentType
        from cyclonedx.model.tool import ToolRepository
        from cyclonedx.output.json import JsonV1Dot6
        from packageurl import PackageURL
    except ImportError as error:
        raise KilnError(
            f"a bill of materials needs the package {(error.name or 'cyclonedx').split('.')[0]}; install it "
            f"with: {sys.executable} -m pip install cyclonedx-python-lib"
        ) from None
    licences = LicenseFactory()

    def component(material: Material) -> Any:
        hashes = [HashType(alg=HashAlgorithm.SHA_256, content=material.sha256)] if material.sha256 else []
        return Component(
            name=material.name,
            type=ComponentType(material.kind),
            version=material.version,
            bom_ref=f"{material.kind}:{material.name}",
            hashes=hashes,
            licenses=[licences.make_from_string(material.licence)] if material.licence else [],
            purl=PackageURL.from_string(material.purl) if material.purl else None,
            properties=[Property(name=name, value=value) for name, value in material.properties.items()],
        )

    listed = list(materials(bundle, manifest))
    product = Component(
        name=f"{manifest['name']} for {manifest['target']['name']}",
        type=ComponentType.FIRMWARE,
        version=manifest["model_hash"][:12],
        bom_ref="bundle",
    )
    bom = Bom(
        serial_number=uuid.uuid5(_NAMESPACE, f"{manifest['model_hash']} {manifest['target']['name']}"),
        metadata=BomMetaData(
            component=product,
            tools=ToolRepository(components=[component(material) for material in listed if material.tool]),
        ),
        components=[component(material) for material in listed if not material.tool],
    )
    bom.register_dependency(product, list(bom.components))
    content: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    content["metadata"].pop("timestamp", None)
    return content


def spdx(bundle: Path, manifest: Manifest) -> dict[str, Any]:
    """The bill of materials in SPDX 2.3."""
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "0"))))
    name = f"{manifest['name']} for {manifest['target']['name']}"
    product = {**_package("SPDXRef-bundle", Material("firmware", name, manifest["model_hash"][:12]))}
    packages, relations = [product], [_relation("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-bundle")]
    for number, material in enumerate(materials(bundle, manifest)):
        reference = f"SPDXRef-{number}-{re.sub(r'[^A-Za-z0-9.-]', '-', material.name)}"
        packages.append(_package(reference, material))
        if material.tool:
            relations.append(_relation(reference, "BUILD_TOOL_OF", "SPDXRef-bundle"))
        else:
            relations.append(_relation("SPDXRef-bundle", "CONTAINS", reference))
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"urn:kiln-build:spdx:{manifest['target']['name']}:{manifest['model_hash']}",
        "creationInfo": {"created": created, "creators": [f"Tool: kiln-{manifest['tools']['kiln']}"]},
        "packages": packages,
        "relationships": relations,
    }


# An SPDX expression of plain identifiers; other texts are kept as comments.
_EXPRESSION = re.compile(r"[A-Za-z0-9.+-]+(?: (?:OR|AND|WITH) [A-Za-z0-9.+-]+)*")


def _package(reference: str, one: Material) -> dict[str, Any]:
    plain = one.licence if one.licence and _EXPRESSION.fullmatch(one.licence) else None
    package: dict[str, Any] = {
        "SPDXID": reference,
        "name": one.name,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": plain or "NOASSERTION",
        "copyrightText": "NOASSERTION",
    }
    if one.licence and not plain:
        package["licenseComments"] = one.licence
    if one.version:
        package["versionInfo"] = one.version
    if one.sha256:
        package["checksums"] = [{"algorithm": "SHA256", "checksumValue": one.sha256}]
    if one.purl:
        reference_type = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl"}
        package["externalRefs"] = [{**reference_type, "referenceLocator": one.purl}]
    return package


def _relation(one: str, kind: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
