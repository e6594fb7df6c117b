"""Counts the iterations of a loop whose condition depends on constants alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kiln.arrays import Array
from kiln.errors import KilnError
from kiln.frontend.tflite.files import indices
from kiln.frontend.tflite.graph_parts import inputs_of, runner_of_graph

MOST_ITERATIONS = 1024


def iterations(
    schema: Any, model: Any, op: Any, first: Sequence[Array | None], fail: Callable[[str], KilnError]
) -> int | None:
    """Number of iterations of the WHILE `op`, counted by LiteRT; None: many, or it depends on the inputs.

    `first`: the values that it begins with, None where they are not known. `fail`: returns the error with a
    text, raised where LiteRT cannot run one of the loop's graphs.
    """
    condition, body = int(op.builtinOptions.condSubgraphIndex), int(op.builtinOptions.bodySubgraphIndex)
    graphs = model.subgraphs
    needed = inputs_of(graphs[condition], set(range(len(indices(graphs[condition].outputs)))))
    while (more := needed | inputs_of(graphs[body], needed)) != needed:
        needed = more
    values: dict[int, Array] = {}
    for position in needed:
        value = first[position]
        if value is None:
            return None
        values[position] = value
    continues, step = (
        runner_of_graph(schema, model, number, positions, fail)
        for number, positions in ((condition, {0}), (body, needed))
    )
    for count in range(MOST_ITERATIONS + 1):
        if not bool(np.reshape(continues(values)[0], -1)[0]):
            return count
        values = step(values)
    return None
