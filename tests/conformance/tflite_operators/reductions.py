"""Cases of operators that reduce axes, segments or windows."""

from __future__ import annotations

from collections.abc import Iterator

from .files import OperatorCase, Result
from .operands import FLOAT, INT16, SCALES, TYPES, case, data, held, result


def reducing_cases() -> Iterator[OperatorCase]:
    """All cases of this file."""
    for name in ("SUM", "MEAN", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN"):
        for d in TYPES:
            for label, axes, keep in (("", [1], False), ("keep", [0, 2], True), ("all", [0, 1, 2], False)):
                if name == "REDUCE_PROD" and d == INT16 and label:  # LiteRT's product overflows
                    continue
                yield case(
                    name, d + label, [data(2, 3, 4, dtype=d, low=-2, high=2), held(axes)],
                    [result(d)], "ReducerOptions", keepDims=keep,
                    # The reference kernel of SUM gives one number for all quantised sums.
                    kernels_="BUILTIN" if name == "SUM" and d in SCALES else "BUILTIN_REF",
                )  # fmt: skip
    for name in ("REDUCE_ANY", "REDUCE_ALL"):
        for keep in (False, True):
            yield case(
                name, f"bool{keep}", [data(2, 3, dtype="bool"), held([1])], [Result("bool")],
                "ReducerOptions", keepDims=keep,
            )  # fmt: skip
    for name in (
        "SEGMENT_SUM", "UNSORTED_SEGMENT_SUM", "UNSORTED_SEGMENT_PROD", "UNSORTED_SEGMENT_MAX",
        "UNSORTED_SEGMENT_MIN",
    ):  # fmt: skip
        for d in (FLOAT, "int32"):
            ids = held([0, 0, 1, 2]) if name == "SEGMENT_SUM" else held([2, 0, -1, 2])
            more = [] if name == "SEGMENT_SUM" else [held(4)]
            yield case(name, d, [data(4, 3, dtype=d), ids, *more], [Result(d)], "")
    yield case(
        "BUCKETIZE", FLOAT, [data(2, 5)], [Result("int32")], "BucketizeOptions", boundaries=[-1.0, 0.0, 1.5]
    )
    for d in (FLOAT, "int32"):
        window = [held([2, 2], "int64"), held([1, 2], "int64"), held([1, 1], "int64")]
        for function, start in ((1, 0), (2, 1), (3, 9), (4, -9)):
            operands = [data(4, 6, dtype=d), held(start, d), *window]
            yield case(
                "REDUCE_WINDOW", f"{d}_{function}", operands, [Result(d)], "ReduceWindowOptions",
                reduceFunction=function,
            )  # fmt: skip
