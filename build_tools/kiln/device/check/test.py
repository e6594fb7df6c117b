"""Run a bundle on its target: golden vectors, repeatability, memory guards, wrong arguments."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kiln.config import Target, read_target
from kiln.device.bundle import Bundle, GoldenVector, limits_of, open_bundle
from kiln.device.check.bucket_check import check_buckets, in_order, print_bucket
from kiln.device.check.execute import BundleProgram, Check, Outcome, execute
from kiln.device.check.outside import judge, outside
from kiln.device.check.run_limits import over_budget
from kiln.device.check.runners import Runner, shown_time
from kiln.device.check.runners.remote import chosen_runner, runners_of_variants
from kiln.errors import KilnError
from kiln.files import read_json, write_json
from kiln.golden.compare import Comparison, compare, looseness, weakness
from kiln.golden.schema import OTHER_KERNELS, ReferenceRecord
from kiln.stages.use import DeviceTestStage, GoldenCheck


def run(args: DeviceTestStage) -> None:
    """Print a line for each vector and kind of check; leave with status 1 and one line when any failed."""
    target = read_target(args.target)
    with chosen_runner(target, args.device, args.bundle.name) as runner:
        check(args, target, runner)


def check(
    args: GoldenCheck, target: Target, runner: Runner, *, shared: bool = False, bundle: Bundle | None = None
) -> None:
    """Test the bundle on `runner`; with `shared`, through the shared library that the runner provides.

    `bundle`: the bundle that is in `args`, where its programs run an image.
    """
    bundle = bundle or open_bundle(args.bundle)
    tolerance = limits_of(read_json(args.tolerance)) if args.tolerance else bundle.tolerance()
    vectors = bundle.vectors()
    program = bundle.link_program(target, args.work, shared=shared)
    tested: list[dict[str, Any]] = []
    for name, own_runner in runners_of_variants(target, bundle.variants(target), runner):
        if isinstance(own_runner, str):
            print(f"{bundle.name} on {target.name}, variant {name}: not run: {own_runner}", flush=True)
            tested.append({"variant": name, "not_run": own_runner})
            continue
        linked = BundleProgram(bundle, program, own_runner)
        results = _check_variant(args, linked, target, vectors, tolerance, name)
        tested.append({"variant": name, **results})
    first = next(entry for entry in tested if "not_run" not in entry)
    other_entries = [entry for entry in tested if entry is not first]
    write_json(args.out, {**first, **({"variants": other_entries} if other_entries else {})})


def _check_variant(
    args: GoldenCheck, linked: BundleProgram, target: Target, vectors: Sequence[GoldenVector],
    tolerance: Mapping[str, Any], variant: str,
) -> dict[str, Any]:  # fmt: skip
    """Run all vectors and checks with one variant; returns its results. Ends the stage where one failed."""
    bundle, runner = linked.bundle, linked.runner
    named = f", variant {variant}" if target.variants else ""
    print(f"{bundle.name} on {target.name}{named} ({runner.description})", flush=True)
    forced = variant if target.variants else None
    outcome = _execute(linked, vectors, args.timeout, forced)
    if forced is not None and outcome.variant != forced:
        raise KilnError(f"{bundle.folder}: variant '{outcome.variant}' ran in place of '{forced}'")
    compared = [
        [compare(*pair) for pair in vector.pairs_with(outputs, tolerance)]
        for vector, outputs in zip(vectors, outcome.outputs, strict=True)
    ]
    golden, shown = bundle.golden(), ""
    for index in in_order(golden, vectors):
        if vectors[index].bucket != shown:
            shown = vectors[index].bucket
            print_bucket(golden, bundle.padding(), shown, outcome.arenas[index])
        _print_vector(vectors[index], compared[index], shown_time(outcome.nanoseconds[index], runner.unit))
    _print_notes(vectors, compared, golden.reference)
    _print_checks(outcome.checks)
    for check in outcome.left_out:
        print(f"  left out, no memory: {check.name}: {check.text}")
    faults = [
        f"vector {vector.name}, output {entry.name}: {result.detail}"
        for vector, results in zip(vectors, compared, strict=True)
        for entry, result in zip(vector.output_entries, results, strict=True)
        if not result.passed
    ] + [f"{check.name}: {check.text}" for check in outcome.checks if not check.passed]
    faults += over_budget(bundle, vectors, outcome, runner, target)
    if faults:
        args.out.unlink(missing_ok=True)
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        if args.compare is not None and any(not result.passed for results in compared for result in results):
            more += f"; the first wrong tensor: {args.compare}"
        print(f"kiln: test failed: {bundle.name} on {target.name}{named}: {faults[0]}{more}", file=sys.stderr)
        raise SystemExit(1)
    return _results(bundle, target, runner, vectors, compared, outcome)


def _execute(
    linked: BundleProgram, vectors: Sequence[GoldenVector], timeout: float, variant: str | None
) -> Outcome:
    """Run all vectors, shapes that must be refused and the program's own checks.

    Raises KilnError if the program returns too few results.
    """
    bundle = linked.bundle
    dtypes = [entry.dtype for entry in vectors[0].output_entries]
    cases = outside(bundle.golden())
    shapes = [case.shapes for case in cases]
    inputs = [vector.inputs for vector in vectors]
    outcome = execute(
        linked, inputs, dtypes, refused=shapes, timeout=timeout, variant=variant,
        runs=bundle.runs(),
    )  # fmt: skip
    if len(outcome.outputs) != len(vectors) or len(outcome.nanoseconds) != len(vectors):
        raise KilnError(f"{bundle.folder}: {len(outcome.outputs)} of {len(vectors)} vectors came back")
    if not outcome.checks:
        raise KilnError(f"{bundle.folder}: the test program checked nothing")
    outcome.checks += judge(cases, outcome.refused) + check_buckets(vectors, outcome)
    return outcome


def _print_vector(vector: GoldenVector, results: Sequence[Comparison], took: str) -> None:
    """Print a line for the output that is closest to its limit, or farthest beyond it."""
    worst = max(results, key=lambda r: (not r.passed, r.error / r.limit if r.limit else r.error))
    unit = f" {worst.unit}" if worst.unit else ""
    verdict = "ok" if worst.passed else "FAILED"
    print(
        f"  vector {vector.name}: max error {worst.error:.3g}{unit}, allowed {worst.limit:.3g}{unit}: "
        f"{verdict}  ({took})"
    )


def _print_notes(
    vectors: Sequence[GoldenVector], compared: Sequence[Sequence[Comparison]], reference: ReferenceRecord
) -> None:
    """Print the reason for limits that the reference's sensitivity sets, and the outputs that show little."""
    if any(entry.sensitivity for vector in vectors for entry in vector.output_entries):
        other_kernels = OTHER_KERNELS.get(reference.settings.get("op_resolver", ""))
        sets = f", or with its kernel set {other_kernels}" if other_kernels else ""
        step = "a level of quantisation, or the last bit of a float"
        print(f"  limits: the reference's own change when its inputs move by {step}{sets}")
    for vector, results in zip(vectors, compared, strict=True):
        for entry, want, result in zip(vector.output_entries, vector.outputs, results, strict=True):
            fault = weakness(want, entry.quantised)
            if not fault and entry.sensitivity:
                fault = looseness(want, result.limit)
            if fault:
                print(
                    f"  vector {vector.name}: output {entry.name} is {fault}, which shows little: "
                    "name better inputs in golden.inputs"
                )


def _print_checks(checks: Sequence[Check]) -> None:
    failed = [check for check in checks if not check.passed]
    for check in failed:
        print(f"  check {check.name}: FAILED: {check.text}")
    right = len(checks) - len(failed)
    print(f"  {right} of {len(checks)} checks of repeated runs, guards and wrong arguments ok")


def _results(
    bundle: Bundle,
    target: Target,
    runner: Runner,
    vectors: Sequence[GoldenVector],
    compared: Sequence[Sequence[Comparison]],
    outcome: Outcome,
) -> dict[str, Any]:
    """The content of test.json; without times, so that equal bundles give equal results."""
    return {
        "format": 1,
        "model": bundle.name,
        "target": target.name,
        "runner": runner.description,
        "device": dict(runner.identity),
        "checks": [{"name": check.name, "text": check.text} for check in outcome.checks],
        "vectors": [
            {
                "name": vector.name,
                **({"bucket": bucket, "dims": vector.dims, "arena_bytes": arena} if vector.bucket else {}),
                "outputs": [
                    {
                        "name": entry.name,
                        "error": result.error if math.isfinite(result.error) else None,
                        "limit": result.limit,
                        "unit": result.unit,
                    }
                    for entry, result in zip(vector.output_entries, results, strict=True)
                ],
            }
            for vector, results, bucket, arena in zip(
                vectors, compared, outcome.buckets, outcome.arenas, strict=True
            )
        ],
    }
