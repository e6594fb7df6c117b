"""Functions of PyTorch with dynamic sizes as arguments, and sizes that may become 1."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.heavy
torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch onnxscript")
pytest.importorskip("onnxscript", reason="PyTorch's ONNX exporter is not installed: pip install onnxscript")
F: Any = torch.nn.functional


class Net(torch.nn.Module):
    """The results of functions of x [n, 3, h, w]."""

    def __init__(self, *functions: Callable[[Any], Any]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Any) -> Any:
        return [function(x) for function in self.functions]


def check(tmp_path: Path, net: Any, *sizes: tuple[int, int, int]) -> None:
    """Compare the ONNX file of `net` with PyTorch at the sizes (n, h, w)."""
    import onnxruntime
    from kiln.frontend.torch.export_stage import convert
    from kiln.frontend.torch.trace_stage import export

    ranges = {"n": (1, 3), "h": (3, 12), "w": (4, 12)}
    n, h, w = (torch.export.Dim(name, min=least, max=most) for name, (least, most) in ranges.items())
    path = tmp_path / "net.pt2"
    path.write_bytes(export("net", net, (torch.rand(2, 3, 7, 9),), ({0: n, 2: h, 3: w},)))
    session = onnxruntime.InferenceSession(convert(path), providers=["CPUExecutionProvider"])
    for number, height, width in sizes:
        x = torch.from_numpy(np.random.default_rng(0).random((number, 3, height, width), np.float32))
        expected = torch.utils._pytree.tree_leaves(net(x))
        results = session.run(None, {"x": x.numpy()})
        for index, (result, value) in enumerate(zip(results, expected, strict=True)):
            assert result.dtype == value.detach().numpy().dtype, index
            np.testing.assert_allclose(result, value.detach(), rtol=1e-5, atol=1e-6, err_msg=str(index))


def matrix(x: Any, rows: int) -> Any:
    return torch.eye(rows, rows + 1).expand(x.shape[0], rows, rows + 1) * 0.7


def test_dynamic_sizes_are_arguments(tmp_path: Path) -> None:
    numbers = Net(
        lambda x: torch.linspace(0.5, x.shape[2] - 0.5, x.shape[2]),
        lambda x: torch.linspace(-1, 1, steps=x.shape[0], dtype=torch.float64),
        lambda x: (torch.fft.fftfreq(x.shape[3]), torch.fft.rfftfreq(x.shape[2], 0.5)),
        lambda x: torch.as_tensor([x.shape[2:], (x.shape[0], 5)]),
        lambda x: (x.new_tensor([x.shape[2], 2]), torch.as_tensor([x.shape[2] * 0.5, 1])),
        lambda x: F.one_hot(x[:, :, 0].argmax(-1), x.shape[3]),
        lambda x: F.affine_grid(matrix(x, 2), x.shape, align_corners=False),
        lambda x: F.affine_grid(matrix(x, 3), (x.shape[0], 1, 2, *x.shape[2:]), align_corners=True),
        lambda x: (torch.kron(x[0, 0], torch.eye(2)), torch.kron(x[0], x[0, 1])),
        lambda x: torch.take_along_dim(x, x.argmax(-1, keepdim=True)[:, :1], -1),
        lambda x: (x.repeat_interleave(x.shape[2], 0), x.repeat_interleave(x.shape[0], -1)),
        lambda x: x[:, 0, 0].repeat_interleave(x.shape[2]),
    )
    check(tmp_path, numbers, (1, 3, 4), (2, 6, 9), (3, 12, 5))


def test_poolings_of_dynamic_axes(tmp_path: Path) -> None:
    pools = Net(
        lambda x: (F.avg_pool2d(x, x.shape[2:]), F.avg_pool2d(x, (x.shape[2], 2), stride=(2, 1))),
        lambda x: (F.max_pool2d(x, (2, x.shape[3])), F.max_pool2d(x, kernel_size=x.size()[2:])),
        lambda x: (F.max_pool1d(x[:, 0], 3, 2, 1, ceil_mode=True), F.max_pool1d(x[0], x.shape[3])),
        lambda x: (torch.nn.MaxPool1d(2)(x[0]), F.avg_pool1d(x[0], x.shape[3])),
        lambda x: (F.adaptive_max_pool2d(x, 1), F.adaptive_max_pool2d(x, (3, 2), return_indices=True)),
        lambda x: F.adaptive_max_pool1d(x[0], 3),
    )
    check(tmp_path, pools, (1, 3, 4), (2, 6, 9), (3, 12, 5))


def test_results_with_one_element_for_some_sizes(tmp_path: Path) -> None:
    """PyTorch traces them for more than one element, and refuses the sizes for which they have one."""
    weight = torch.rand(2, 3, 3, 4)
    nets = Net(
        lambda x: F.conv2d(x, weight, stride=2).mean((2, 3)),
        lambda x: (x.unfold(2, 3, 2), x.diff(n=2, dim=2), x[:, :, : min(5, x.shape[2])]),
        lambda x: F.max_pool2d(x, 3, return_indices=True),
    )
    check(tmp_path, nets, (1, 3, 4), (2, 6, 9), (3, 12, 5))


def test_an_axis_that_is_squeezed_must_not_become_one(tmp_path: Path) -> None:
    from kiln.errors import KilnError

    with pytest.raises(KilnError, match=r"does not take all sizes of h; .* guard .*x.shape\[2\]\) != 1"):
        check(tmp_path, Net(lambda x: x[:, :, 2:].squeeze(2).sum(0)))


def test_causal_masks_of_layers_that_search_for_them(tmp_path: Path) -> None:
    class Decoder(torch.nn.Module):
        """A decoder that is given its mask alone."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Transformer(3, 1, 1, 1, 8, batch_first=True)

        def forward(self, x: Any) -> Any:
            rows = x[..., 0].transpose(1, 2)
            mask = torch.nn.Transformer.generate_square_subsequent_mask(rows.shape[1])
            return [self.layers(rows, rows, tgt_mask=mask), self.layers.encoder(rows, mask=mask)]

    check(tmp_path, Decoder().eval(), (1, 3, 4), (2, 6, 9))
