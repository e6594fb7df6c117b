"""Operators that PyTorch's exporter to ONNX lacks, composed of others, in PyTorch.

The exporter decomposes operators that it cannot convert by PyTorch's own table. Inside `composed()`, that
table has the functions of Kiln, too, so that they also apply to operators of which others are composed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kiln.frontend.torch.composed_matrices import matrices
from kiln.frontend.torch.composed_moves import moves
from kiln.frontend.torch.composed_numbers import numbers
from kiln.frontend.torch.present import present


@contextlib.contextmanager
def composed() -> Iterator[None]:
    """Let PyTorch's exporter compose, inside the block, the operators that it lacks by Kiln's functions."""
    from torch._decomp import decomposition_table

    added = present({**numbers(), **moves(), **matrices()})
    replaced = {
        operator: decomposition_table[operator] for operator in added if operator in decomposition_table
    }
    decomposition_table.update(added)
    try:
        yield
    finally:
        for operator in added:
            del decomposition_table[operator]
        decomposition_table.update(replaced)
