"""Graphs of several nodes: each step reads tensors of the steps before it, and some of them are results.

A chain is drawn like a node: its structure is a function of the seed, its data of the size of one axis too.
"""

from __future__ import annotations

from . import chain_kernels, chain_links
from .chain_links import Chain
from .draw import Draw, Maker, Node

_OPSETS = (18, 21)
LINKS = [
    link
    for file in (chain_links, chain_kernels)
    for link, weight in file.LINKS.items()
    for _ in range(weight)
]


def chain(d: Draw) -> Node:
    """A graph of 3 to 9 links. A step reads the newest tensor more often than an older one."""
    d.opset = d.number(*_OPSETS)
    c = Chain(d)
    rank = d.pick((1, 2, 3, 4, 4, 4, 5))
    c.data(tuple(d.size(1, 6) if axis < 2 else d.size(2, 6) for axis in range(rank)))
    for _ in range(d.number(3, 9)):
        names = list(c.shapes)
        x = names[-1] if d.chance(0.75) else d.pick(names)
        c.extend(d.pick(LINKS), x)
    computed = [name for name in c.shapes if not name.startswith("x")]
    if not computed:
        raise ValueError("no step was drawn")
    results = [name for name in computed[:-1] if d.chance(0.15)] + computed[-1:]
    return Node("Chain", list(c.inputs), {}, len(results), d.opset, steps=c.steps, results=results)


MAKERS: dict[str, Maker] = {"Chain": chain}
