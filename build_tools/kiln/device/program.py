"""A program on a microcontroller: load it, compare it with memory, run it, or test it with golden vectors."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from kiln.device.bundle import limits_of, open_bundle
from kiln.device.check.execute import BundleProgram, execute
from kiln.device.check.runners.remote import ImageRunner
from kiln.device.deploy import listing
from kiln.device.deploy.registry import read_device
from kiln.device.deploy.transports import Loads, open_transport, printable
from kiln.device.microcontroller.image import Image, read_image
from kiln.errors import KilnError
from kiln.files import read_json, write_json
from kiln.golden.compare import compare
from kiln.stages.use import ProgramStage


def run(args: ProgramStage) -> None:
    """Execute the goal, print the result, and write it to --out as JSON."""
    image = read_image(args.program)
    with _connected(args.device) as (name, transport):
        result = _GOALS[args.goal](args, image, transport, ImageRunner(name, transport))
        about = {"device": name, "cpu": transport.core() or "unknown"}
        write_json(args.out, {"format": 1, **about, "program_sha256": image.sha256, **result})


@contextmanager
def _connected(path: Path) -> Iterator[tuple[str, Loads]]:
    device = read_device(path)
    transport = open_transport(device)
    try:
        if transport.has_shell:
            raise KilnError(
                f"{transport.description}: it has a file system: flash a bundle, with model= alone"
            )
        yield device.name, cast(Loads, transport)
    finally:
        transport.close()


def _flash(args: ProgramStage, image: Image, transport: Loads, _: ImageRunner) -> dict[str, Any]:
    """Load the blocks that differ, check the whole program, leave the core at its first instruction."""
    began = time.monotonic()
    written = transport.load(image)
    transport.reset(image)
    took = time.monotonic() - began
    entries = {
        "device": transport.core() or "a core that Kiln does not know",
        "program": f"{image.size:,} bytes, all of them checked there",
        **{f"0x{address:08x}": f"{len(content):,} bytes" for address, content in image.parts},
        "written": f"{written:,} bytes" + ("" if written else " (unchanged)"),
        "now": "stopped at its first instruction",
        "took": f"{took:.1f} s",
    }
    listing.rows(f"{args.program.name} on {transport.description}", entries)
    return {"bytes": image.size, "written_bytes": written, "seconds": round(took, 1)}


def _status(args: ProgramStage, image: Image, transport: Loads, _: ImageRunner) -> dict[str, Any]:
    """Compare the device's memory with the program."""
    differing = transport.differing(image)
    entries = {"device": transport.core() or "a core that Kiln does not know"}
    for address, content in image.parts:
        wrong = [at for at, _ in differing if address <= at < address + len(content)]
        verdict = f"differs, first in the block at 0x{wrong[0]:x}" if wrong else "the same"
        entries[f"0x{address:08x}"] = f"{len(content):,} bytes: {verdict}"
    listing.rows(f"{args.program.name} on {transport.description}", entries)
    return {"bytes": image.size, "differing_bytes": sum(size for _, size in differing)}


def _run(args: ProgramStage, image: Image, transport: Loads, runner: ImageRunner) -> dict[str, Any]:
    """Load the program and run it to its end; print its output, and store its files next to --out."""
    done = runner.run(args.program, [], send={}, fetch={}, timeout=args.timeout)
    for line in done.stdout.splitlines():
        print(printable(line, 2000))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for name, size in sorted(transport.made().items()):
        transport.fetch(name, args.out.parent / name)
        print(f"kiln: it made {name}, {size:,} bytes: {args.out.parent / name}")
    print(f"kiln: {args.program.name} ended with status {done.status} after {done.seconds:.1f} s")
    if done.status:
        message = printable((done.stderr.strip().splitlines() or ["no error message"])[-1])
        raise KilnError(
            f"{transport.description}: {args.program.name} failed with status {done.status}: {message}"
        )
    return {"status": done.status, "seconds": round(done.seconds, 1)}


def _test(args: ProgramStage, image: Image, transport: Loads, runner: ImageRunner) -> dict[str, Any]:
    """Run the program with the golden inputs as inputs.bin; compare its outputs.bin with the golden outputs.

    Raises SystemExit, after printing the reason, where an output exceeds its tolerance.
    """
    if args.bundle is None:
        raise KilnError("test with program= needs model=NAME, the model with the golden vectors")
    bundle = open_bundle(args.bundle)
    limits = limits_of(read_json(args.tolerance)) if args.tolerance else bundle.tolerance()
    vectors = bundle.vectors()
    dtypes = [entry.dtype for entry in vectors[0].output_entries]
    inputs = [vector.inputs for vector in vectors]
    outcome = execute(
        BundleProgram(bundle, args.program, runner), inputs, dtypes, timeout=args.timeout, runs=bundle.runs()
    )
    if len(outcome.outputs) != len(vectors):
        raise KilnError(f"{args.program}: {len(outcome.outputs)} of {len(vectors)} vectors came back")
    errors, faults = [], []
    for vector, outputs in zip(vectors, outcome.outputs, strict=True):
        for entry, pair in zip(vector.output_entries, vector.pairs_with(outputs, limits), strict=True):
            comparison = compare(*pair)
            verdict, unit = (
                "ok" if comparison.passed else "FAILED",
                f" {comparison.unit}" if comparison.unit else "",
            )
            print(
                f"  vector {vector.name}, output {entry.name}: max error {comparison.error:.3g}{unit}, "
                f"allowed {comparison.limit:.3g}{unit}: {verdict}"
            )
            errors.append(comparison.error)
            if not comparison.passed:
                faults.append(f"vector {vector.name}, output {entry.name}: {comparison.detail}")
    if faults:
        args.out.unlink(missing_ok=True)
        print(
            f"kiln: test failed: {args.program.name} on {transport.description}: {faults[0]}", file=sys.stderr
        )
        raise SystemExit(1)
    return {"model": bundle.name, "vectors": len(vectors), "max_error": max(errors)}


_Goal = Callable[[ProgramStage, Image, Loads, ImageRunner], dict[str, Any]]
_GOALS: dict[str, _Goal] = {"flash": _flash, "status": _status, "run": _run, "test": _test}
