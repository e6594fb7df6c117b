"""Entry point of the command `kiln`: reads the arguments, and runs SCons with Kiln's own SConstruct."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kiln import __version__, unforeseen
from kiln.command_line import listing
from kiln.command_line.arguments import Command, completion, model_of, parse
from kiln.errors import INTERRUPTED, KilnError
from kiln.paths import data_file


def main(given: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status.

    0: done. 1: `compare` found a tensor beyond its limit. 2: an error, of which one line was printed.
    """
    words = list(sys.argv[1:] if given is None else given)
    command = Command()
    try:
        command = parse(words)
        if command.question is None:
            return _scons(command.words)
        status = _QUESTIONS[command.question.command](command.question)
        sys.stdout.flush()  # a closed pipe is noticed here, not at the end of the process
        return status
    except BrokenPipeError:  # the reader of the output has ended: `kiln list models | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except KilnError as error:
        print(f"kiln: error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"kiln: error: {place}{error.strerror or error}", file=sys.stderr)
    except Exception as error:
        name = "kiln" if command.question is None else f"kiln {command.question.command}"
        unforeseen.tell(name, command.question, error)
    return 2


def _version(_: Namespace) -> int:
    print(f"kiln {__version__}")
    return 0


def _list(given: Namespace) -> int:
    print(listing.listing(given.kind, given.json))
    return 0


def _completion(given: Namespace) -> int:
    print(completion(given.shell))
    return 0


def _compare(given: Namespace) -> int:
    from kiln.command_line.compare.run import as_json, compare_model, save
    from kiln.command_line.compare.show import show
    from kiln.command_line.running import destination_of

    destination = destination_of(given.target, given.device)
    compared = compare_model(model_of(given), destination, _path(given.inputs), **_options(given))
    path = save(compared)
    if given.json:
        print(json.dumps(as_json(compared), indent=1))
        wrong = [row for row in (*compared.rows, *compared.outputs) if not row.difference.passed]
        return 1 if wrong else 0
    return show(compared, path, given.all)


def _quantise(given: Namespace) -> int:
    from kiln.command_line.quantise.run import Goal, quantise
    from kiln.command_line.quantise.show import show

    goal = Goal(given.min_snr, given.max_drop)
    data, out = _path(given.data), _path(given.out)
    show(quantise(model_of(given), data, out, given.method, given.activations, goal))
    return 0


def _evaluate(given: Namespace) -> int:
    from kiln.command_line.evaluate import evaluate, show
    from kiln.command_line.running import destination_of

    name = model_of(given)
    if given.data is None:
        raise KilnError("evaluate: data is missing: --data FOLDER, FILE.csv or FILE.npz")
    destination = destination_of(given.target, given.device)
    result = evaluate(name, Path(given.data), destination, _path(given.outputs), **_options(given))
    show(name, destination.target.name, result)
    return 0


def _reduce(given: Namespace) -> int:
    from kiln.command_line.compare.reduce import reduce_model

    found = reduce_model(model_of(given), given.target, _path(given.inputs), Path(given.out))
    with_inputs = "" if found.inputs is None else f", with the inputs {found.inputs}"
    print(f"{found.model}: {found.nodes} of {found.of_nodes} nodes{with_inputs}")
    print(f"fails with: {found.failure}")
    return 0


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _options(given: Namespace) -> dict[str, str]:
    """Options of the build among those of a question."""
    return {} if given.byoc is None else {"byoc": given.byoc}


_QUESTIONS: Mapping[str, Callable[[Namespace], int]] = {
    "version": _version,
    "list": _list,
    "completion": _completion,
    "quantise": _quantise,
    "evaluate": _evaluate,
    "compare": _compare,
    "reduce": _reduce,
}


def _scons(words: Sequence[str]) -> int:
    """Run SCons in this process: its own main function ends with SystemExit."""
    from SCons.Script import main as scons_main

    sys.argv = ["kiln", "-Q", "-f", str(data_file("SConstruct")), *words]
    scons_main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
