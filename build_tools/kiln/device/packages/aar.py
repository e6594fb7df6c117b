"""An Android archive (AAR) of a model: libraries for one or several ABIs, a Java class, and a Prefab package.

    AndroidManifest.xml, classes.jar, proguard.txt    what Gradle takes from every AAR
    jni/<abi>/lib<model>.so, lib<model>_jni.so        the bundle's library, and the class's native methods
    prefab/                                           headers and libraries for an app's own CMake project
    assets/<package>/<abi>/params.bin                 where parameters are in a file of their own

Formats: Android Gradle Plugin, "Anatomy of an AAR file"; Prefab, "Package structure".
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kiln import packages, templates
from kiln.config import Target
from kiln.config.sizes import ceil_div
from kiln.device.bundle import Bundle
from kiln.device.packages import version
from kiln.device.packages.archive import zip_archive
from kiln.emit.compile import c_flags, compile_file
from kiln.emit.sysroot import shared_flags
from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.manifest import Manifest, ManifestPort, read_manifest
from kiln.scratch import scratch_folder
from kiln.toolchain import link as link_tool
from kiln.toolchain import oldest_cpu_command

_FILES = Path(__file__).resolve().parent / "aar_files"
_ABIS = {"aarch64": "arm64-v8a", "x86_64": "x86_64"}
_RELEASE = "8"  # of the Java platform whose classes every Android build takes
# Keywords of Java, which cannot be part of a package's name.
_RESERVED = frozenset({
    "abstract", "assert", "boolean", "break", "byte", "case", "catch", "char", "class", "const", "continue",
    "default", "do", "double", "else", "enum", "extends", "false", "final", "finally", "float", "for", "goto",
    "if", "implements", "import", "instanceof", "int", "interface", "long", "native", "new", "null",
    "package", "private", "protected", "public", "return", "short", "static", "strictfp", "super", "switch",
    "synchronized", "this", "throw", "throws", "transient", "true", "try", "void", "volatile", "while", "_",
})  # fmt: skip


def check() -> None:
    """Raise KilnError, with the command that installs it, if there is no Java compiler."""
    if shutil.which("javac") is None:
        raise KilnError(f"goal 'package': {packages.missing_program('javac')}")


def java_package(model: str) -> str:
    """The Java package of a model's classes."""
    return f"kiln.models.{model}{'_' if model in _RESERVED else ''}"


def make(bundles: Sequence[tuple[Bundle, Target]], out: Path) -> None:
    """Write the AAR of a model's bundles, one for each ABI. Raises KilnError where a tool fails."""
    check()
    bundles = sorted(bundles, key=lambda one: _ABIS[one[1].arch])
    bundle = bundles[0][0]
    manifest = read_manifest(bundle.folder)
    facts = _facts(bundle, manifest, bundles)
    files: dict[str, bytes] = {
        "AndroidManifest.xml": templates.rendered(_FILES, "AndroidManifest.xml.j2", facts).encode(),
        "R.txt": b"",
        "META-INF/com/android/build/gradle/aar-metadata.properties": (
            b"aarFormatVersion=1.0\naarMetadataVersion=1.0\nminCompileSdk=1\n"
        ),
        "proguard.txt": f"-keepclasseswithmembernames class {facts['package']}.Model "
        "{ native <methods>; }\n".encode(),
        "LICENSE.txt": f"Model {bundle.name}: {' '.join(str(facts['licence']).split())}\n".encode(),
    }
    with scratch_folder("aar") as folder:
        files["classes.jar"] = _classes(facts, Path(folder))
        for one, its in bundles:
            abi = _ABIS[its.arch]
            library = (one.folder / "lib" / f"lib{one.name}.so").read_bytes()
            files[f"jni/{abi}/lib{one.name}.so"] = library
            files[f"jni/{abi}/lib{one.name}_jni.so"] = _glue(one, its, facts, Path(folder, abi))
            files |= _prefab_library(one, its, abi, library)
            if one.params.is_file():
                files[f"assets/{facts['package']}/{abi}/params.bin"] = one.params.read_bytes()
    files |= _prefab(bundle.name)
    atomic_write(out, zip_archive(files))


def _facts(bundle: Bundle, manifest: Manifest, bundles: Sequence[tuple[Bundle, Target]]) -> dict[str, Any]:
    """Values for the templates. Raises KilnError for an element type that Java cannot address."""
    return {
        "name": bundle.name,
        "package": java_package(bundle.name),
        "api": max(int(target.libc.version or 0) for _, target in bundles),
        "has_params": bundle.params.is_file(),
        "licence": manifest.get("licence") or "not stated",
        "inputs": list(map(_port, manifest["inputs"])),
        "outputs": list(map(_port, manifest["outputs"])),
    }


def _port(port: ManifestPort) -> dict[str, Any]:
    bits = 8 if port["dtype"] == "bool" else int((re.findall(r"\d+", port["dtype"]) or ["0"])[0])
    if bits % 8 or not bits:
        raise KilnError(
            f"goal 'package': tensor '{port['name']}': a buffer of Java has no elements of {port['dtype']}"
        )
    sizes = [size if isinstance(size, int) else 0 for size in port["shape"]]
    return {
        "java_name": json.dumps(port["name"]),
        "dtype": port["dtype"],
        "element_bytes": ceil_div(bits, 8),
        "java_dims": f"new long[] {{{', '.join(map(str, sizes))}}}",
        "fixed": "true" if all(isinstance(size, int) for size in port["shape"]) else "false",
    }


def _classes(facts: Mapping[str, Any], folder: Path) -> bytes:
    """classes.jar, compiled by javac."""
    package_folder = Path(folder, "java", *facts["package"].split("."))
    package_folder.mkdir(parents=True)
    sources = []
    for name in ("Model", "Tensor"):
        sources.append(package_folder / f"{name}.java")
        sources[-1].write_bytes(templates.rendered(_FILES, f"{name}.java.j2", facts).encode())
    command = ["javac", "--release", _RELEASE, "-Xlint:-options", "-encoding", "UTF-8", "-g:source,lines"]
    done = subprocess.run(
        [*command, "-d", str(folder / "classes"), *map(str, sources)],
        capture_output=True, text=True, errors="replace", check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise KilnError(f"goal 'package': javac failed: {(lines or ['no message'])[0]}")
    compiled = folder / "classes"
    classes = {
        str(path.relative_to(compiled)): path.read_bytes() for path in sorted(compiled.rglob("*.class"))
    }
    return zip_archive({"META-INF/MANIFEST.MF": b"Manifest-Version: 1.0\n\n", **classes})


def _glue(bundle: Bundle, target: Target, facts: Mapping[str, Any], folder: Path) -> bytes:
    """The shared library of the class's native methods."""
    folder.mkdir()
    upper = bundle.name.upper()
    # The name of a native method has `_1` for a `_` (Java Native Interface Specification, chapter 2).
    words = str(facts["package"]).replace("_", "_1").replace(".", "_")
    lines = [f"#define NATIVE(name) Java_{words}_Model_##name", f'#define ABI "{_ABIS[target.arch]}"']
    for side in ("input", "output"):
        ports = facts[f"{side}s"]
        sizes = "".join(f"{upper}_{side.upper()}_{index}_BYTES, " for index in range(len(ports)))
        lines += [f"#define {side.upper()}_BYTES {{{sizes}0}}", f"#define {side.upper()}S {len(ports)}"]
    lines += [f"#define {what}_BYTES ((size_t){upper}_{what}_BYTES)" for what in ("ARENA", "STATE")]
    (folder / "facts.h").write_text("\n".join([*lines, ""]), encoding="utf-8")
    defines = [f'-DKILN_HEADER="{bundle.name}.h"', f"-DKILN_MODEL={bundle.name}"]
    includes = [f"-I{bundle.include}", f"-I{folder}"]
    compile_file(
        [*c_flags(target, oldest_cpu=True), *defines, *includes], _FILES / "glue.c", folder / "glue.o"
    )
    out, script = folder / "glue.so", folder / "exports"
    script.write_text("{ global: Java_*; local: *; };\n", encoding="utf-8")
    flags = ["-shared", f"-Wl,-soname,lib{bundle.name}_jni.so", f"-Wl,--version-script={script}",
             "-Wl,--build-id=none", "-Wl,-s"]  # fmt: skip
    inputs = [str(folder / "glue.o"), str(bundle.folder / "lib" / f"lib{bundle.name}.so")]
    words_of_link = [*oldest_cpu_command(target), *flags, *inputs, *shared_flags(target), "-o", str(out)]
    link_tool(target, words_of_link, f"linking lib{bundle.name}_jni.so")
    return out.read_bytes()


def _prefab(name: str) -> dict[str, bytes]:
    """Files of the Prefab package that are for all ABIs; its one module is the model's library."""
    about = {"schema_version": 2, "name": f"kiln_{name}", "version": version(), "dependencies": []}
    described = {"export_libraries": [], "library_name": f"lib{name}", "android": {}}
    return {"prefab/prefab.json": _json(about), f"prefab/modules/{name}/module.json": _json(described)}


def _prefab_library(bundle: Bundle, target: Target, abi: str, library: bytes) -> dict[str, bytes]:
    """Files of the Prefab package for one ABI; its sizes of memory are in the header."""
    folder = f"prefab/modules/{bundle.name}/libs/android.{abi}"
    about = {"abi": abi, "api": int(target.libc.version or 0), "ndk": 25, "stl": "none", "static": False}
    headers = {f"{folder}/include/{path.name}": path.read_bytes() for path in bundle.include.glob("*.h")}
    return {f"{folder}/abi.json": _json(about), f"{folder}/lib{bundle.name}.so": library, **headers}


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()
