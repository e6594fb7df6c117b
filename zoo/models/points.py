"""Networks of points, rays and atoms in plain PyTorch."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from zoo.catalogue import Made, entry
from zoo.models.plain import mlp


class PointNet(nn.Module):
    """PointNet: a learnt alignment of points, shared layers, the maximum over points, labels of points."""

    def __init__(self) -> None:
        super().__init__()

        def conv(*sizes: int) -> Any:
            layers = (
                nn.Sequential(nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()) for a, b in pairwise(sizes)
            )
            return nn.Sequential(*layers)

        self.align, self.turn = conv(3, 32, 64), nn.Linear(64, 9)
        self.low, self.high, self.head = conv(3, 32, 64), conv(64, 128, 256), conv(320, 64)
        self.out = nn.Conv1d(64, 5, 1)

    def forward(self, x: Any) -> Any:
        turn = self.turn(self.align(x).amax(2)).view(-1, 3, 3) + torch.eye(3)
        x = self.low(torch.bmm(x.transpose(1, 2), turn).transpose(1, 2))
        of_all_points = self.high(x).amax(2, keepdim=True).expand(-1, -1, x.shape[2])
        return self.out(self.head(torch.cat((x, of_all_points), 1))).log_softmax(1)


@entry("points", {"x": {0: "batch", 2: "points"}}, {"batch": (1, 2), "points": (1, 256)})
def pointnet() -> Made:
    return PointNet(), {"x": torch.randn(2, 3, 100)}


class EdgeConv(nn.Module):
    """DGCNN: the nearest neighbours of each point by topk of distances, layers on edges."""

    def __init__(self, k: int = 8) -> None:
        super().__init__()
        self.k = k
        self.a, self.b = nn.Conv2d(6, 32, 1), nn.Conv2d(64, 64, 1)
        self.norm, self.out = nn.BatchNorm2d(32), nn.Linear(64, 4)

    def edges(self, x: Any) -> Any:
        """Features of each point beside the difference to each neighbour."""
        distance = torch.cdist(x, x)
        near = distance.topk(self.k, -1, largest=False).indices
        n, p, c = x.shape
        neighbours = x.gather(1, near.reshape(n, -1, 1).expand(-1, -1, c)).view(n, p, self.k, c)
        centre = x.unsqueeze(2).expand_as(neighbours)
        return torch.cat((neighbours - centre, centre), -1).permute(0, 3, 1, 2)

    def forward(self, x: Any) -> Any:
        x = functional.leaky_relu(self.norm(self.a(self.edges(x))), 0.2).amax(-1).transpose(1, 2)
        x = functional.leaky_relu(self.b(self.edges(x)), 0.2).amax(-1).transpose(1, 2)
        return self.out(x.amax(1) - x.mean(1))


@entry("points", {"x": {0: "batch", 1: "points"}}, {"batch": (1, 2), "points": (8, 96)})
def dgcnn() -> Made:
    return EdgeConv(), {"x": torch.randn(2, 64, 3)}


class Radiance(nn.Module):
    """A radiance field: sines of positions, a skip connection, rendering by products of transparency."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = mlp(39, 64, 64, act=nn.ReLU), mlp(64 + 39, 64, 64, act=nn.ReLU)
        self.density, self.colour = nn.Linear(64, 1), mlp(64 + 15, 32, 3, act=nn.ReLU)

    @staticmethod
    def waves(x: Any, most: int) -> Any:
        """x, and sines and cosines of its multiples by powers of two."""
        angles = x[..., None] * 2.0 ** torch.arange(most)
        return torch.cat((x, angles.sin().flatten(-2), angles.cos().flatten(-2)), -1)

    def forward(self, origin: Any, direction: Any) -> Any:
        depth = torch.linspace(2.0, 6.0, 24)
        points = origin[:, None] + direction[:, None] * depth[:, None]
        p = self.waves(points, 6)
        h = torch.relu(self.second(torch.cat((torch.relu(self.first(p)), p), -1)))
        way = self.waves(functional.normalize(direction, dim=-1), 2)[:, None].expand(-1, 24, -1)
        colour = torch.sigmoid(self.colour(torch.cat((h, way), -1)))
        alpha = 1 - torch.exp(-functional.relu(self.density(h)[..., 0]) * (4 / 24))
        clear = torch.exp(functional.pad((1 - alpha + 1e-10).log().cumsum(-1), (1, 0)))[:, :-1]
        weight = alpha * clear
        return (weight[..., None] * colour).sum(1), (weight * depth).sum(1)


@entry("points", {"origin": {0: "rays"}, "direction": {0: "rays"}}, {"rays": (1, 32)})
def radiance_field() -> Made:
    return Radiance(), {"origin": torch.randn(4, 3), "direction": torch.randn(4, 3)}


class Equivariant(nn.Module):
    """E(n)-equivariant layers: messages of all pairs, coordinates moved along their differences."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.edge = nn.ModuleList(mlp(2 * width + 1, 32, 32, act=nn.SiLU) for _ in range(2))
        self.move = nn.ModuleList(mlp(32, 32, 1, act=nn.SiLU) for _ in range(2))
        self.node = nn.ModuleList(mlp(width + 32, 32, width, act=nn.SiLU) for _ in range(2))

    def forward(self, h: Any, x: Any) -> Any:
        n = h.shape[0]
        not_itself = ~torch.eye(n, dtype=torch.bool)
        for edge, move, node in zip(self.edge, self.move, self.node, strict=True):
            apart = x[:, None] - x[None]
            pair = torch.cat((h[:, None].expand(-1, n, -1), h[None].expand(n, -1, -1)), -1)
            m = (
                functional.silu(edge(torch.cat((pair, (apart**2).sum(-1, keepdim=True)), -1)))
                * not_itself[..., None]
            )
            x = x + (apart * move(m)).mean(1)
            h = h + node(torch.cat((h, m.sum(1)), -1))
        return h, x


@entry("graph", {"h": {0: "atoms"}, "x": {0: "atoms"}}, {"atoms": (2, 24)})
def egnn() -> Made:
    return Equivariant(), {"h": torch.randn(9, 16), "x": torch.randn(9, 3)}
