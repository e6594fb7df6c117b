"""The command: runs the node tests, prints failures and refusals, writes expected results and the table."""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections import Counter
from pathlib import Path

from .cases import VARIANTS, collect
from .expected import expected, read_expected, read_runs, write_expected, write_runs
from .results import HOST, REFUSED, Result, counts, reason_of
from .table import write_tables
from .worker import run_all


def main() -> None:
    """Run the node tests that the arguments choose."""
    parser = argparse.ArgumentParser(prog="python -m conformance.onnx_nodes")
    parser.add_argument(
        "--only", default="", help="tests whose name contains one of these words, separated by commas"
    )
    parser.add_argument("--variant", choices=VARIANTS, help="default: all")
    parser.add_argument(
        "--target", default=HOST, help="targets, separated by commas; those of other processors run in QEMU"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument(
        "--json",
        type=Path,
        help="a file that gets a line for each result; what it has is not run again",
    )
    parser.add_argument("--refused", action="store_true", help="only cases of refused.txt")
    parser.add_argument(
        "--write", action="store_true", help="write refused.txt, runs.json and the tables of docs/onnx.md"
    )
    args = parser.parse_args()
    known, targets = read_expected(), args.target.split(",")
    cases = [case for case in collect(args.only) if case.variant == args.variant or not args.variant]
    if args.refused:
        cases = [case for case in cases if case.name in known]
    began = time.monotonic()
    results = _read(args.json)
    for result in run_all(cases, args.jobs, targets=targets, without=set(results)):
        results[result.key] = result
        if args.json:
            with args.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(dataclasses.astuple(result)) + "\n")
        if not expected(result, known):
            print(f"{result.outcome:8} {result.key}: {result.detail}", flush=True)
    reasons = Counter(reason_of(result) for result in results.values() if result.outcome == REFUSED)
    for reason, count in reasons.most_common():
        print(f"refused {count:4} {reason}")
    for target in targets:
        for variant in VARIANTS:
            print(target, variant, counts(results.values(), target, variant))
    print(f"{len(results)} cases in {time.monotonic() - began:.0f} s")
    if args.write:
        write_expected(results.values())
        if not args.only and not args.refused:
            write_runs(results.values())
        write_tables(collect(), read_expected(), read_runs())


def _read(path: Path | None) -> dict[str, Result]:
    """The results in a file that an earlier run has written."""
    if path is None or not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    results = [Result(*json.loads(line)) for line in lines]
    return {result.key: result for result in results}


if __name__ == "__main__":
    main()
