"""Matching, depth, points and scenes, in plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from zoo.catalogue import Made, entry
from zoo.models.plain import mlp

ROWS: dict[str, Any] = {"axes": {"x": {0: "batch"}}, "ranges": {"batch": (1, 4)}}
POINTS: dict[str, Any] = {"axes": {"a": {1: "n"}, "b": {1: "m"}}, "ranges": {"n": (4, 24), "m": (4, 24)}}


class Matcher(nn.Module):
    """SuperGlue and LightGlue: self and cross attention with rotary places, and Sinkhorn in logarithms."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.turn, self.qkv = nn.Linear(2, width // 2), nn.Linear(width, 3 * width)
        self.qk, self.v, self.out = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.dust = nn.Parameter(torch.tensor(0.5))

    def _rotate(self, x: Any, places: Any) -> Any:
        angle = self.turn(places).repeat_interleave(2, -1)
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        return x * angle.cos() + torch.stack((-b, a), -1).flatten(-2) * angle.sin()

    def forward(self, a: Any, b: Any, at_a: Any, at_b: Any) -> Any:
        made = []
        for x, at in ((a, at_a), (b, at_b)):
            q, k, v = self.qkv(x).chunk(3, -1)
            q, k = self._rotate(q, at), self._rotate(k, at)
            made.append(x + self.out(functional.scaled_dot_product_attention(q, k, v)))
        a, b = made
        scores = self.qk(a) @ self.qk(b).transpose(1, 2) / 4
        a, b = a + scores.softmax(2) @ self.v(b), b + scores.softmax(1).transpose(1, 2) @ self.v(a)
        z = functional.pad(a @ b.transpose(1, 2) / 4, (0, 1, 0, 1))
        n, m = a.shape[1], b.shape[1]
        edge = (torch.arange(n + 1)[:, None] == n) | (torch.arange(m + 1) == m)
        z = torch.where(edge, self.dust, z)
        one = torch.zeros(1)
        rows = torch.cat((one.expand(n), torch.log(one + m)))
        columns = torch.cat((one.expand(m), torch.log(one + n)))
        u, v = torch.zeros_like(z[:, :, 0]), torch.zeros_like(z[:, 0])
        for _ in range(4):
            u = rows - torch.logsumexp(z + v[:, None], 2)
            v = columns - torch.logsumexp(z + u[:, :, None], 1)
        z = z + u[:, :, None] + v[:, None]
        values, places = z[:, :-1, :-1].max(2)
        back = z[:, :-1, :-1].argmax(1).gather(1, places)
        mutual = back == torch.arange(n)
        return z, torch.where(mutual, places, -1), values.exp() * mutual


@entry(
    "points",
    {"a": {1: "n"}, "b": {1: "m"}, "at_a": {1: "n"}, "at_b": {1: "m"}},
    {"n": (4, 24), "m": (4, 24)},
)
def glue_matcher() -> Made:
    tensors = torch.randn(1, 9, 16), torch.randn(1, 7, 16), torch.rand(1, 9, 2), torch.rand(1, 7, 2)
    return Matcher(), dict(zip(("a", "b", "at_a", "at_b"), tensors, strict=True))


class CoarseToFine(nn.Module):
    """LoFTR: linear attention, dual softmax, and unfolded windows of fine features at the best matches."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU())
        self.coarse, self.qkv = nn.Conv2d(8, 16, 4, 4), nn.Linear(16, 48)

    def forward(self, a: Any, b: Any) -> Any:
        fine = [self.fine(x) for x in (a, b)]
        flat = [self.coarse(x).flatten(2).transpose(1, 2) for x in fine]
        mixed = []
        for x in flat:
            q, k, v = self.qkv(x).chunk(3, -1)
            q, k = functional.elu(q) + 1, functional.elu(k) + 1
            memory = torch.einsum("nsd,nsv->ndv", k, v)
            mixed.append(x + torch.einsum("nld,ndv->nlv", q, memory) / (q @ k.sum(1)[..., None] + 1e-6))
        scores = torch.einsum("nlc,nsc->nls", *mixed) / 1.6
        chance = scores.softmax(1) * scores.softmax(2)
        best, place = chance.max(2)
        top = best.topk(5, 1)
        windows = [functional.unfold(x, 5, stride=4, padding=2).unflatten(1, (8, 25)) for x in fine]
        left = windows[0].permute(0, 3, 2, 1).gather(1, top.indices[..., None, None].expand(-1, -1, 25, 8))
        target = place.gather(1, top.indices)
        right = windows[1].permute(0, 3, 2, 1).gather(1, target[..., None, None].expand(-1, -1, 25, 8))
        heat = torch.einsum("nmc,nmrc->nmr", left[:, :, 12], right).div(8**0.5).softmax(-1)
        grid = torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, 5)] * 2, indexing="xy"), -1).flatten(0, 1)
        return chance, top.values, top.indices, heat @ grid


@entry("points", {"a": {0: "n", 3: "8*w"}, "b": {0: "n", 3: "8*w"}}, {"n": (1, 2), "w": (3, 6)})
def loftr() -> Made:
    return CoarseToFine(), {"a": torch.rand(2, 1, 32, 40), "b": torch.rand(2, 1, 32, 40)}


class KeyPoints(nn.Module):
    """SuperPoint's and CenterNet's ends: cells to pixels, suppression by max pools, the best, descriptors."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 8, 8), nn.ReLU())
        self.cells, self.describe = nn.Conv2d(16, 65, 1), nn.Conv2d(16, 12, 3, padding=1)

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        h, w = y.shape[2:]
        heat = functional.pixel_shuffle(self.cells(y).softmax(1)[:, :-1], 8)[:, 0]
        keep = heat == functional.max_pool2d(heat[:, None], 5, 1, 2)[:, 0]
        for _ in range(2):
            near = functional.max_pool2d(keep[:, None].float(), 5, 1, 2)[:, 0] > 0
            rest = torch.where(near, torch.zeros_like(heat), heat)
            keep = keep | ((rest == functional.max_pool2d(rest[:, None], 5, 1, 2)[:, 0]) & ~near)
        values, places = torch.where(keep, heat, torch.zeros_like(heat)).flatten(1).topk(10)
        row, column = torch.div(places, w * 8, rounding_mode="floor"), places % (w * 8)
        grid = torch.stack((column / (w * 8 - 1) * 2 - 1, row / (h * 8 - 1) * 2 - 1), -1)
        made = functional.normalize(self.describe(y), dim=1)
        found = functional.grid_sample(made, grid[:, None], mode="bilinear", align_corners=True)[:, :, 0]
        return values, torch.stack((row, column), -1), functional.normalize(found, dim=1)


@entry("points", {"x": {0: "n", 2: "8*h"}}, {"n": (1, 2), "h": (3, 6)})
def key_points() -> Made:
    return KeyPoints(), {"x": torch.rand(2, 1, 32, 40)}


class Stereo(nn.Module):
    """PSMNet: a cost volume of shifted features, convolutions in three dimensions, a soft argument."""

    def __init__(self, disparities: int = 6) -> None:
        super().__init__()
        self.d = disparities
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 2, 2))
        self.regular = nn.Sequential(nn.Conv3d(16, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 8, 3, 2, 1))
        self.back, self.last = nn.ConvTranspose3d(8, 8, 4, 2, 1), nn.Conv3d(8, 1, 3, padding=1)

    def forward(self, a: Any, b: Any) -> Any:
        a, b = self.features(a), self.features(b)
        w = a.shape[-1]
        planes = []
        for d in range(self.d):
            shifted = functional.pad(b, (d, 0))[..., :w]
            planes.append(torch.cat((a, shifted), 1) * (torch.arange(w) >= d))
        cost = self.last(self.back(self.regular(torch.stack(planes, 2))))
        cost = functional.interpolate(cost, scale_factor=(1, 2, 2), mode="trilinear", align_corners=False)
        chance = (-cost[:, 0]).softmax(1)
        correlation = torch.stack([(a * torch.roll(b, d, 3)).mean(1) for d in range(-2, 3)], 1)
        return (chance * torch.arange(self.d)[:, None, None]).sum(1), correlation


@entry("depth", {"a": {0: "n"}, "b": {0: "n"}}, {"n": (1, 2)})
def stereo_volume() -> Made:
    return Stereo(), {"a": torch.rand(2, 3, 24, 32), "b": torch.rand(2, 3, 24, 32)}


class Sweep(nn.Module):
    """MVSNet: other views are warped by homographies of each depth; the variance is the cost."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.regular = nn.Conv2d(3, 8, 3, padding=1), nn.Conv3d(8, 1, 3, padding=1)

    def forward(self, x: Any, cameras: Any, depths: Any) -> Any:
        views = self.net(x.flatten(0, 1)).unflatten(0, (-1, 3))
        n, _, c, h, w = views.shape
        ref, total, squares = views[:, 0], 0.0, 0.0
        project = cameras[:, 1:] @ torch.linalg.inv(cameras[:, :1])
        y, x0 = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        pixels = torch.stack((x0, y, torch.ones_like(y)), 0).float().flatten(1)
        for v in range(2):
            turned = project[:, v, :3, :3] @ pixels
            points = turned[:, :, None] * depths[None, None, :, None] + project[:, v, :3, 3, None, None]
            z = torch.where(points[:, 2].abs() < 1e-3, torch.full_like(points[:, 2], 1e-3), points[:, 2])
            grid = torch.stack(
                (points[:, 0] / z / ((w - 1) / 2) - 1, points[:, 1] / z / ((h - 1) / 2) - 1), -1
            )
            warped = functional.grid_sample(
                views[:, 1 + v], grid.view(n, -1, w, 2), padding_mode="zeros", align_corners=True
            ).view(n, c, -1, h, w)
            total, squares = total + warped, squares + warped**2
        mean = (total + ref[:, :, None]) / 3
        cost = (squares + ref[:, :, None] ** 2) / 3 - mean**2
        chance = self.regular(cost)[:, 0].softmax(1)
        return torch.einsum("ndhw,d->nhw", chance, depths), chance.amax(1)


@entry("depth", {"x": {0: "n"}, "cameras": {0: "n"}}, {"n": (1, 2)})
def plane_sweep() -> Made:
    cameras = torch.eye(4).repeat(2, 3, 1, 1) + torch.randn(2, 3, 4, 4) * torch.tensor([0.05, 0.05, 0.001, 1])
    cameras[:, :, 3] = torch.tensor([0.0, 0, 0, 1])
    depths = torch.linspace(2, 6, 4)
    return Sweep(), {"x": torch.rand(2, 3, 3, 12, 16), "cameras": cameras, "depths": depths}


class LiftSplat(nn.Module):
    """Lift, splat, shoot: pixels with chances of depths are added into the cells of a map from above."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.bev = nn.Conv2d(3, 6 + 8, 4, 4), nn.Conv2d(8, 4, 3, padding=1)
        y, x, d = torch.meshgrid(torch.arange(4), torch.arange(6), torch.arange(6), indexing="ij")
        frustum = torch.stack(((x - 2.5) * (d + 2) / 4, (y - 1.5) * (d + 2) / 4, d + 2.0), -1)
        self.register_buffer("frustum", frustum)

    def forward(self, x: Any, turn: Any, move: Any) -> Any:
        n, cameras = x.shape[:2]
        depth, features = self.net(x.flatten(0, 1)).split([6, 8], 1)
        lifted = torch.einsum("ndhw,nchw->nhwdc", depth.softmax(1), features).unflatten(0, (n, cameras))
        points = torch.einsum("nkij,hwdj->nkhwdi", turn, self.frustum) + move[:, :, None, None, None]
        cell = torch.floor((points[..., [0, 2]] + 8) / 2).long()
        inside = ((cell >= 0) & (cell < 8)).all(-1)
        flat = torch.where(inside, cell[..., 0] * 8 + cell[..., 1], 64).flatten(1)
        grid = torch.zeros(n, 65, 8).scatter_add(1, flat[..., None].expand(-1, -1, 8), lifted.flatten(1, 4))
        return self.bev(grid[:, :64].unflatten(1, (8, 8)).permute(0, 3, 1, 2))


@entry("points", {k: {0: "n"} for k in ("x", "turn", "move")}, {"n": (1, 2)})
def lift_splat() -> Made:
    turn = torch.linalg.qr(torch.randn(2, 2, 3, 3))[0]
    return LiftSplat(), {"x": torch.rand(2, 2, 3, 16, 24), "turn": turn, "move": torch.randn(2, 2, 3)}


class Sampled(nn.Module):
    """PointNet++: the farthest points one after the other, balls around them, pools, and three neighbours."""

    def __init__(self, centres: int = 6) -> None:
        super().__init__()
        self.centres, self.net, self.up = centres, mlp(3, 16, 24, act=nn.ReLU), mlp(27, 16, 5, act=nn.ReLU)

    def forward(self, x: Any) -> Any:
        n = x.shape[1]
        far, at = torch.full(x.shape[:2], 1e10), torch.zeros(x.shape[:1], dtype=torch.long)
        chosen = []
        for _ in range(self.centres):
            chosen.append(at)
            centre = x.gather(1, at[:, None, None].expand(-1, 1, 3))
            far = torch.minimum(far, (x - centre).square().sum(-1))
            at = far.argmax(-1)
        index = torch.stack(chosen, 1)
        centres = x.gather(1, index[..., None].expand(-1, -1, 3))
        away = torch.cdist(centres, x)
        group = torch.where(away < 1.0, torch.arange(n), n).sort(-1).values[..., :4]
        group = torch.where(group == n, group[..., :1], group)
        batch = torch.arange(x.shape[0])[:, None, None]
        pooled = self.net(x[batch, group] - centres[:, :, None]).amax(2)
        near = torch.cdist(x, centres).topk(3, largest=False)
        weight = 1 / (near.values + 1e-8)
        weight = weight / weight.sum(-1, keepdim=True)
        mixed = (pooled[batch, near.indices] * weight[..., None]).sum(2)
        return self.up(torch.cat((x, mixed), -1)), index


@entry("points", {"x": {0: "batch", 1: "n"}}, {"batch": (1, 2), "n": (8, 32)})
def point_net_2() -> Made:
    return Sampled(), {"x": torch.randn(2, 20, 3)}


class Pillars(nn.Module):
    """PointPillars: points of columns, with masks, pooled and written to the places of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.norm, self.head = (
            nn.Linear(7, 8, bias=False),
            nn.BatchNorm1d(8),
            nn.Conv2d(8, 6, 3, 2, 1),
        )

    def forward(self, points: Any, places: Any, counts: Any) -> Any:
        mask = (torch.arange(points.shape[1]) < counts[:, None])[..., None]
        centre = (points[..., :3] * mask).sum(1, keepdim=True) / counts.clamp(min=1)[:, None, None]
        x = torch.cat((points, points[..., :3] - centre), -1) * mask
        y = self.norm(self.net(x).transpose(1, 2)).transpose(1, 2).relu().amax(1)
        image = torch.zeros(8, 8 * 10).index_copy(1, places[:, 0] * 10 + places[:, 1], y.T)
        return self.head(image.view(1, 8, 8, 10))


@entry("points", {k: {0: "pillars"} for k in ("points", "places", "counts")}, {"pillars": (1, 20)})
def point_pillars() -> Made:
    flat = torch.randperm(80)[:9]
    places = torch.stack((flat // 10, flat % 10), -1)
    return Pillars(), {"points": torch.randn(9, 5, 4), "places": places, "counts": torch.randint(1, 6, (9,))}


class HashField(nn.Module):
    """Instant NGP: corners of cells of several sizes, hashed by products and exclusive or into tables."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.Parameter(torch.randn(3, 64, 2))
        self.register_buffer("corners", torch.tensor([[i >> 2 & 1, i >> 1 & 1, i & 1] for i in range(8)]))
        self.register_buffer("primes", torch.tensor([1, 2654435761, 805459861]))
        self.net, self.tone = mlp(6, 16, 16, act=nn.ReLU), nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        parts = []
        for level in range(3):
            scaled = x * 4 * 2**level
            low = torch.floor(scaled).long()
            corner = low[:, None] + self.corners
            mixed = corner * self.primes
            place = (mixed[..., 0] ^ mixed[..., 1] ^ mixed[..., 2]) % 64
            part = (scaled - low)[:, None]
            weight = torch.where(self.corners == 1, part, 1 - part).prod(-1, keepdim=True)
            parts.append((self.tables[level][place] * weight).sum(1))
        density, colour = self.tone(self.net(torch.cat(parts, -1)).relu()).split([1, 3], -1)
        sigma = functional.softplus(density)[:, 0].view(-1, 4)
        through = torch.exp(-functional.pad(sigma, (1, 0))[:, :-1].cumsum(1)) * (1 - torch.exp(-sigma))
        return (through[..., None] * colour.sigmoid().view(-1, 4, 3)).sum(1), sigma


@entry("points", {"x": {0: "4*rays"}}, {"rays": (1, 8)})
def hash_field() -> Made:
    return HashField(), {"x": torch.rand(12, 3)}
