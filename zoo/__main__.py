"""`./kiln zoo`: exports architectures from PyTorch, builds each, and compares it with its reference.

`./kiln zoo install` makes the environment with PyTorch in build/zoo/venv, several GB.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kiln.command_line.checked_output import checked
from kiln.errors import INTERRUPTED, KilnError

from zoo import environment, table
from zoo.record import Record, Result
from zoo.run import FORMS, run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 if all built models agree with their references, 1 if not, 2 after errors."""
    args = parse(argv)
    try:
        if args.what == "install":
            environment.install(args.python)
            return 0
        return compare(args)
    except KilnError as error:
        print(f"kiln: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; lists are separated by commas."""
    parser = argparse.ArgumentParser(prog="./kiln zoo", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("what", nargs="?", choices=("run", "list", "install"), default="run", help="default: run")
    add("--model", type=_list, default=["*"], help="names, or patterns such as 'conv*'; default: all")
    add("--form", type=_list, default=["dynamo-static", "dynamo-dynamic"], help=f"of {', '.join(FORMS)}")
    add("--target", default="host", help="default: host")
    add("--limit", type=float, default=600.0, help="seconds for one export or build; default: 600")
    add(
        "--rounds",
        type=int,
        default=15,
        help="turns of the comparison with ONNX Runtime; 0: none; default: 15",
    )
    add("--cpu", type=int, default=min(os.sched_getaffinity(0)), help="the core that times are measured on")
    add("--again", action="store_true", help="also what the results already contain")
    add("--write", action="store_true", help="write the table of docs/zoo.md")
    add("--python", type=Path, default=environment.PYTHON, help="of the environment with PyTorch")
    args = parser.parse_args(argv)
    unknown = [form for form in args.form if form not in FORMS]
    if unknown:
        parser.error(f"--form {unknown[0]}: allowed are {', '.join(FORMS)}")
    if args.limit <= 0 or args.rounds < 0:
        parser.error("--limit must be positive, --rounds not negative")
    return args


def compare(args: argparse.Namespace) -> int:
    """Build and compare the chosen models. Raises KilnError for an unknown model, and as `environment`."""
    kinds = environment.listed(args.python)
    chosen = [name for name in kinds if any(fnmatch.fnmatchcase(name, text) for text in args.model)]
    for text in args.model:
        if not fnmatch.filter(kinds, text):
            raise KilnError(f"--model {text}: the zoo has no such model; ./kiln zoo list")
    if args.what == "list":
        print("\n".join(f"{name:32} {kinds[name]}" for name in chosen))
        return 0
    record = Record.load(environment.WORK / "results.json")
    failed = 0
    for name in chosen:
        for form in args.form:
            if (record.result(name, form) is not None) and not args.again:
                continue
            result = run(name, form, args)
            record.add(name, kinds[name], form, result)
            failed += result.state not in ("ok", "refused", "not exported")
            print(shown(name, form, result), flush=True)
    if args.write:
        table.write(record)
    return 1 if failed else 0


def shown(name: str, form: str, result: Result) -> str:
    """A line about one model."""
    figures = f"lower {result.lower:.0f} s, " if result.lower is not None else ""
    speed = f", {result.speed:.2f} times ONNX Runtime" if result.speed else ""
    if result.lowest and result.lowest != result.speed:
        speed += f", {result.lowest:.2f} at one size"
    arena = f"arena {result.arena} bytes" if result.arena is not None else result.why
    return f"{name} ({form}): {result.state}: {figures}{arena}{speed}"


def _list(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


if __name__ == "__main__":
    sys.exit(checked(main))
