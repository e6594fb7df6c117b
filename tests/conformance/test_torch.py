"""PyTorch models, from an archive and from a function, are built and agree with PyTorch itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kiln
import numpy as np
import pytest
from kiln.files import read_json

from .torch_builds import build, passes

pytestmark = pytest.mark.heavy
torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch onnxscript")
pytest.importorskip("onnxscript", reason="PyTorch's ONNX exporter is not installed: pip install onnxscript")

NETS = '''
import collections
import dataclasses

import torch
from torch import nn
from torch.export import Dim

class Net(nn.Module):
    """Convolution, norm, mean over the image, and an optional input that is left out."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x, mask, scale=None):
        h = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return {"logits": self.head(h) * mask, "features": h if scale is None else h * scale}

def dynamic_sizes():
    torch.manual_seed(0)
    batch, height = Dim("batch", max=4), Dim("height", min=4, max=32)
    inputs = torch.randn(2, 3, 16, 8), torch.ones(2, 1)
    return Net(), inputs, {"x": {0: batch, 2: height}, "mask": {0: batch}}

class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

class Input(nn.Module):
    """Writes to rows of one input, and to all of another one, which it returns too."""

    def forward(self, x, cache, place):
        cache.index_copy_(1, place, x[:, None] * 2)
        return {"mean": cache.mean(1), "x": x.add_(1)}

@dataclasses.dataclass
class Given:
    a: torch.Tensor
    b: torch.Tensor

Range = collections.namedtuple("Range", "low high")

class Structured(nn.Module):
    def forward(self, given, x, scalar):
        return Range(given.a @ given.b, {"sum": x + given.a.sum() + torch.stack([scalar, scalar])})

def structured():
    if Given not in torch.utils._pytree.SUPPORTED_NODES:
        torch.export.register_dataclass(Given)
    given = Given(torch.ones(2, 3), torch.ones(3, 4))
    shapes = [{0: Dim("rows", max=8)}, {}], None, None
    return Structured(), (given, torch.ones(2), torch.tensor(3.0)), shapes

@dataclasses.dataclass
class Found:
    own: torch.Tensor
    others: torch.Tensor

class Pooled(nn.Module):
    """Means of the values that fall on a place, with the value that was there and without it."""

    def forward(self, x, index, values):
        own = x.scatter_reduce(0, index, values, "mean")
        return Found(own, x.scatter_reduce(0, index, values, "mean", include_self=False))

def pooled():
    if Found not in torch.utils._pytree.SUPPORTED_NODES:
        torch.export.register_dataclass(Found, serialized_type_name="nets.Found")
    torch.manual_seed(0)
    n = Dim("n", max=9)
    inputs = torch.randn(4, 3), torch.randint(0, 4, (6, 3)), torch.randn(6, 3)
    return Pooled(), inputs, (None, {0: n}, {0: n})

class Bags(nn.Module):
    """Bags of one length in rows, of many lengths with an offset each, and without padding."""

    def __init__(self):
        super().__init__()
        self.mean = nn.EmbeddingBag(5, 4, mode="mean", padding_idx=0)
        self.sum = nn.EmbeddingBag(5, 4, mode="sum")
        self.max = nn.EmbeddingBag(5, 4, mode="max", padding_idx=1)

    def forward(self, table, ids, lengths, weights):
        offsets = lengths.cumsum(0) - lengths
        return self.mean(table), self.sum(ids, offsets, per_sample_weights=weights), self.max(ids, offsets)

def bags():
    torch.manual_seed(0)
    ids, lengths = torch.randint(0, 5, (9,)), torch.tensor([2, 0, 3, 1])
    rows, n = Dim("rows", max=6), Dim("n", min=4, max=20)
    shapes = {"table": {0: rows}, "ids": {0: n}, "lengths": None, "weights": {0: n}}
    return Bags(), (torch.randint(0, 5, (3, 4)), ids, lengths, torch.rand(9)), shapes

class Unconverted(nn.Module):
    """What PyTorch's exporter does not convert, and numbers that it would take for 0 and 1."""

    def forward(self, x, y):
        near = [torch.cdist(x, y, p=p).sum() for p in (0.0, 1.0, 1.5, 2.0, float("inf"))]
        steps = x.sort(-1)[0]
        found = torch.searchsorted(steps, x + 0.1, right=True) + torch.bucketize(x, steps[0])
        where = [*(x > 0).max(1), *(x > 0).min(1, keepdim=True)]
        return torch.stack(near), found, *where, 1e-8 / (x[:, 0] * 0 + 1e-8), (x * 0.1 + 1) * 1.000009 - 1

def unconverted():
    torch.manual_seed(0)
    rows = Dim("rows", max=7)
    return Unconverted(), (torch.randn(5, 4), torch.randn(3, 4)), ({0: rows}, None)

def bfloat16():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).bfloat16()
    return net, (torch.randn(2, 8, dtype=torch.bfloat16),)

def nothing(): return None
def number(): return 3, (torch.ones(2),)
def arguments(): return nn.Linear(3, 4), (torch.ones(2, 3), torch.ones(1))
def sizes(): return nn.Linear(3, 4), (torch.ones(2, 5),)
def branch(): return Branch(), (torch.ones(3),)
def failing(): raise ValueError("of two\\nlines")
def changed_inputs():
    torch.manual_seed(0)
    rows = {0: Dim("rows", max=4)}
    return Input(), (torch.randn(2, 3), torch.randn(2, 5, 3), torch.tensor([2])), (rows, rows, None)

def training():
    return torch.export.export(Net().train(), (torch.randn(2, 3, 16, 8), torch.ones(2, 1)))
def unknown():
    class Values(nn.Module):
        def forward(self, x):
            return torch.linalg.svd(x)[1]
    return Values(), (torch.ones(3, 4),)
class Silent(nn.Module):
    def forward(self, x): x + 1
def silent(): return Silent(), (torch.ones(3, 4),)
def endless(): return nn.Linear(3, 4), (torch.ones(2, 3),), ({0: Dim("batch")},)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    archives = tmp_path_factory.mktemp("torch")
    (archives / "nets.py").write_text(NETS, encoding="utf-8")
    return archives


def test_a_function_is_built_with_its_dimensions(folder: Path) -> None:
    done = build(folder, "model=nets:dynamic_sizes", "test")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "batch 1..4, height 4..32" in done.stdout
    bundle = folder / "build/host/dynamic_sizes"
    assert read_json(bundle / "golden/golden.json")["reference"]["name"] == "torch"
    manifest = read_json(bundle / "manifest.json")
    assert [port["name"] for port in manifest["outputs"]] == ["logits", "features"]
    again = build(folder, "model=nets:dynamic_sizes")
    assert "kiln: dynamic_sizes: trace nets:dynamic_sizes" in again.stdout
    assert "export" not in again.stdout, "the same module is not converted again"


def test_new_values_of_inputs_that_a_module_writes_are_outputs(folder: Path) -> None:
    done = build(folder, "model=nets:changed_inputs", "test")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    manifest = read_json(folder / "build/host/changed_inputs/manifest.json")
    assert [port["name"] for port in manifest["inputs"]] == ["x", "cache", "place"]
    assert [port["name"] for port in manifest["outputs"]] == ["mean", "x_out", "x_next", "cache_next"]


def test_own_classes_of_arguments_and_results(folder: Path) -> None:
    """The archive has dicts in their place: the stages that load it do not import the user's module."""
    done = build(folder, "model=nets:structured", "test")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "rows 1..8" in done.stdout
    manifest = read_json(folder / "build/host/structured/manifest.json")
    assert [port["name"] for port in manifest["inputs"]] == ["given_a", "given_b", "x", "scalar"]
    assert [port["name"] for port in manifest["outputs"]] == ["low", "high_sum"]


def test_pytorch_gets_the_elements_of_bfloat16(folder: Path) -> None:
    passes(folder, "bfloat16")


def test_classes_in_an_archive_of_another_program_are_dicts(folder: Path) -> None:
    sys.path.insert(0, str(folder))
    import nets

    module, inputs, shapes = nets.pooled()
    torch.export.save(torch.export.export(module, inputs, dynamic_shapes=shapes), folder / "pooled.pt2")
    (folder / "means.yaml").write_text(
        "source: {kind: file, path: pooled.pt2}\ninputs: {index: {shape: [n, 3]}}\n"
        "dims: {n: {min: 2, max: 9}}\n",
        encoding="utf-8",
    )
    done = build(folder, "model=means.yaml", "test")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    manifest = read_json(folder / "build/host/means/manifest.json")
    assert [port["name"] for port in manifest["outputs"]] == ["own", "others"]


def test_bags_of_embeddings_with_dynamic_sizes(folder: Path) -> None:
    done = build(folder, "model=nets:bags", "test")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "rows 1..6" in done.stdout and "n 4..20" in done.stdout


def test_operators_and_numbers_that_the_exporter_would_drop(folder: Path) -> None:
    passes(folder, "unconverted")


def test_an_archive_is_built_and_a_yaml_narrows_it(folder: Path) -> None:
    sys.path.insert(0, str(folder))
    import nets  # type: ignore[import-not-found]

    module, inputs, shapes = nets.dynamic_sizes()
    torch.export.save(torch.export.export(module.eval(), inputs, dynamic_shapes=shapes), folder / "net.pt2")
    (folder / "narrow.yaml").write_text(
        "source: {kind: file, path: net.pt2}\n"
        "inputs: {x: {shape: [n, 3, h, 8]}}\n"
        "dims: {n: {min: 1, max: 2}, h: {min: 8, max: 8}}\n",
        encoding="utf-8",
    )
    done = build(folder, "model=narrow.yaml", "test")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "n 1..2" in done.stdout


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("nothing", "returned nothing, expected: module, inputs or module, inputs, dynamic_shapes"),
        ("number", "returned a int first, expected: a torch.nn.Module"),
        ("arguments", "the inputs do not fit the module's forward: too many positional arguments"),
        ("sizes", "torch.export cannot export the module: RuntimeError: "),
        ("branch", "a branch or a shape depends on the values of a tensor"),
        ("branch", "nets.py:"),
        ("failing", "the function failed: ValueError: of two lines ("),
        ("training", "exported in training mode: it changes its buffer 'norm.running_mean' in each run"),
        ("unknown", "its exporter does not know the operator aten._linalg_svd.default"),
        ("silent", "the module returns no tensor; return the results in its forward"),
        ("endless", "dimension 'batch' (input 'input' axis 0) has no greatest size; give it with"),
    ],
)
def test_what_cannot_be_built_is_one_line(folder: Path, function: str, told: str) -> None:
    done = build(folder, f"model=nets:{function}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"kiln: error: nets:{function}: ") and done.stderr.count("\n") == 1, (
        done.stderr
    )
    assert told in done.stderr


def test_a_module_in_python(folder: Path) -> None:
    """kiln.build of a module: dynamic sizes, PyTorch's results, and the module as it was."""
    sys.path.insert(0, str(folder))
    import nets

    module, inputs, shapes = nets.dynamic_sizes()
    module.norm.eval()
    bundle = kiln.build(module, inputs, dynamic_shapes=shapes, name="by_python", folder=folder)
    assert (module.training, module.norm.training) == (True, False)
    net = bundle.load()
    assert {name: (dim.min, dim.max) for name, dim in net.dims.items()} == {
        "batch": (1, 4),
        "height": (4, 32),
    }
    x, mask = torch.randn(3, 3, 9, 8), torch.ones(3, 1)
    logits, features = net(x.numpy(), mask.numpy())
    with torch.no_grad():
        wanted = module.eval()(x, mask)
    np.testing.assert_allclose(logits, wanted["logits"].numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(features, wanted["features"].numpy(), rtol=1e-4, atol=1e-5)


def test_arguments_of_a_module_that_cannot_be_are_one_line(folder: Path) -> None:
    module, x = torch.nn.Linear(3, 2), torch.ones(1, 3)
    for args, message in (
        (None, "build: a torch.nn.Module needs example inputs: kiln.build(module, args)"),
        (3, "build: args is of type int, allowed: a tensor, a tuple or a dict of tensors"),
        ((x, x), "build: the inputs do not fit the module's forward: too many positional arguments"),
    ):
        with pytest.raises(kiln.KilnError) as raised:
            kiln.build(module, args, folder=folder)
        assert str(raised.value) == message


def test_outputs_of_an_archive_are_dropped_and_renamed(folder: Path) -> None:
    sys.path.insert(0, str(folder))
    import nets

    module, inputs, _ = nets.dynamic_sizes()
    torch.export.save(torch.export.export(module.eval(), inputs), folder / "whole.pt2")
    source = "source: {kind: file, path: whole.pt2}\n"
    (folder / "part.yaml").write_text(source + "cut: {outputs: {found: logits}}\n", encoding="utf-8")
    done = build(folder, "model=part.yaml", "test")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    manifest = read_json(folder / "build/host/part/manifest.json")
    assert [port["name"] for port in manifest["outputs"]] == ["found"]
    (folder / "part.yaml").write_text(source + "cut: {outputs: {found: logit}}\n", encoding="utf-8")
    done = build(folder, "model=part.yaml")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "part.yaml" in done.stderr or "whole.pt2: cut.outputs: no tensor is called 'logit'" in done.stderr


def test_a_part_with_an_inner_input_of_dynamic_size(folder: Path) -> None:
    """The part is built, compared tensor by tensor, quantised and evaluated."""
    content = """
source: {kind: python, function: "nets:dynamic_sizes"}
cut: {inputs: [relu], outputs: {found: logits}}
"""
    (folder / "inner.yaml").write_text(content, encoding="utf-8")
    done = build(folder, "model=inner.yaml", "test")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    manifest = read_json(folder / "build/host/inner/manifest.json")
    assert [port["shape"] for port in manifest["inputs"]] == [["batch", 1], ["batch", 8, "height", 8]]
    drawn = np.random.default_rng(0).random((20, 1, 8, 8, 8), np.float32)
    np.savez(folder / "data.npz", relu=drawn, mask=np.ones((20, 1, 1), np.float32))
    for words in (["compare"], ["quantise", "--data", "data.npz"], ["evaluate", "--data", "data.npz"]):
        command = [sys.executable, "-m", "kiln.command_line", words[0], "inner.yaml", *words[1:]]
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
    assert (folder / "inner_int8.onnx").is_file()
