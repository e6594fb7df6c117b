"""Entry point of the command `kiln`: reads the arguments, and runs SCons with Kiln's own SConstruct."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from kiln import __version__
from kiln.command_line import arguments, listing
from kiln.errors import KilnError
from kiln.paths import data_file


def main(given: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status: 0, or 2 after an error of one line."""
    try:
        command = arguments.parse(sys.argv[1:] if given is None else given)
        if command.version:
            print(f"kiln {__version__}")
        elif command.listed is not None:
            print(listing.listing(command.listed, command.json))
        elif command.completion is not None:
            print(arguments.completion(command.completion))
        elif command.quantised is not None:
            _quantise(command.quantised)
        elif command.evaluated is not None:
            _evaluate(command.evaluated)
        elif command.compared is not None:
            return _compare(command.compared)
        elif command.reduced is not None:
            _reduce(command.reduced)
        else:
            return _scons(command.words)
    except KilnError as error:
        print(f"kiln: error: {error}", file=sys.stderr)
        return 2
    return 0


def _compare(given: argparse.Namespace) -> int:
    from kiln.command_line.compare.run import as_json, compare_model, save
    from kiln.command_line.compare.show import show

    options = {} if given.byoc is None else {"byoc": given.byoc}
    inputs = None if given.inputs is None else Path(given.inputs)
    compared = compare_model(given.model, given.target, given.device, inputs, **options)
    path = save(compared)
    if given.json:
        print(json.dumps(as_json(compared), indent=1))
        wrong = [row for row in (*compared.rows, *compared.outputs) if not row.difference.passed]
        return 1 if wrong else 0
    return show(compared, path, given.all)


def _quantise(given: argparse.Namespace) -> None:
    from kiln.command_line.quantise.run import Goal, quantise
    from kiln.command_line.quantise.show import show

    name = _one_model("quantise", given)
    data = None if given.data is None else Path(given.data)
    out = None if given.out is None else Path(given.out)
    goal = Goal(given.min_snr, given.max_drop)
    show(quantise(name, data, out, given.method, given.activations, goal))


def _evaluate(given: argparse.Namespace) -> None:
    from kiln.command_line.evaluate import evaluate, show

    name = _one_model("evaluate", given)
    if given.data is None:
        raise KilnError("evaluate: data is missing: --data FOLDER, FILE.csv or FILE.npz")
    options = {} if given.byoc is None else {"byoc": given.byoc}
    outputs = None if given.outputs is None else Path(given.outputs)
    result = evaluate(name, Path(given.data), given.target, given.device, outputs, **options)
    show(name, given.target, result)


def _one_model(command: str, given: argparse.Namespace) -> str:
    names = [name for name in (given.name, given.model) if name is not None]
    if len(names) != 1:
        raise KilnError(f"{command}: one model is needed: kiln {command} net.onnx --data FILE.npz")
    return str(names[0])


def _reduce(given: argparse.Namespace) -> None:
    from kiln.command_line.compare.reduce import reduce_model

    inputs = None if given.inputs is None else Path(given.inputs)
    found = reduce_model(given.model, given.target, inputs, Path(given.out))
    with_inputs = "" if found.inputs is None else f", with the inputs {found.inputs}"
    print(f"{found.model}: {found.nodes} of {found.of_nodes} nodes{with_inputs}")
    print(f"fails with: {found.failure}")


def _scons(words: Sequence[str]) -> int:
    """Run SCons in this process: its own main function ends with SystemExit."""
    from SCons.Script import main as scons_main

    sys.argv = ["kiln", "-Q", "-f", str(data_file("SConstruct")), *words]
    scons_main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
