"""The list of passes of the `lower` stage."""

from __future__ import annotations

from kiln.config import load_target
from kiln.lower.pipeline import Lowering, passes


def names_for(target: str) -> list[str]:
    return [name for name, _ in passes(Lowering("m", load_target(target), "none"))]


def test_cpu_and_gpu_share_the_order_of_passes() -> None:
    """Each list, without its own entries, is the list of the passes that both kinds of targets have."""
    cpu, gpu = names_for("x86_64"), names_for("cuda")
    own = {
        "integer_products",
        "requantise",
        "tables",
        "patches",
        "padding",
        "bfloat16",
        "padding_apart",
        "integer_pools",
        "concats_apart",
        "fused_takes",
        "own_dequantise",
        "multipliers",
        "pointwise",
        "resized_images",
        "prefetch",
    }
    assert set(cpu) - set(gpu) == own
    only = {
        "projections",
        "unrolled",
        "fold_unrolled",
        "integer_weights",
        "shared_elements",
        "small_groups",
        "slices_in_place",
        "precision",
    }
    assert set(gpu) - set(cpu) == only
    assert [name for name in cpu if name in gpu] == [name for name in gpu if name in cpu]
    assert "index_checks" in gpu and gpu[-1] == "kernels" and len(set(cpu)) == len(cpu)
