"""Run a bundle's model on input tensors, on a Runner of its target."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiln.arrays import Array
from kiln.device.bundle import Bundle
from kiln.device.check.runners import Runner
from kiln.device.deploy.transports import StillRunningError
from kiln.device.vector_files import decode, encode, encode_shapes
from kiln.errors import KilnError
from kiln.scratch import scratch_folder
from kiln.stages.use import TIMEOUT

LONGER = "allow more with the model's key 'limits.program_seconds'"


@dataclass(frozen=True)
class Check:
    """One check that the test program made: its name, whether it passed, and a text for the user."""

    name: str
    passed: bool
    text: str


@dataclass(frozen=True)
class Refused:
    """Result of a run with wrong shapes: status, error text, and the fault of that answer (empty: none)."""

    status: str
    fault: str
    text: str


@dataclass
class Outcome:
    """Results of the test program: per vector the outputs, nanoseconds of the first run, bytes of the arena.

    `variant` is the name of the variant that ran; empty for a program that does not say so. `buckets` holds
    the bucket that kiln_plan chose for each vector, `ran` the bucket or special case that ran. `checks` holds
    all checks, `left_out` those that the machine has no memory for, `refused` the result for each set of
    shapes that the model must refuse.
    """

    outputs: list[list[Array]] = field(default_factory=list)
    nanoseconds: list[int] = field(default_factory=list)
    buckets: list[str] = field(default_factory=list)
    arenas: list[int] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    variant: str = ""
    checks: list[Check] = field(default_factory=list)
    left_out: list[Check] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)


@dataclass(frozen=True)
class BundleProgram:
    """A bundle, and its linked program on a runner."""

    bundle: Bundle
    program: Path
    runner: Runner


def execute(
    linked: BundleProgram,
    vectors: Sequence[Sequence[Array]],
    dtypes: Sequence[str],
    *,
    refused: Sequence[Sequence[Sequence[int]]] | None = None,
    timeout: float = TIMEOUT,
    variant: str | None = None,
    runs: int = 1,
) -> Outcome:
    """Start the program `linked` once and run it on every vector (one tensor per input).

    `dtypes`: the element types of the outputs. `refused`: sets of shapes, one shape per input, that the model
    must refuse: with these the program makes the checks of programs/run_vectors.c, without them none.
    `variant`: the variant of the model that must run; None: the one that kiln_open chooses. `runs`: vectors
    that follow one another before the state is set back; one by one: 1.

    Raises KilnError when the program cannot be started, does not end within `timeout` seconds, or fails, with
    its reason.
    """
    bundle, program, runner = linked.bundle, linked.program, linked.runner
    arguments = [] if variant is None else ["variant", variant]
    arguments += ["runs", str(runs)] if runs > 1 else []
    arguments += ["inputs.bin", "outputs.bin", "params.bin"]
    arguments += ["check", "refused.bin"] if refused is not None else []
    try:
        with scratch_folder("vectors") as folder:
            input_file, output_file = Path(folder, "inputs"), Path(folder, "outputs")
            input_file.write_bytes(encode(vectors))
            send = {"inputs.bin": input_file, **bundle.library_files()}
            if bundle.params.is_file():
                send["params.bin"] = bundle.params
            if refused is not None:
                send["refused.bin"] = Path(folder, "refused")
                shapes = encode_shapes(refused, len(vectors[0]) if vectors else 0)
                send["refused.bin"].write_bytes(shapes)
            fetch = {"outputs.bin": output_file}
            done = runner.run(program, arguments, send=send, fetch=fetch, timeout=timeout)
            if done.status != 0 or not output_file.is_file():
                reason = (done.stderr.strip().splitlines() or ["no error message"])[-1]
                raise KilnError(
                    f"{bundle.folder}: the test program failed on {runner.description} "
                    f"with status {done.status}: {reason}"
                )
            outputs = decode(output_file.read_bytes(), dtypes)
    except StillRunningError as error:
        raise KilnError(f"{error}; {LONGER}") from error
    except OSError as error:
        file_name = error.filename or tempfile.gettempdir()
        raise KilnError(f"{file_name}: cannot run the test program: {error.strerror or error}") from error
    return _outcome(bundle, outputs, done.stdout)


def _outcome(bundle: Bundle, outputs: list[list[Array]], printed: str) -> Outcome:
    """The results: the outputs, and the lines that the program printed."""
    outcome = Outcome(outputs=outputs)
    for line in printed.splitlines():
        match line.split("\t"):
            case ["variant", name]:
                outcome.variant = name
            case ["vector", _, nanoseconds, name, arena, ran]:
                outcome.nanoseconds.append(int(nanoseconds))
                outcome.buckets.append(name)
                outcome.arenas.append(int(arena))
                outcome.ran.append(ran)
            case ["refused", _, status, fault, text]:
                outcome.refused.append(Refused(status, fault, text))
            case ["check", name, "left out", text]:
                outcome.left_out.append(Check(name, False, text))
            case ["check", name, verdict, text]:
                outcome.checks.append(Check(name, verdict == "ok", text))
            case _:
                raise KilnError(
                    f"{bundle.folder}: the test program printed a line of no known kind: {line!r}"
                )
    return outcome
