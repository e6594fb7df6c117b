"""Golden vectors: inputs, the outputs that the reference computes, and their description in golden.json."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kiln.arrays import Array
from kiln.config.boxes import STATIC_BOX, Box, BoxList
from kiln.config.data import Golden, Preprocess
from kiln.config.interface import Interface, PortRecord
from kiln.config.padding import PaddingProof
from kiln.config.slice_records import GoldenConfig
from kiln.errors import KilnError
from kiln.golden import inputs as input_sets
from kiln.golden.cases import GoldenCase, golden_cases, shorten
from kiln.golden.compare import RULE
from kiln.golden.counted import counted_sizes
from kiln.golden.padding import PaddingChecks
from kiln.golden.reference import open_reference
from kiln.golden.reference_base import Reference
from kiln.golden.rounding import rounding
from kiln.golden.schema import GoldenEntry, GoldenFile, GoldenTensor, ReferenceRecord, SymbolicInput
from kiln.golden.sensitivity import Sensitivity, magnitude, shared_changes
from kiln.golden.sensitivity_tflite import TfliteSensitivity
from kiln.golden.sequence import StatefulReference, file_input_shapes, with_later_runs


class Vectors:
    """The tensors of every vector as file contents, and their description for golden.json.

    `precision`: fp16 or bf16 where the reference computes with 16 bits.
    """

    def __init__(self, precision: str | None = None) -> None:
        self._precision = precision
        self.files: dict[str, bytes] = {}
        self.entries: list[GoldenEntry] = []
        self._greatest: list[list[float]] = []  # of each entry, the greatest magnitude of each output

    def add(
        self,
        name: str,
        inputs: Sequence[tuple[PortRecord, Array]],
        outputs: Sequence[tuple[PortRecord, Array]],
        sensitivities: Sequence[float] = (),
        **fields: Any,
    ) -> None:
        """Add one vector: the tensor of each port.

        `sensitivities`: of the outputs, 0.0: the default limits are enough. `fields`: other fields of
        GoldenEntry.
        """
        stored = [self._store(f"{name}.output{index}.bin", *port) for index, port in enumerate(outputs)]
        for index, change in enumerate(sensitivities):
            if change:
                stored[index] = stored[index].model_copy(update={"sensitivity": change})
        self._greatest.append([magnitude(tensor) for _, tensor in outputs])
        self.entries.append(
            GoldenEntry(
                name=name,
                inputs=[self._store(f"{name}.input{index}.bin", *port) for index, port in enumerate(inputs)],
                outputs=stored,
                **fields,
            )
        )

    def share_sensitivities(self) -> None:
        """Give each output the sensitivity that `shared_changes` finds from all vectors.

        Of a model with state, whose errors add up, the same runs of all sequences share.
        """
        for run in {entry.run for entry in self.entries}:
            numbers = [number for number, entry in enumerate(self.entries) if entry.run == run]
            outputs = [self.entries[number].outputs for number in numbers]
            own = np.array([[tensor.sensitivity or 0.0 for tensor in tensors] for tensors in outputs])
            shared = shared_changes(own, np.array([self._greatest[number] for number in numbers]))
            for number, tensors, changes in zip(numbers, outputs, shared.tolist(), strict=True):
                stored = [
                    tensor.model_copy(update={"sensitivity": change or None})
                    for tensor, change in zip(tensors, changes, strict=True)
                ]
                self.entries[number] = self.entries[number].model_copy(update={"outputs": stored})

    def _store(self, path: str, port: PortRecord, tensor: Array) -> GoldenTensor:
        """Add the file `path` with the tensor, little-endian; returns its description for golden.json."""
        content = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).tobytes()
        self.files[path] = content
        return GoldenTensor(
            file=path,
            name=port.name,
            dtype=str(tensor.dtype),
            shape=list(tensor.shape),
            # Codes of floats one level apart are neighbours.
            quantised=(port.quant is not None or port.element is not None) and tensor.dtype.kind in "iu",
            element=port.element,
            sha256=hashlib.sha256(content).hexdigest(),
            precision=self._precision,
        )


def make_vectors(
    config: GoldenConfig,
    tolerance: Mapping[str, Any],
    source: Path,
    interface: Interface,
    buckets: BoxList | None = None,
    proofs: Mapping[str, PaddingProof] | None = None,
) -> tuple[dict[str, bytes], GoldenFile, dict[str, Any] | None]:
    """Run the reference on the input sets of `config`, at sizes of each bucket of `buckets`.

    `tolerance`: the model's, which also limits the change by padding. `proofs`: by name of the buckets that
    pad, the proof that padding changes no output.

    Returns the files of the tensors by name, the content of golden.json, and the content of padding.json
    (None if no bucket pads). Raises KilnError if the reference's outputs do not match `interface`, contain no
    finite value, or change when inputs are padded.
    """
    golden, masks, preprocess = config.golden, config.masks, config.preprocess
    boxes = buckets.buckets if buckets else [STATIC_BOX]
    # A model without buckets may still have dimensions, each of one size.
    least = {} if buckets else {dim.name: dim.min for dim in interface.dims}
    case_interface = interface if buckets else interface.at(least)
    cases = golden_cases(golden.inputs, boxes, case_interface, masks, preprocess, config.special_cases)
    first_sizes = {**least, **cases[0].sizes}
    reference = _open_with_state(golden.reference, source, interface, first_sizes)
    stateful = reference if isinstance(reference, StatefulReference) else None
    runs = _runs_of(golden, stateful)
    checks = PaddingChecks(config.inputs, tolerance, source, interface, reference, masks, proofs or {})
    vectors = Vectors(reference.precision)
    sensitivity = _sensitivity_of(source, interface, reference, first_sizes)
    for test in with_later_runs(cases, runs):
        if stateful is not None and test.run == 0:
            stateful.reset()
            sensitivity.reset()
        sizes = {**least, **test.sizes}
        ports = interface.at(sizes).inputs
        tensors = _input_tensors(test, interface, ports, preprocess, masks, boxes)
        if tensors is None:
            continue
        results = reference.run(tensors)
        returned = interface.at(sizes | counted_sizes(source, test.name, interface, sizes, results)).outputs
        # Later runs of this test case, for sensitivity and padding, must not change the sequence's state.
        next_state = stateful.left if stateful is not None else []
        changes = _sensitivities(sensitivity, reference, ports, tensors, results)
        _check_results(source, test.name, results, returned)
        checks.check(test, boxes[test.bucket], tensors, results)
        if stateful is not None:
            stateful.keep(next_state)
        fields = _vector_fields(test, boxes[test.bucket] if buckets else None, stateful is not None)
        inputs, outputs = zip(ports, tensors, strict=True), zip(returned, results, strict=True)
        vectors.add(test.name, list(inputs), list(outputs), changes, **fields)
    if sensitivity.applies:
        vectors.share_sensitivities()
    record = ReferenceRecord(**reference.about)
    golden_file = GoldenFile(
        model=interface.model, reference=record, runs=runs if stateful is not None else None, rule=RULE,
        vectors=vectors.entries,
        **(_bucket_fields(interface, buckets) if buckets else {}),
    )  # fmt: skip
    return vectors.files, golden_file, checks.report(boxes)


def _vector_fields(test: GoldenCase, bucket: Box | None, has_state: bool) -> dict[str, Any]:
    """The fields of GoldenEntry that only vectors of models with buckets (`bucket`) or with state have."""
    fields: dict[str, Any] = {} if bucket is None else {"bucket": bucket.name, "dims": test.sizes}
    return {**fields, "run": test.run} if has_state else fields


def _runs_of(golden: Golden, stateful: StatefulReference | None) -> int:
    """The runs of a test case that follow one another; 1 for a model without state (`stateful` is None)."""
    if stateful is not None:
        return golden.runs
    if golden.runs != Golden().runs:
        raise KilnError(
            f"golden.runs: {golden.runs}, but the model has no state that a run leaves to the next: remove it"
        )
    return 1


def _bucket_fields(interface: Interface, buckets: BoxList) -> dict[str, Any]:
    """The fields of GoldenFile that a model with buckets has."""
    inputs = [SymbolicInput(name=p.name, dtype=p.dtype, shape=p.shape) for p in interface.inputs]
    return {"dims": buckets.dims, "buckets": buckets.buckets, "inputs": inputs}


def _open_with_state(name: str, source: Path, interface: Interface, sizes: Mapping[str, int]) -> Reference:
    """The reference `name`, a StatefulReference for a model with state.

    `sizes`: the sizes of the dimensions in the first run.
    """
    shapes = [port.shape for port in interface.at(sizes).inputs]
    file_shapes = file_input_shapes(shapes, interface.states)
    reference = open_reference(source, name, file_shapes)
    return StatefulReference(reference, interface.states) if interface.states else reference


def _sensitivity_of(
    source: Path, interface: Interface, reference: Reference, sizes: Mapping[str, int]
) -> Sensitivity | TfliteSensitivity:
    """The measurement of the sensitivity of `reference`; `sizes`: the sizes of the first run."""
    if source.suffix.lower() != ".tflite":
        return Sensitivity(reference)

    def open_variant(kernels: str) -> Reference:
        return _open_with_state(kernels, source, interface, sizes)

    return TfliteSensitivity(reference, open_variant, interface.states)


def _sensitivities(
    sensitivity: Sensitivity | TfliteSensitivity,
    reference: Reference,
    entries: Sequence[PortRecord],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
) -> list[float]:
    """The sensitivity of each output; empty for a float model with state."""
    if sensitivity.applies:
        return sensitivity.measure([entry.name for entry in entries], inputs, outputs)
    return [] if isinstance(reference, StatefulReference) else rounding(reference, inputs, outputs)


def _input_tensors(
    test: GoldenCase,
    interface: Interface,
    entries: Sequence[PortRecord],
    preprocess: Preprocess | None,
    masks: Sequence[str],
    buckets: Sequence[Box],
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
        shorten(tensor, entry, buckets[test.bucket], test.sizes) if entry.name in masks else tensor
        for tensor, entry in zip(tensors, interface.inputs, strict=True)
    ]


def _check_results(source: Path, name: str, results: Sequence[Array], entries: Sequence[PortRecord]) -> None:
    """Raise KilnError unless the reference's outputs match `entries` and contain finite values."""
    if len(results) != len(entries):
        raise KilnError(
            f"{source}: the reference gives {len(results)} outputs, the import has {len(entries)}"
        )
    for result, entry in zip(results, entries, strict=True):
        if str(result.dtype) != entry.dtype or list(result.shape) != entry.shape:
            raise KilnError(
                f"{source}: output '{entry.name}' of {name} is {result.dtype}{list(result.shape)} in the "
                f"reference, {entry.dtype}{entry.shape} in the import; a shape that depends on a dimension "
                f"can be given in the YAML: outputs: {{{entry.name}: {{shape: […]}}}}"
            )
        if result.dtype.kind == "f" and result.size and not np.isfinite(result).any():
            raise KilnError(
                f"{source}: output '{entry.name}' of {name} has no finite value in the reference: "
                "it proves nothing; choose other golden.inputs"
            )
