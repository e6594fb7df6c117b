"""precision: stage that measures the error of a model in less than float32 on its golden vectors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kiln.config.interface import Interface, StateRecord
from kiln.config.measured_errors import OutputError, PrecisionFile, VectorErrors
from kiln.config.records import read
from kiln.config.slice_records import PrecisionConfig
from kiln.errors import KilnError
from kiln.files import read_json, write_json
from kiln.golden.compare import compare, limits_for, read_tensor
from kiln.golden.schema import GoldenEntry, read_golden
from kiln.params.states import initial_value
from kiln.stages.model import PrecisionStage


def run(args: PrecisionStage) -> None:
    """Write precision.json: by vector and output the greatest error against the reference, and the limit.

    Prints a line if values beyond the range of 16 bits were stored. Raises KilnError for compressed weights
    whose error is above its limit, or could not be measured.
    """
    config = read(PrecisionConfig, args.config)
    precision, weights = config.precision, config.weights
    tolerance = read_json(args.tolerance)["tolerance"]
    golden = read_golden(args.golden)
    states = read(Interface, args.interface).states
    names: list[str | None] = [bucket.name for bucket in golden.buckets or []] or [None]
    vectors: list[VectorErrors] = []
    failed = None
    not_finite: Counter[str] = Counter()
    for name, source in zip(names, args.sources, strict=True):
        bucket_vectors = [vector for vector in golden.vectors if vector.bucket == name]
        try:
            vectors += _errors_of_vectors(
                source, precision, args.golden, bucket_vectors, tolerance, not_finite, states
            )
        except Exception as error:  # TVM's own classes; only the figures are missing, the bundle is complete
            failed = (str(error).strip().splitlines() or [type(error).__name__])[-1]
    order = [vector.name for vector in golden.vectors]
    vectors.sort(key=lambda vector: order.index(vector.name))
    name = f"{weights.type} weights" if weights else precision
    if weights:
        _print_and_check(config.name, name, vectors, failed)
    functions = {name: count for name, count in sorted(not_finite.items()) if count}
    if functions:
        counts = ", ".join(f"{count} in {name}" for name, count in functions.items())
        print(
            f"kiln: warning: precision={precision}: values beyond its range, on the golden vectors: {counts}"
        )
    result = PrecisionFile(precision=name, vectors=vectors, failed=failed, not_finite=functions)
    write_json(args.out, result.model_dump())


def _print_and_check(model: str, kind: str, vectors: list[VectorErrors], failed: str | None) -> None:
    """Print the greatest error of each output. Raises KilnError for an error above its limit, or unmeasured.

    `kind`: the type of the model's values or weights, for messages.
    """
    if failed is not None:
        raise KilnError(f"model '{model}': {kind}: the error could not be measured: {failed}")
    worst: dict[str, tuple[OutputError, str]] = {}  # and the name of the vector
    for vector in vectors:
        for output in vector.outputs:
            worst_so_far = worst.get(output.name)
            if worst_so_far is None or _share_of_limit(output) > _share_of_limit(worst_so_far[0]):
                worst[output.name] = (output, vector.name)
    for name, (output, vector_name) in worst.items():
        error = "not finite" if output.error is None else f"{output.error:.3g}"
        text = f"output '{name}', vector {vector_name}: error {error}, allowed {output.limit:.3g}"
        print(f"{model}: {kind}: {text}")
        if not output.passed:
            raise KilnError(
                f"model '{model}': {kind}: {text}: use a larger type, a smaller 'block', or a higher 'limit' "
                "in 'weights'"
            )


def _share_of_limit(output: OutputError) -> float:
    """Error of an output as a fraction of its limit; infinite if it is not finite."""
    return math.inf if output.error is None else output.error / max(output.limit, 1e-30)


def _errors_of_vectors(
    source: Path,
    precision: str,
    folder: Path,
    vectors: Sequence[GoldenEntry],
    tolerance: Mapping[str, Any],
    not_finite: Counter[str],
    states: Sequence[StateRecord],
) -> list[VectorErrors]:
    """Entries of precision.json for `vectors` of one bucket; `source`: the folder of the bucket's module.

    `states`: values that runs leave for the next of a sequence: the last inputs and outputs of the module.
    Adds to `not_finite` the counts of the Evaluator.
    """
    from kiln.graph.bindings import operator
    from kiln.lower.cases import cases_of
    from kiln.lower.own_steps import is_own, own_of
    from kiln.lower.pipeline import fused
    from kiln.params import store
    from kiln.precision.evaluate import Evaluator

    if not vectors:
        return []
    # The general function accepts every input; special cases compute the same results.
    module, params = fused(cases_of(store.load(source))[0].module, precision)
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            if operator(binding.value) == "relax.call_dps_packed" and is_own(binding.value):
                own_step = own_of(binding.value)
                raise KilnError(
                    f"operator '{own_step.operator}' is C ({own_step.file}), which only the target runs: "
                    "give it a body in Relax or TIR"
                )
    evaluator = Evaluator(module, params)
    rows, kept = [], []
    for vector in vectors:
        if not vector.run:  # the first of a sequence
            kept = [initial_value(state) for state in states]
        inputs, expected_values = (
            [read_tensor(folder / port.file, port.dtype, port.shape) for port in side]
            for side in (vector.inputs, vector.outputs)
        )
        outputs = []
        results = evaluator.run([*inputs, *kept], vector.dims)
        results, kept = results[: len(expected_values)], results[len(expected_values) :]
        for port, result, expected in zip(vector.outputs, results, expected_values, strict=True):
            comparison = compare(result, expected, limits_for(tolerance, port.name), port.quantised)
            error = comparison.error if math.isfinite(comparison.error) else None
            limit, unit, passed = comparison.limit, comparison.unit, comparison.passed
            outputs.append(OutputError(name=port.name, error=error, limit=limit, unit=unit, passed=passed))
        rows.append(VectorErrors(name=vector.name, outputs=outputs))
    not_finite.update(evaluator.not_finite)
    return rows
