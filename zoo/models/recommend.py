"""Recommenders, rankers, and networks of tables, in plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from zoo.catalogue import Made, entry
from zoo.models.plain import mlp

IDS: dict[str, Any] = {"axes": {"ids": {0: "batch"}}, "ranges": {"batch": (1, 16)}}
ROWS: dict[str, Any] = {"axes": {"x": {0: "batch"}}, "ranges": {"batch": (1, 16)}}
HISTORY: dict[str, Any] = {
    "axes": {"history": {0: "batch", 1: "seq"}, "target": {0: "batch"}},
    "ranges": {"batch": (1, 8), "seq": (2, 20)},
}


class FactorMachine(nn.Module):
    """DeepFM: products of all pairs of embeddings by the square of their sum, beside a deep network."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offsets", torch.arange(6) * 40)
        self.table, self.linear, self.deep = nn.Embedding(240, 8), nn.Embedding(240, 1), mlp(48, 32, 1)

    def forward(self, ids: Any) -> Any:
        places = ids + self.offsets
        parts = self.table(places)
        pairs = 0.5 * (parts.sum(1).square() - parts.square().sum(1)).sum(1)
        return torch.sigmoid(self.linear(places).sum((1, 2)) + pairs + self.deep(parts.flatten(1))[:, 0])


@entry("table", **IDS)
def deep_fm() -> Made:
    return FactorMachine(), {"ids": torch.randint(0, 40, (3, 6))}


class CrossNet(nn.Module):
    """The second deep and cross network: each layer multiplies by its input, with experts of low rank."""

    def __init__(self, width: int = 24, rank: int = 6, experts: int = 3) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.randn(2, experts, rank, width) * 0.3)
        self.c = nn.Parameter(torch.randn(2, experts, rank, rank) * 0.3)
        self.v = nn.Parameter(torch.randn(2, experts, width, rank) * 0.3)
        self.bias, self.gate, self.last = (
            nn.Parameter(torch.randn(2, width)),
            mlp(width, 3),
            mlp(width, 16, 1),
        )

    def forward(self, x: Any) -> Any:
        y = x
        for u, c, v, bias in zip(self.u, self.c, self.v, self.bias, strict=True):
            h = torch.tanh(torch.einsum("erw,bw->ber", u, y))
            h = torch.einsum("ewr,ber->bew", v, torch.tanh(torch.einsum("ers,bes->ber", c, h)))
            y = torch.einsum("bew,be->bw", x[:, None] * (h + bias), self.gate(y).softmax(-1)) + y
        return self.last(y)


@entry("table", **ROWS)
def deep_cross() -> Made:
    return CrossNet(), {"x": torch.randn(3, 24)}


class AutoInt(nn.Module):
    """Attention among the fields of a row, and compressed interactions (xDeepFM) by a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix = nn.Embedding(240, 16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.squeeze, self.last = nn.Conv1d(36, 10, 1), nn.Linear(6 * 16 + 10, 1)

    def forward(self, ids: Any) -> Any:
        parts = self.table(ids)
        mixed = torch.relu(self.mix(parts, parts, parts, need_weights=False)[0] + parts)
        products = torch.einsum("bhd,bmd->bhmd", parts, parts).flatten(1, 2)
        pooled = torch.relu(self.squeeze(products)).sum(-1)
        return torch.sigmoid(self.last(torch.cat((mixed.flatten(1), pooled), 1))).squeeze(1)


@entry("table", **IDS)
def auto_int() -> Made:
    return AutoInt(), {"ids": torch.randint(0, 240, (3, 6))}


class CollaborativeFilter(nn.Module):
    """Neural collaborative filtering: a product of embeddings and a perceptron of two others."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(30, 24), nn.Embedding(50, 24)
        self.deep, self.last = mlp(32, 16, 8, act=nn.ReLU), nn.Linear(16, 1)

    def forward(self, user: Any, item: Any) -> Any:
        (a, b), (c, d) = self.users(user).split([8, 16], -1), self.items(item).split([8, 16], -1)
        return self.last(torch.cat((a * c, self.deep(torch.cat((b, d), -1))), -1)).sigmoid()


@entry("table", {"user": {0: "batch"}, "item": {0: "batch"}}, {"batch": (1, 16)})
def neural_cf() -> Made:
    return CollaborativeFilter(), {"user": torch.randint(0, 30, (4,)), "item": torch.randint(0, 50, (4,))}


class SelfAttentiveHistory(nn.Module):
    """SASRec: causal attention over a history with padding 0, and scores of the best items."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(50, 16, padding_idx=0), nn.Embedding(32, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True) for _ in range(2)
        )

    def forward(self, history: Any, target: Any) -> Any:
        n = history.shape[1]
        x = self.items(history) * 4.0 + self.places(torch.arange(n))
        absent = history == 0
        x = x.masked_fill(absent[..., None], 0.0)
        causal = torch.ones(n, n, dtype=torch.bool).triu(1)
        for layer in self.layers:
            x = layer(x, src_mask=causal)
        scores = x[:, -1] @ self.items.weight.T
        best = scores.topk(5)
        rank = (scores > scores.gather(1, target[:, None])).sum(1)
        return best.values, best.indices, rank


@entry("table", **HISTORY)
def sasrec() -> Made:
    history = torch.randint(1, 50, (2, 8))
    history[:, 0] = 0
    return SelfAttentiveHistory(), {"history": history, "target": torch.tensor([3, 7])}


class InterestNetwork(nn.Module):
    """Deep interest: weights of a history by its target, with Dice activations; then a GRU (DIEN)."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.weigh = nn.Embedding(50, 8), nn.Sequential(nn.Linear(32, 16), nn.PReLU(16))
        self.one, self.norm, self.alpha = nn.Linear(16, 1), nn.BatchNorm1d(24), nn.Parameter(torch.rand(24))
        self.gru, self.last = nn.GRU(8, 8, batch_first=True), nn.Linear(24, 1)

    def forward(self, history: Any, target: Any) -> Any:
        h, t = self.items(history), self.items(target)[:, None].expand(-1, history.shape[1], -1)
        mixed = torch.cat((h, t, h - t, h * t), -1).flatten(0, 1)
        weight = self.one(self.weigh(mixed)).view(history.shape[0], -1)
        weight = torch.where(history > 0, weight, torch.full_like(weight, -1e9)).softmax(1)
        grown, _ = self.gru(h * weight[..., None])
        x = torch.cat((torch.bmm(weight[:, None], h)[:, 0], grown[:, -1], t[:, 0]), -1)
        p = self.norm(x).sigmoid()
        return self.last(p * x + (1 - p) * self.alpha * x)


@entry("table", **HISTORY)
def deep_interest() -> Made:
    return InterestNetwork(), {"history": torch.randint(0, 50, (2, 8)), "target": torch.tensor([3, 7])}


class TwoTowers(nn.Module):
    """Two towers of normalised vectors: bags of words against all items, and the closest ones."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(60, 16, mode="mean", padding_idx=0)
        self.query = mlp(16, 32, 12, act=nn.GELU)
        self.item = mlp(20, 32, 12, act=nn.GELU)

    def forward(self, ids: Any, items: Any) -> Any:
        q = functional.normalize(self.query(self.words(ids)), dim=-1)
        i = functional.normalize(self.item(items), dim=-1)
        scores = q @ i.T / 0.07
        values, places = scores.sort(dim=1, descending=True)
        return scores.log_softmax(1), values[:, :4], places[:, :4]


@entry("table", {"ids": {0: "batch"}, "items": {0: "items"}}, {"batch": (1, 8), "items": (5, 30)})
def two_towers() -> Made:
    ids = torch.randint(1, 60, (3, 7))
    ids[0, 3:] = 0
    return TwoTowers(), {"ids": ids, "items": torch.randn(10, 20)}


def sparsemax(z: Any) -> Any:
    """The nearest point of the simplex: by sorting and sums."""
    ordered = z.sort(dim=-1, descending=True).values
    sums = ordered.cumsum(-1) - 1
    count = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype)
    support = (count * ordered > sums).sum(-1, keepdim=True)
    tau = sums.gather(-1, support - 1) / support.to(z.dtype)
    return (z - tau).clamp(min=0)


class TabNet(nn.Module):
    """TabNet: steps that choose features by sparsemax, with gated layers and ghost batch norms."""

    def __init__(self, width: int = 12, hidden: int = 8) -> None:
        super().__init__()
        self.first = nn.BatchNorm1d(width)
        self.shared = nn.Linear(width, 4 * hidden)
        self.own = nn.ModuleList(nn.Linear(2 * hidden, 4 * hidden) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(3))
        self.choose, self.last = (
            nn.ModuleList(nn.Linear(hidden, width) for _ in range(3)),
            nn.Linear(hidden, 3),
        )
        self.hidden = hidden

    def _transform(self, x: Any, step: int) -> Any:
        h = functional.glu(self.shared(x))
        return (h + functional.glu(self.own[step](h))) * 0.5**0.5

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        prior, total = torch.ones_like(x), torch.zeros(self.hidden)
        importance = torch.zeros_like(x)
        attended = self._transform(x, 0)[:, self.hidden :]
        for step in range(3):
            mask = sparsemax(self.norms[step](self.choose[step](attended)) * prior)
            prior = prior * (1.3 - mask)
            decided, attended = self._transform(mask * x, step).chunk(2, -1)
            decided = decided.relu()
            total, importance = total + decided, importance + mask * decided.sum(-1, keepdim=True)
        return self.last(total), importance / importance.sum(-1, keepdim=True).clamp(min=1e-6)


@entry("table", **ROWS)
def tabnet() -> Made:
    return TabNet(), {"x": torch.randn(5, 12)}


class ObliviousTrees(nn.Module):
    """NODE: differentiable oblivious trees with thresholds of their features, and all leaves' products."""

    def __init__(self, width: int = 8, trees: int = 6, depth: int = 3) -> None:
        super().__init__()
        self.select = nn.Parameter(torch.randn(width, trees, depth))
        self.limits, self.scales = (
            nn.Parameter(torch.randn(trees, depth)),
            nn.Parameter(torch.rand(trees, depth)),
        )
        self.leaves = nn.Parameter(torch.randn(trees, 2, 2**depth))
        places = torch.arange(2**depth)
        codes = (places[None] // 2 ** torch.arange(depth)[:, None]) % 2
        self.register_buffer("codes", torch.stack((codes, 1 - codes), -1).float())

    def forward(self, x: Any) -> Any:
        chosen = torch.einsum("bw,wtd->btd", x, self.select.softmax(0))
        z = (chosen - self.limits) * torch.exp(-self.scales)
        bins = torch.clamp(0.5 * torch.stack((-z, z), -1) + 0.5, 0, 1)
        weights = torch.einsum("btds,dcs->btdc", bins, self.codes).prod(2)
        return torch.einsum("btc,tuc->btu", weights, self.leaves).mean(1)


@entry("table", **ROWS)
def oblivious_trees() -> Made:
    return ObliviousTrees(), {"x": torch.randn(5, 8)}


class TwoWayTable(nn.Module):
    """SAINT: attention among features, then among the rows of the batch; missing values have embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.missing = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(6, 8))
        self.features = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, activation="gelu")
        self.rows = nn.TransformerEncoderLayer(48, 4, 64, 0.0, batch_first=True, activation="gelu")
        self.last = nn.Linear(48, 2)

    def forward(self, x: Any) -> Any:
        absent = torch.isnan(x)
        parts = torch.where(absent[..., None], self.missing, torch.nan_to_num(x)[..., None] * self.scale)
        return self.last(self.rows(self.features(parts).flatten(1)[None])[0])


@entry("table", **ROWS)
def saint() -> Made:
    return TwoWayTable(), {"x": torch.randn(5, 6)}
