"""An npm package of a bundle for WebAssembly: the module, a loader as an ES module, and TypeScript types.

    npm install ./resnet.npm.tgz

    import { load } from "kiln-resnet";
    const model = await load();
    const { scores } = model.run({ image: new Float32Array(3 * 224 * 224) });

The module imports nothing: model, arena and tensors are in its own memory. The loader works in browsers, in
Node.js and in bundlers, which find model.wasm by `new URL("./model.wasm", import.meta.url)`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kiln import __version__
from kiln.config import Target
from kiln.device.bundle import Bundle
from kiln.device.link import link
from kiln.emit.bundle import pack
from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.manifest import Manifest, ManifestPort, read_manifest
from kiln.scratch import scratch_folder

_FILES = Path(__file__).resolve().parent / "npm_files"
# By data type: JavaScript's array of such elements; halves and brain floats as their bits.
_ARRAYS = {
    "float32": "Float32Array", "float64": "Float64Array", "float16": "Uint16Array", "bfloat16": "Uint16Array",
    "int8": "Int8Array", "int16": "Int16Array", "int32": "Int32Array", "int64": "BigInt64Array",
    "uint8": "Uint8Array", "uint16": "Uint16Array", "uint32": "Uint32Array", "uint64": "BigUint64Array",
    "bool": "Uint8Array",
}  # fmt: skip


def make(bundle: Bundle, target: Target, work: Path, out: Path) -> None:
    """Write the package, a .tgz as `npm pack` makes it. Raises KilnError where it cannot be linked."""
    manifest = read_manifest(bundle.folder)
    with scratch_folder("npm") as temporary:
        folder = Path(temporary, "package")
        folder.mkdir()
        shutil.copyfile(_module(bundle, manifest, target, work), folder / "model.wasm")
        if bundle.params.is_file():
            shutil.copyfile(bundle.params, folder / "params.bin")
        about = {
            "name": bundle.name,
            "inputs": [_port(port) for port in manifest["inputs"]],
            "outputs": [_port(port) for port in manifest["outputs"]],
            "params": bundle.params.is_file(),
        }
        loader = (_FILES / "loader.js").read_text(encoding="utf-8")
        head = f"export const about = {json.dumps(about, indent=2)};\n"
        atomic_write(folder / "index.js", loader.replace("// ABOUT\n", head, 1))
        atomic_write(folder / "index.d.ts", types(manifest))
        atomic_write(folder / "package.json", json.dumps(_package(bundle.name, manifest), indent=2) + "\n")
        atomic_write(folder / "README.md", _readme(bundle.name, manifest))
        pack(folder, out)


def _port(port: ManifestPort) -> dict[str, Any]:
    if port["dtype"] not in _ARRAYS:
        raise KilnError(
            f"goal 'package': tensor '{port['name']}': JavaScript has no array of {port['dtype']}"
        )
    entry: dict[str, Any] = {"name": port["name"], "dtype": port["dtype"], "shape": port["shape"]}
    entry["array"] = _ARRAYS[port["dtype"]]
    if port.get("quant"):
        entry["quant"] = port["quant"]
    return entry


def package_name(model: str) -> str:
    """The name of a model's package, different from all modules of Node.js and all published packages."""
    return f"kiln-{model.lower()}"


def _package(name: str, manifest: Manifest) -> dict[str, Any]:
    return {
        "name": package_name(name),
        "version": __version__ if __version__.count(".") == 2 else "0.0.0",
        "description": str(manifest.get("description") or f"{name}, compiled by Kiln"),
        **({"license": manifest["licence"]} if manifest.get("licence") else {}),
        **({"homepage": manifest["homepage"]} if manifest.get("homepage") else {}),
        "type": "module",
        "main": "./index.js",
        "types": "./index.d.ts",
        "exports": {
            ".": {"types": "./index.d.ts", "default": "./index.js"},
            "./model.wasm": "./model.wasm",
            "./package.json": "./package.json",
        },
        "sideEffects": False,
    }


def types(manifest: Manifest) -> str:
    """The text of index.d.ts: the types of the model's tensors, by name."""

    def line(port: ManifestPort, is_input: bool) -> str:
        array = _ARRAYS[port["dtype"]]
        fixed = all(isinstance(size, int) for size in port["shape"])
        allowed = f"{array} | Tensor<{array}>" if is_input and fixed else f"Tensor<{array}>"
        shape = json.dumps(port["shape"]).replace("*/", "* /")
        return f"  /** {port['dtype']} {shape} */\n  readonly {json.dumps(port['name'])}: {allowed};"

    sides = {"INPUTS": (manifest["inputs"], True), "OUTPUTS": (manifest["outputs"], False)}
    text = (_FILES / "types.d.ts").read_text(encoding="utf-8")
    for mark, (ports, is_input) in sides.items():
        text = text.replace(f"  // {mark}", "\n".join(line(port, is_input) for port in ports), 1)
    return text


def _readme(name: str, manifest: Manifest) -> str:
    arguments = ", ".join(f"{json.dumps(port['name'])}: …" for port in manifest["inputs"])
    return (
        f"# {name}\n\nA model compiled to WebAssembly by Kiln.\n\n```js\n"
        f'import {{ load }} from "{package_name(name)}";\n\nconst model = await load();\n'
        f"const outputs = model.run({{ {arguments} }});\n```\n\n"
        "Names, element types and shapes of all tensors are in `index.d.ts`, and in `about`. A tensor is "
        "`{ data, dims }`, or the array alone where the shape has no dynamic dimension. `load` takes the URL "
        "of model.wasm, its bytes or a compiled module where the default cannot be fetched.\n"
    )


def memory_header(name: str, inputs: int, outputs: int, params_file: bool) -> str:
    """The text of memory.h: memory for the arena and for `inputs` and `outputs` tensors.

    Its sizes are the macros of the model's header.

    `params_file`: whether the parameters are in a file of their own.
    """
    upper = name.upper()

    def memory(side: str, count: int) -> Sequence[str]:
        # One byte more, as a tensor may have no elements.
        arrays = [
            f"static _Alignas(64) unsigned char kiln_{side}_{i}[{upper}_{side.upper()}_{i}_BYTES + 1];"
            for i in range(count)
        ]
        return [*arrays, f"static unsigned char *const kiln_{side}_memory[] = {{",
                *(f"    kiln_{side}_{i}," for i in range(count)), "    0};"]  # fmt: skip

    lines = [
        *memory("input", inputs), *memory("output", outputs),
        f"static _Alignas({upper}_ARENA_ALIGN) unsigned char kiln_arena[{upper}_ARENA_BYTES + 1];",
        "#define ARENA_BYTES (sizeof kiln_arena - 1)",
        f"#define PARAMS_BYTES {f'{upper}_PARAMS_FILE_BYTES' if params_file else '0'}",
    ]  # fmt: skip
    return "\n".join([*lines, ""])


def _module(bundle: Bundle, manifest: Manifest, target: Target, work: Path) -> Path:
    """Link the module, which exports the functions of npm_files/module.c, with the model's library."""
    header = work / "npm" / "memory.h"
    counts = len(manifest["inputs"]), len(manifest["outputs"])
    atomic_write(header, memory_header(bundle.name, *counts, bundle.params.is_file()))
    flags = [
        "-std=c11", "-Os", "-nostdlib", "-Wl,--no-entry", "-Wl,--gc-sections", "-Wl,--strip-all",
        f'-DKILN_HEADER="{bundle.name}.h"', f"-DKILN_MODEL={bundle.name}",
    ]  # fmt: skip
    return link(
        target,
        [_FILES / "module.c"],
        flags,
        work / "module.wasm",
        include=[bundle.include, header.parent],
        libraries=[bundle.library],
    )
