"""Make golden vectors: inputs of three kinds, and the outputs that the reference gives for them."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kiln.errors import KilnError
from kiln.files import atomic_dir, atomic_write, read_json, write_json
from kiln.golden.compare import RULE


def add_arguments(p: argparse.ArgumentParser) -> None:
    """--config (golden, preprocess of the model), --source file, --interface interface.json, --out folder."""
    p.add_argument("--config", type=Path, required=True, help="slice of the model's configuration, JSON")
    p.add_argument("--source", type=Path, required=True, help="model file: .onnx or .tflite")
    p.add_argument("--interface", type=Path, required=True, help="interface.json of the imported model")
    p.add_argument("--out", type=Path, required=True, help="folder for golden.json and the tensors (*.bin)")


def run(args: argparse.Namespace) -> None:
    """Write golden.json and one raw little-endian file a tensor, all of them or none."""
    vectors, about = make_vectors(read_json(args.config), args.source, read_json(args.interface))
    with atomic_dir(args.out) as folder:
        for path, content in vectors.files.items():
            atomic_write(folder / path, content)
        write_json(folder / "golden.json", {"format": 1, **about, "rule": RULE, "vectors": vectors.entries})


class Vectors:
    """The tensors of every vector as file contents, and their description for golden.json."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.entries: list[dict[str, Any]] = []

    def add(
        self, name: str, sides: Mapping[str, Sequence[tuple[Mapping[str, Any], npt.NDArray[Any]]]]
    ) -> None:
        """Add one vector: for "inputs" and "outputs" the interface's entry and the tensor of each port."""
        self.entries.append(
            {
                "name": name,
                **{
                    side: [
                        self._store(f"{name}.{side[:-1]}{index}.bin", *port)
                        for index, port in enumerate(ports)
                    ]
                    for side, ports in sides.items()
                },
            }
        )

    def _store(self, path: str, entry: Mapping[str, Any], tensor: npt.NDArray[Any]) -> dict[str, Any]:
        content = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).tobytes()
        self.files[path] = content
        return {
            "file": path,
            "name": entry["name"],
            "dtype": str(tensor.dtype),
            "shape": list(tensor.shape),
            "quantised": entry.get("quant") is not None and tensor.dtype.kind in "iu",
            "sha256": hashlib.sha256(content).hexdigest(),
        }


def make_vectors(
    config: Mapping[str, Any], source: Path, interface: Mapping[str, Any]
) -> tuple[Vectors, dict[str, Any]]:
    """Run the reference on every input set of `config`.

    Returns the vectors, and what golden.json says besides: model, reference {name, version, settings}. Raises
    KilnError when the reference's outputs are not those of `interface`, or hold no finite value.
    """
    from kiln.golden import inputs as input_sets
    from kiln.golden.reference import open_reference

    golden = config.get("golden") or {}
    specs = golden.get("inputs") or input_sets.DEFAULT_SETS
    shapes = [entry["shape"] for entry in interface["inputs"]]
    reference = open_reference(source, golden.get("reference") or "auto", shapes)
    vectors = Vectors()
    for spec, name in zip(specs, input_sets.set_names(specs), strict=True):
        given = input_sets.make_set(spec, interface["inputs"], config.get("preprocess"))
        results = reference.run(given)
        _check(source, name, results, interface["outputs"])
        vectors.add(
            name,
            {
                "inputs": list(zip(interface["inputs"], given, strict=True)),
                "outputs": list(zip(interface["outputs"], results, strict=True)),
            },
        )
    return vectors, {"model": interface["model"], "reference": reference.about}


def _check(source: Path, name: str, results: Sequence[Any], entries: Sequence[Mapping[str, Any]]) -> None:
    if len(results) != len(entries):
        raise KilnError(
            f"{source}: the reference gives {len(results)} outputs, the import has {len(entries)}"
        )
    for result, entry in zip(results, entries, strict=True):
        if str(result.dtype) != entry["dtype"] or list(result.shape) != list(entry["shape"]):
            raise KilnError(
                f"{source}: output '{entry['name']}' is {result.dtype}{list(result.shape)} in the reference, "
                f"{entry['dtype']}{list(entry['shape'])} in the import"
            )
        if result.dtype.kind == "f" and result.size and not np.isfinite(result).any():
            raise KilnError(
                f"{source}: output '{entry['name']}' of {name} has no finite value in the reference: "
                "it proves nothing; choose other golden.inputs"
            )
