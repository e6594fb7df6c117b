"""The command: runs the cases, prints what is not a pass, and writes what the docs say of them.

These are the table of docs/tflite.md and the list of operators with floats of docs/microcontrollers.md.
"""

from __future__ import annotations

import argparse
from collections import Counter

from .all_cases import cases
from .table import write_table
from .without_floats import compared, write_list
from .worker import results


def main() -> None:
    """Run the cases that the arguments choose."""
    parser = argparse.ArgumentParser(prog="python -m conformance.tflite_operators")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--write", action="store_true", help="write the table and the list of the docs")
    args = parser.parse_args()
    pairs = list(results([case for case in cases() if args.only in case.name], args.jobs))
    for case, result in pairs:
        if result is not None and result.outcome != "pass":
            print(f"{result.outcome:8} {case.name}: {result.detail}")
    print(dict(Counter("refused by LiteRT" if result is None else result.outcome for _, result in pairs)))
    if args.write:
        order = {case.name: number for number, case in enumerate(cases())}
        write_table(sorted(pairs, key=lambda pair: order[pair[0].name]))
        write_list(compared(cases())[1])


if __name__ == "__main__":
    main()
