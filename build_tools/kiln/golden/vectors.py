"""Golden vectors: inputs, the outputs that the reference computes, and their description in golden.json."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kiln.arrays import Array
from kiln.errors import KilnError
from kiln.golden import inputs as input_sets
from kiln.golden.cases import GoldenCase, concrete, golden_cases, shorten
from kiln.golden.counted import counted_sizes
from kiln.golden.padding import PaddingChecks
from kiln.golden.reference import Reference, open_reference
from kiln.golden.sensitivity import Sensitivity
from kiln.golden.sequence import Stepped, in_file_order, in_sequence

_STATIC = {"name": "static", "dims": {}}


class Vectors:
    """The tensors of every vector as file contents, and their description for golden.json.

    `precision`: fp16 or bf16 where the reference computes with 16 bits.
    """

    def __init__(self, precision: str | None = None) -> None:
        self._precision = {"precision": precision} if precision else {}
        self.files: dict[str, bytes] = {}
        self.entries: list[dict[str, Any]] = []

    def add(
        self,
        name: str,
        sides: Mapping[str, Sequence[tuple[Mapping[str, Any], Array]]],
        **more: Any,
    ) -> None:
        """Add one vector. `sides`: for "inputs" and "outputs", (entry of the interface, tensor) of each port.

        `more`: further keys of the vector's entry in golden.json.
        """
        self.entries.append(
            {
                "name": name,
                **more,
                **{
                    side: [
                        self._store(f"{name}.{side[:-1]}{index}.bin", *port)
                        for index, port in enumerate(ports)
                    ]
                    for side, ports in sides.items()
                },
            }
        )

    def _store(self, path: str, entry: Mapping[str, Any], tensor: Array) -> dict[str, Any]:
        """Add the file `path` with the tensor, little-endian; returns its description for golden.json."""
        content = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).tobytes()
        self.files[path] = content
        return {
            "file": path,
            "name": entry["name"],
            "dtype": str(tensor.dtype),
            "shape": list(tensor.shape),
            # Codes of floats one level apart are neighbours.
            "quantised": bool(entry.get("quant") or entry.get("element")) and tensor.dtype.kind in "iu",
            **({"element": entry["element"]} if entry.get("element") else {}),
            "sha256": hashlib.sha256(content).hexdigest(),
            **self._precision,
        }


def make_vectors(
    config: Mapping[str, Any],
    source: Path,
    interface: Mapping[str, Any],
    buckets: Mapping[str, Any] | None = None,
    padding: Mapping[str, Any] | None = None,
) -> tuple[Vectors, dict[str, Any], dict[str, Any] | None]:
    """Run the reference on the input sets of `config`, at sizes of each bucket of `buckets` (buckets.json).

    `padding`: padding.json of the stage `padding`, where buckets pad.

    Returns the vectors; the other keys of golden.json: model, reference {name, version, settings}, and with
    buckets dims, buckets and the inputs' symbolic shapes; and the content of padding.json, None if no bucket
    pads. Raises KilnError if the reference's outputs do not match `interface`, contain no finite value, or
    change when inputs are padded.
    """
    golden = config.get("golden") or {}
    specs = golden.get("inputs") or input_sets.DEFAULT_SETS
    ports = config.get("inputs") or {}
    masks = [name for name, port in ports.items() if port.get("mask")]
    preprocess = config.get("preprocess")
    listed = buckets["buckets"] if buckets else [_STATIC]
    # A model without buckets may still have dimensions, each of one size.
    least = {} if buckets else {dim["name"]: dim["min"] for dim in interface.get("dims", [])}
    known = interface if buckets else {**interface, "inputs": concrete(interface["inputs"], least)}
    chosen = golden_cases(specs, listed, known, masks, preprocess, config.get("special_cases") or [])
    reference = _opened(golden, source, interface, {**least, **chosen[0].sizes})
    stepped = reference if isinstance(reference, Stepped) else None
    runs = int(golden.get("runs") or 1) if stepped is not None else 1
    proofs = padding["buckets"] if padding else {}
    checks = PaddingChecks(config, source, interface, reference, masks, proofs)
    vectors, sensitivity = Vectors(reference.precision), Sensitivity(reference)
    for test in in_sequence(chosen, runs):
        if stepped is not None and test.run == 0:
            stepped.reset()
        sizes = {**least, **test.sizes}
        entries = {"inputs": concrete(interface["inputs"], sizes)}
        tensors = _inputs(test, interface, entries["inputs"], preprocess, masks, listed)
        if tensors is None:
            continue
        results = reference.run(tensors)
        sizes |= counted_sizes(source, test.name, interface, sizes, results)
        entries["outputs"] = concrete(interface["outputs"], sizes)
        left = stepped.left if stepped is not None else []
        moved = _sensitivities(sensitivity, entries["inputs"], tensors, results)
        _check(source, test.name, results, entries["outputs"])
        checks.check(test, listed[test.bucket], tensors, results)
        tensors_of = {"inputs": tensors, "outputs": results}
        sides = {side: list(zip(entries[side], tensors_of[side], strict=True)) for side in entries}
        where: dict[str, Any] = {"bucket": listed[test.bucket]["name"], "dims": test.sizes} if buckets else {}
        if stepped is not None:
            stepped.keep(left)
            where["run"] = test.run
        vectors.add(test.name, sides, **where)
        for entry, change in zip(vectors.entries[-1]["outputs"], moved, strict=False):
            entry["sensitivity"] = change
    about = _about(interface, reference, runs if stepped is not None else None, buckets)
    return vectors, about, checks.report(listed)


def _opened(
    golden: Mapping[str, Any], source: Path, interface: Mapping[str, Any], sizes: Mapping[str, int]
) -> Reference:
    """The reference of the key `golden`; a Stepped for a model with state. `sizes`: of the first run."""
    states = interface.get("states") or []
    shapes = [entry["shape"] for entry in concrete(interface["inputs"], sizes)]
    reference = open_reference(source, golden.get("reference") or "auto", in_file_order(shapes, states))
    return Stepped(reference, states) if states else reference


def _about(
    interface: Mapping[str, Any], reference: Reference, runs: int | None, buckets: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The keys of golden.json besides the vectors. `runs`: runs of a sequence; None without state."""
    about: dict[str, Any] = {"model": interface["model"], "reference": reference.about}
    if runs is not None:
        about["runs"] = runs
    if buckets:
        symbolic = [
            {"name": e["name"], "dtype": e["dtype"], "shape": e["shape"]} for e in interface["inputs"]
        ]
        about |= {"dims": buckets["dims"], "buckets": buckets["buckets"], "inputs": symbolic}
    return about


def _sensitivities(
    sensitivity: Sensitivity,
    entries: Sequence[Mapping[str, Any]],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
) -> list[float]:
    """The sensitivity of each output of a quantised model; empty for other models."""
    if not sensitivity.applies:
        return []
    return sensitivity.measure([entry["name"] for entry in entries], inputs, outputs)


def _inputs(
    test: GoldenCase,
    interface: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
    preprocess: Mapping[str, Any] | None,
    masks: Sequence[str],
    buckets: Sequence[Mapping[str, Any]],
) -> list[Array] | None:
    """The input tensors of the test case, with masks shortened or special contents where the case requires.

    None if the special content has other sizes than the test case.
    """
    tensors = input_sets.make_set(test.spec, entries, preprocess, masks)
    if test.case is not None:
        return input_sets.with_content(test.case, entries, tensors)
    if not test.shortened:
        return tensors
    return [
        shorten(tensor, entry, buckets[test.bucket], test.sizes) if entry["name"] in masks else tensor
        for tensor, entry in zip(tensors, interface["inputs"], strict=True)
    ]


def _check(source: Path, name: str, results: Sequence[Array], entries: Sequence[Mapping[str, Any]]) -> None:
    """Raise KilnError unless the reference's outputs match `entries` and contain finite values."""
    if len(results) != len(entries):
        raise KilnError(
            f"{source}: the reference gives {len(results)} outputs, the import has {len(entries)}"
        )
    for result, entry in zip(results, entries, strict=True):
        if str(result.dtype) != entry["dtype"] or list(result.shape) != list(entry["shape"]):
            raise KilnError(
                f"{source}: output '{entry['name']}' of {name} is {result.dtype}{list(result.shape)} in the "
                f"reference, {entry['dtype']}{list(entry['shape'])} in the import"
            )
        if result.dtype.kind == "f" and result.size and not np.isfinite(result).any():
            raise KilnError(
                f"{source}: output '{entry['name']}' of {name} has no finite value in the reference: "
                "it proves nothing; choose other golden.inputs"
            )
