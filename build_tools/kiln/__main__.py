"""`python -m kiln <stage>`: runs one stage of a build as a separate program."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from kiln import limits, unforeseen
from kiln.errors import KilnError, not_imported
from kiln.parent import end_with
from kiln.stages import STAGES


def main(argv: Sequence[str] | None = None) -> int:
    """Run one stage. Returns the exit status: 0, or 2 after printing a one-line error to stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m kiln <stage> …\nstages: " + ", ".join(STAGES))
        return 0 if arguments else 2
    name = arguments[0]
    if name not in STAGES:
        print(f"kiln: error: unknown stage '{name}', allowed: {', '.join(STAGES)}", file=sys.stderr)
        return 2
    if "KILN_PARENT" in os.environ:
        end_with(int(os.environ["KILN_PARENT"]))
    limits.apply()
    try:
        module = importlib.import_module(STAGES[name].spec.module)
    except ImportError as error:
        print(f"kiln: error: {name}: {not_imported(error)}", file=sys.stderr)
        return 2
    options = STAGES[name].parse(arguments[1:], module.__doc__)
    try:
        module.run(options)
    except KilnError as error:
        print(f"kiln: error: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        unforeseen.print_error_line(name, options, error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
