"""Costs of each bucket of a model: arena, steps, and the code and parameters it uses, shared or its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kiln.emit.size_schema import BucketFigures, CodeOfBucket, CodeOfVariant
from kiln.plan.schema import MemoryArgument, Plan, PlannedBucket
from kiln.plan.variants import called_by, symbols_of


def plan_rows(plan: Plan) -> list[BucketFigures]:
    """Figures from plan.json for each bucket; the parameters that several buckets read count in each."""
    return [
        BucketFigures(
            name=bucket.name,
            strategy=bucket.strategy,
            dims=bucket.dims,
            arena_bytes=bucket.all_arena_bytes,
            lower_bound_bytes=bucket.lower_bound_bytes,
            patches=bucket.patches,
            case_of=plan.buckets[bucket.when.bucket].name if bucket.when is not None else None,
            steps=len(bucket.steps),
            params_bytes=_params_bytes(bucket),
        )
        for bucket in plan.buckets
    ]


def code_rows(plan: Plan, kernels: Mapping[str, int]) -> list[CodeOfBucket]:
    """The bytes of the kernels that each bucket calls, and of the kernels that no other bucket calls.

    `kernels`: linked bytes by symbol. The program contains each kernel once, so the sum over buckets may
    exceed the size of the code.
    """
    called = [symbols_of([bucket]) for bucket in plan.buckets]
    users = Counter(symbol for symbols in called for symbol in symbols)
    return [
        CodeOfBucket(
            name=bucket.name,
            code_bytes=sum(kernels.get(symbol, 0) for symbol in symbols),
            own_code_bytes=sum(kernels.get(symbol, 0) for symbol in symbols if users[symbol] == 1),
        )
        for bucket, symbols in zip(plan.buckets, called, strict=True)
    ]


def variant_rows(plan: Plan, kernels: Mapping[str, int]) -> list[CodeOfVariant]:
    """The bytes of the kernels that each variant calls, and of the kernels that no other variant calls.

    `kernels`: linked bytes by symbol.
    """
    variants = [] if plan.cpu is None else plan.cpu.variants
    called = [called_by(plan, variant.name) for variant in variants]
    users = Counter(symbol for symbols in called for symbol in symbols)
    return [
        CodeOfVariant(
            name=variant.name,
            features=variant.features,
            code_bytes=sum(kernels.get(symbol, 0) for symbol in symbols),
            own_code_bytes=sum(kernels.get(symbol, 0) for symbol in symbols if users[symbol] == 1),
        )
        for variant, symbols in zip(variants, called, strict=True)
    ]


def has_buckets(rows: Sequence[BucketFigures]) -> bool:
    """Whether the model has more than one bucket, or one bucket with a range of sizes."""
    return len(rows) > 1 or any(size.min != size.max for row in rows for size in row.dims.values())


def _params_bytes(bucket: PlannedBucket) -> int:
    read = {
        (arg.offset, arg.bytes)
        for step in bucket.steps
        for arg in step.args
        if isinstance(arg, MemoryArgument) and arg.at == "params"
    }
    return sum(size for _, size in read)
