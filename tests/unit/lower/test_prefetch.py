"""Prefetches for later steps: their distances, and kernels that prefetch and compute the same."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import tvm
from kiln.config import load_target
from kiln.lower.pipeline import Lowering, lower
from kiln.lower.prefetch import BYTES_A_CYCLE, LEAST, Cost, regions
from kiln.lower.steps import Steps
from relaxed import const, module
from tvm import relax, tirx

MIB = 1 << 20


def _cost(read: int, room: int, prefetches: bool = True) -> Cost:
    """Of a step that reads so many bytes and leaves memory the time for `room` bytes."""
    return Cost(read, room / BYTES_A_CYCLE, prefetches)


def test_a_step_that_computes_fetches_what_the_next_one_waits_for() -> None:
    first, second = regions([_cost(MIB, 9 * MIB), _cost(8 * MIB, 3 * MIB)], 32 * MIB)
    assert first == (MIB, 6 * MIB)
    assert second == (5 * MIB, 8 * MIB)


def test_nothing_is_fetched_where_nobody_waits_or_nobody_can() -> None:
    assert regions([_cost(MIB, 2 * MIB)] * 3, 32 * MIB) == [None] * 3
    assert regions([_cost(2 * MIB, MIB)] * 3, 32 * MIB) == [None] * 3
    assert regions([_cost(0, 9 * MIB, False), _cost(8 * MIB, 3 * MIB)], 32 * MIB) == [None, None]
    assert regions([_cost(MIB, 9 * MIB), _cost(8 * MIB, 8 * MIB - LEAST // 2)], 32 * MIB)[0] is None


def test_the_cache_bounds_the_distance_and_steps_that_cannot_fetch_shorten_it() -> None:
    steps = [_cost(MIB, 99 * MIB), _cost(MIB, 0, False), _cost(50 * MIB, 10 * MIB)]
    assert regions(steps, 8 * MIB) == [(MIB, 9 * MIB), None, (7 * MIB, 50 * MIB)]


def test_the_stream_has_neither_gaps_nor_repetitions() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        costs = [_cost(int(rng.integers(1, 20)) * MIB, int(rng.integers(1, 20)) * MIB) for _ in range(12)]
        position, reached = 0, None
        for cost, region in zip(costs, regions(costs, 16 * MIB), strict=True):
            if region is not None:
                assert 0 <= region[0] < region[1] <= cost.bytes + 16 * MIB
                if reached is not None and reached > position:
                    assert abs(position + region[0] - reached) <= LEAST
                reached = position + region[1]
            position += cost.bytes


def _weights(*shape: int) -> Any:
    return const(np.random.default_rng(2).uniform(-1, 1, shape).astype("f4"))


def _module(width: Any, stride: list[int]) -> tvm.IRModule:
    """A convolution that computes for long and one with many weights for few pixels."""

    def body(x: relax.Var) -> relax.Expr:
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        x = relax.op.nn.conv2d(x, _weights(3, 3, 32, 512), padding=1, **layouts)
        return relax.op.nn.conv2d(x, _weights(3, 3, 512, 256), strides=stride, padding=1, **layouts)

    return module([((1, 8, width, 32), "float32")], body)


def _both(mod: tvm.IRModule, l3: int = 4 * MIB) -> tuple[Steps, Steps]:
    """Lowered without and with a cache of `l3` bytes that cores share."""
    target = load_target("x86_64").for_variant("v3")
    cache = target.cache.model_copy(update={"l3": l3})
    others = target.model_copy(update={"cache": cache})
    return lower(mod, Lowering("m", target, "pthread")), lower(mod, Lowering("m", others, "pthread"))


def test_parameters_that_fit_the_cache_are_not_fetched() -> None:
    without, shared = _both(_module(28, [7, 7]), 16 * MIB)
    assert without.steps == shared.steps


def test_kernels_fetch_only_where_cores_share_a_cache() -> None:
    without, shared = _both(_module(28, [7, 7]))
    before, after = ([step.kernel for step in steps.steps] for steps in (without, shared))
    assert [old == new for old, new in zip(before, after, strict=True)].count(False) == 2
    assert {kernel.symbol for kernel in shared.kernels} == set(after) == set(shared.functions)
    pairs = zip(without.steps, shared.steps, strict=True)
    assert all(old.args == new.args and old.extent == new.extent for old, new in pairs)


def test_kernels_of_dynamic_sizes_keep_their_arguments() -> None:
    width = tirx.Var("n", "int64")
    mod = _module(width, [8, 1])
    dims = json.dumps({"n": {"dim": "n", "divide": 1, "min": 1, "max": 9}})
    mod["main"] = mod["main"].with_attrs({"num_input": 1, "kiln.dims": dims})
    without, shared = _both(mod)
    assert [step.kernel for step in without.steps] != [step.kernel for step in shared.steps]
    arguments = {kernel.symbol: kernel.args for kernel in shared.kernels}
    assert any(argument.scalar for given in arguments.values() for argument in given)
    for step in shared.steps:
        assert len(step.args) == len(arguments[step.kernel]), step.label
