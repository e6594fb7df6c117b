"""The command: runs the node tests, prints what is not a pass, and writes what is expected and the table."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path

from .cases import VARIANTS, collect
from .expected import read_expected, write_expected
from .table import write_table
from .worker import CRASH, REFUSED, WRONG, Result, counts, reason_of, run_all


def main() -> None:
    """Run the node tests that the arguments choose."""
    parser = argparse.ArgumentParser(prog="python -m conformance.onnx_nodes")
    parser.add_argument(
        "--only", default="", help="tests whose name contains one of these words, separated by commas"
    )
    parser.add_argument("--variant", choices=VARIANTS, help="default: both")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--json", type=Path, help="a file for all results")
    parser.add_argument("--refused", action="store_true", help="only cases of refused.txt")
    parser.add_argument(
        "--write", action="store_true", help="write refused.txt and the table of docs/onnx.md"
    )
    args = parser.parse_args()
    cases = [
        case
        for case in collect(args.only)
        if case.name.endswith(f"/{args.variant or ''}") or not args.variant
    ]
    if args.refused:
        known = read_expected()
        cases = [case for case in cases if case.name in known]
    began = time.monotonic()
    results: dict[str, Result] = {}
    for result in run_all(cases, args.jobs):
        results[result.name] = result
        if result.outcome in (WRONG, CRASH):
            print(f"{result.outcome:8} {result.name}: {result.detail}", flush=True)
    reasons = Counter(reason_of(result) for result in results.values() if result.outcome == REFUSED)
    for reason, count in reasons.most_common():
        print(f"refused {count:4} {reason}")
    for variant in VARIANTS:
        print(variant, counts(results, variant))
    print(f"{len(results)} cases in {time.monotonic() - began:.0f} s")
    if args.write:
        write_expected(results.values())
        write_table(collect(), read_expected())
    if args.json:
        args.json.write_text(
            json.dumps({n: [r.outcome, r.detail] for n, r in sorted(results.items())}, indent=0)
        )


if __name__ == "__main__":
    main()
