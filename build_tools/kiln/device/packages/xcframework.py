"""A Swift package of a model for Apple's systems, around an .xcframework of its static libraries.

    Package.swift, Sources/<Module>/<Module>.swift      a package that Xcode and SwiftPM add by its folder
    C<Module>.xcframework/Info.plist                    which library is for which system
    C<Module>.xcframework/<system>/lib<model>.a         the bundle's library
    C<Module>.xcframework/<system>/Headers/C<Module>/   its headers and a module map

The headers of each library are in a folder of its module's name, so that an app can have several models.
Formats: Apple, "Creating a multiplatform binary framework bundle"; clang, "Modules".
"""

from __future__ import annotations

import json
import plistlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kiln import templates
from kiln.config import Target
from kiln.device.bundle import Bundle
from kiln.device.packages.archive import zip_archive
from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.manifest import ManifestPort, read_manifest

_FILES = Path(__file__).resolve().parent / "swift_files"
# By the system's name: Apple's name of the platform, and its variant.
_PLATFORMS = {"macOS": ("macos", None), "iOS": ("ios", None), "the iOS simulator": ("ios", "simulator")}
_ARCHITECTURES = {"aarch64": "arm64", "x86_64": "x86_64"}


def make(bundles: Sequence[tuple[Bundle, Target]], out: Path) -> None:
    """Write the package, a .zip. Raises KilnError for two targets of one platform, which it cannot hold.

    A model that keeps its parameters in a file has one for each library in the folder params.
    """
    bundle = bundles[0][0]
    module = f"Kiln_{bundle.name}"
    framework, about = f"C{module}.xcframework", list[dict[str, Any]]()
    manifest = read_manifest(bundle.folder)
    facts = {
        "name": bundle.name, "upper": bundle.name.upper(), "module": module,
        "ports": {
            "input": list(map(_port, manifest["inputs"])),
            "output": list(map(_port, manifest["outputs"])),
        },
    }  # fmt: skip
    licence = " ".join(str(manifest.get("licence") or "not stated").split())
    files = {
        "Package.swift": templates.rendered(_FILES, "Package.swift.j2", facts).encode(),
        f"Sources/{module}/{module}.swift": templates.rendered(_FILES, "Model.swift.j2", facts).encode(),
        "LICENSE.txt": f"Model {bundle.name}: {licence}\n".encode(),
    }
    target_of_platform: dict[str, str] = {}
    for bundle_of_platform, target in sorted(bundles, key=lambda pair: pair[1].name):
        entry = _entry(bundle_of_platform, target)
        identifier = entry["LibraryIdentifier"]
        platform = identifier.replace(f"-{_ARCHITECTURES[target.arch]}", "")
        if platform in target_of_platform:
            raise KilnError(
                f"goal 'package': targets '{target_of_platform[platform]}' and '{target.name}' are both for "
                f"{target.system.name}, of which an .xcframework has one library: leave one out"
            )
        target_of_platform[platform] = target.name
        about.append(entry)
        folder = f"{framework}/{identifier}"
        files[f"{folder}/lib{bundle_of_platform.name}.a"] = bundle_of_platform.library.read_bytes()
        headers = f"{folder}/Headers/C{module}"
        files |= {
            f"{headers}/{path.name}": path.read_bytes() for path in bundle_of_platform.include.glob("*.h")
        }
        files[f"{headers}/C{module}.h"] = templates.rendered(_FILES, "shim.h.j2", facts).encode()
        files[f"{headers}/module.modulemap"] = templates.rendered(
            _FILES, "module.modulemap.j2", facts
        ).encode()
        if bundle_of_platform.params.is_file():
            files[f"params/{identifier}/params.bin"] = bundle_of_platform.params.read_bytes()
    files[f"{framework}/Info.plist"] = plistlib.dumps(
        {
            "AvailableLibraries": about,
            "CFBundlePackageType": "XFWK",
            "XCFrameworkFormatVersion": "1.0",
        }
    )
    atomic_write(out, zip_archive(files, f"{module}/"))


def _entry(bundle: Bundle, target: Target) -> dict[str, Any]:
    """The description of a library in Info.plist."""
    platform, variant = _PLATFORMS[target.system.name]
    architecture = _ARCHITECTURES[target.arch]
    return {
        "BinaryPath": f"lib{bundle.name}.a",
        "HeadersPath": "Headers",
        "LibraryIdentifier": f"{platform}-{architecture}" + (f"-{variant}" if variant else ""),
        "LibraryPath": f"lib{bundle.name}.a",
        "SupportedArchitectures": [architecture],
        "SupportedPlatform": platform,
        **({"SupportedPlatformVariant": variant} if variant else {}),
    }


def _port(port: ManifestPort) -> dict[str, Any]:
    sizes = [size if isinstance(size, int) else 0 for size in port["shape"]]
    # Swift's literals have \u{…} in place of JSON's \u….
    name = json.dumps(port["name"], ensure_ascii=False).replace("\\u", "\\\\u")
    return {"swift_name": name.replace("\\(", "\\\\("), "dims": sizes}
