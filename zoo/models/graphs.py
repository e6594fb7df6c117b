"""Networks on graphs, with scatters."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zoo.catalogue import Made, entry

GRAPH = {"x": {0: "nodes"}, "edges": {1: "links"}}
SIZES = {"nodes": (4, 64), "links": (2, 128)}


def _graph(nodes: int = 20, links: int = 50) -> dict[str, Any]:
    return {"x": torch.randn(nodes, 16), "edges": torch.randint(0, 4, (2, links))}


class Gcn(nn.Module):
    """Two graph convolutions with symmetric normalisation, by index_add."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 5)

    def spread(self, x: Any, edges: Any) -> Any:
        source, target = edges[0], edges[1]
        degree = torch.ones(x.shape[0]).index_add(0, target, torch.ones_like(target, dtype=x.dtype))
        norm = degree.rsqrt()
        message = x[source] * (norm[source] * norm[target]).unsqueeze(1)
        return torch.zeros_like(x).index_add(0, target, message) + x / degree.unsqueeze(1)

    def forward(self, x: Any, edges: Any) -> Any:
        return self.spread(self.b(torch.relu(self.spread(self.a(x), edges))), edges)


@entry("graph", GRAPH, SIZES)
def gcn() -> Made:
    return Gcn(), _graph()


class Gat(nn.Module):
    """Graph attention: a softmax over the incoming edges, by scatter_reduce."""

    def __init__(self, heads: int = 4, d: int = 8) -> None:
        super().__init__()
        self.heads, self.d, self.linear = heads, d, nn.Linear(16, heads * d)
        self.left, self.right = nn.Parameter(torch.randn(heads, d)), nn.Parameter(torch.randn(heads, d))

    def forward(self, x: Any, edges: Any) -> Any:
        h = self.linear(x).view(-1, self.heads, self.d)
        source, target = edges[0], edges[1]
        score = (h * self.left).sum(-1)[source] + (h * self.right).sum(-1)[target]
        score = nn.functional.leaky_relu(score, 0.2)
        index = target.unsqueeze(1).expand(-1, self.heads)
        zeros = torch.zeros(x.shape[0], self.heads)
        highest = torch.scatter_reduce(zeros - 1e9, 0, index, score, "amax")
        weight = torch.exp(score - highest[target])
        weight = weight / (torch.scatter_add(zeros, 0, index, weight)[target] + 1e-9)
        out = torch.zeros_like(h).index_add(0, target, h[source] * weight.unsqueeze(-1))
        return nn.functional.elu(out.flatten(1))


@entry("graph", GRAPH, SIZES)
def gat() -> Made:
    return Gat(), _graph()


class Sage(nn.Module):
    """GraphSAGE with sum and max of the neighbours, and vectors of the whole graph."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.total, self.most = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(16, 24)

    def forward(self, x: Any, edges: Any) -> Any:
        index, neighbours = edges[1].unsqueeze(1).expand(-1, 16), x[edges[0]]
        total = torch.scatter_add(torch.zeros_like(x), 0, index, neighbours)
        most = torch.scatter_reduce(x, 0, index, neighbours, "amax")
        h = torch.relu(self.own(x) + self.total(total) + self.most(most))
        return h, h.mean(0), h.amax(0)


@entry("graph", GRAPH, SIZES)
def graph_sage() -> Made:
    return Sage(), _graph()
