"""Drawn nodes whose tensors have an axis without elements, as parts of a graph that cut their inputs."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from .case import DrawnCase, fixed_case
from .draw import Draw, Input, Maker, Node, Step

_SLICE_WITH_INPUTS = 10  # the operator set


def empty_cases(operator: str, maker: Maker, seeds: Sequence[int]) -> Iterator[DrawnCase]:
    """The cases of an operator with an axis of no elements that ONNX Runtime takes."""
    for seed in seeds:
        first = Draw(operator, seed)
        with contextlib.suppress(Exception):  # what was drawn has no result
            maker(first)
        for at in np.random.default_rng(seed).permutation(len(first.sizes))[:3]:
            try:
                node = _with_cuts(maker(Draw(operator, seed, int(at), 0)))
            except Exception:  # a size of 0 is not possible here
                continue
            if node is None or not _survives(partial(fixed_case, "", node)):
                continue
            case = fixed_case(f"{operator}/{seed} empty", node)
            if case is not None:
                yield case
                break


def _with_cuts(node: Node) -> Node | None:
    """The node after a Slice of each input without elements, which has one along that axis before it."""
    if node.steps or node.opset < _SLICE_WITH_INPUTS:
        return None
    names = ["" if item is None else f"x{number}" for number, item in enumerate(node.inputs)]
    inputs, steps = list(node.inputs), []
    for number, item in enumerate(node.inputs):
        if item is None or item.constant or item.value.size:
            continue
        axes = [axis for axis, size in enumerate(item.value.shape) if not size]
        whole = np.ones([max(size, 1) for size in item.value.shape], item.value.dtype)
        inputs[number] = Input(whole, False)
        parts = [f"x{len(inputs) + place}" for place in range(3)]
        ends = [0] * len(axes)
        inputs += [Input(np.asarray(value, "int64"), True) for value in (ends, ends, axes)]
        steps.append(Step("Slice", [names[number], *parts], [f"cut{number}"], {}))
        names[number] = f"cut{number}"
    if not steps:
        return None
    results = [f"y{number}" for number in range(node.outputs)]
    steps.append(Step(node.operator, names, results, {**node.attributes, "domain": node.domain}))
    return Node(
        node.operator, inputs, {}, node.outputs, node.opset, node.domain, node.domain_opset, steps, results
    )


def _survives(call: Callable[[], object]) -> bool:
    """Whether a process ends by itself that calls `call`: kernels of ONNX Runtime divide by sizes of 0."""
    process = os.fork()
    if not process:
        with contextlib.suppress(BaseException):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            call()
        os._exit(0)
    return os.waitpid(process, 0)[1] == 0
