"""Variants of a plan: those that call the same kernels as the variant before are left out."""

from __future__ import annotations

import pytest
from kiln.lower.schema import VariantFeatures
from kiln.plan.schema import PlannedBucket, PlannedCall, PlannedStep
from kiln.plan.variants import distinct

FEATURES = {
    "v3": ["avx2"],
    "v3_vnni": ["avx2", "avx_vnni"],
    "v4": ["avx2", "avx512f"],
    "v4_vnni": ["avx2", "avx512f", "avx512_vnni"],
}


def _bucket(**kernels: str) -> PlannedBucket:
    """A bucket of one step, which calls kernel `own`, or kernels[variant]."""
    calls = {name: PlannedCall(kernel=kernel, extent=1, args=[]) for name, kernel in kernels.items()}
    step = PlannedStep(kernel="own", label="sum", args=[], variants=calls)
    return PlannedBucket(name="all", arena_bytes=0, steps=[step])


@pytest.mark.parametrize(
    "buckets, kept",
    [
        ([{}], ["v3"]),
        ([{"v4": "wide", "v4_vnni": "wide"}], ["v3", "v4"]),
        ([{"v3_vnni": "dot", "v4": "wide", "v4_vnni": "wide_dot"}], ["v3", "v3_vnni", "v4", "v4_vnni"]),
        # v4 calls what v3 calls, but processors of v4 would take v3_vnni, whose features they may lack.
        ([{"v3_vnni": "dot", "v4_vnni": "dot"}], ["v3", "v3_vnni", "v4", "v4_vnni"]),
        ([{}, {"v4_vnni": "dot"}], ["v3", "v4_vnni"]),
    ],
)
def test_variants_without_own_kernels_are_left_out(buckets: list[dict[str, str]], kept: list[str]) -> None:
    variants = [VariantFeatures(name=name, features=features) for name, features in FEATURES.items()]
    planned, left = distinct([_bucket(**kernels) for kernels in buckets], variants)
    assert [variant.name for variant in left] == kept
    for bucket, kernels in zip(planned, buckets, strict=True):
        calls = {name: call.kernel for name, call in bucket.steps[0].variants.items()}
        assert calls == {name: kernel for name, kernel in kernels.items() if name in kept}
