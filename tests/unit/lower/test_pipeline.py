"""The list of passes of the `lower` stage."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from kiln.config import load_target
from kiln.lower.pipeline import Lowering, lower, passes
from kiln.lower.schema import SizeArgument
from relaxed import const, module
from tvm import relax, tirx


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
        "separate_padding",
        "integer_pools",
        "separate_concats",
        "fused_takes",
        "own_dequantise",
        "multipliers",
        "pointwise",
        "resized_images",
        "prefetch",
        "split_parts",
        "dequantised_rows",
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


@pytest.mark.parametrize("names", list(itertools.permutations(("a", "m", "z"))))
def test_sizes_are_arguments_in_the_order_of_the_shapes(names: tuple[str, ...]) -> None:
    """Whatever order TVM passes them in, so that every build of a model has the same bytes."""
    weights = const(np.ones((3, 3, 4, 8)))

    def body(x: Any) -> Any:
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        return relax.op.nn.relu(relax.op.nn.conv2d(x, weights, padding=1, **layouts))

    # In another order than in the shape, as variables are made, too: it may be that of their addresses.
    variables = {name: tirx.Var(name, "int64") for name in sorted(names)}
    mod = module([([*(variables[name] for name in names), 4], "float32")], body)
    dims = {name: {"dim": name, "divide": 1, "min": 1, "max": 9} for name in names}
    mod.update_func(mod.get_global_var("main"), mod["main"].with_attr("kiln.dims", json.dumps(dims)))
    target = load_target("aarch64")
    lowered = lower(mod, Lowering("m", target.for_variant(target.base), "none"))
    (conv,) = (step for step in lowered.steps if step.label.startswith("conv2d"))
    assert [arg.dim for arg in conv.args if isinstance(arg, SizeArgument)] == list(names)
