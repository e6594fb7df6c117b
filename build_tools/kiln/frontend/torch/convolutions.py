"""Convolutions whose number of groups is a dynamic size: each image of a batch has kernels of its own.

A program writes these as one image of all channels, with a group for each image: `x.view(1, batch * c, h, w)`
with `groups=batch`. ONNX stores the number of groups as a constant. Here a product of matrices for each place
of the kernel, one matrix for each group, is added to the others. The other convolutions stay those of
PyTorch's exporter, with a bias of zeros where they have none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln.frontend.torch.onnx_steps import ints, like
from kiln.frontend.torch.present import aten as own_operators

_FAR = 2**31 - 1  # the end of a Slice that leaves nothing out


def convolutions() -> Mapping[Any, Callable[..., Any]]:
    """The operators of this module, for torch.onnx.export's `custom_translation_table`."""
    from onnxscript.function_libs.torch_lib.ops import core

    aten = own_operators()
    return {
        aten.conv1d.default: _of(core.aten_conv1d),
        aten.conv2d.default: _of(core.aten_conv2d),
        aten.conv3d.default: _of(core.aten_conv3d),
    }


def _of(own: Callable[..., Any]) -> Callable[..., Any]:
    """A convolution that PyTorch's exporter converts by `own`, unless its groups are a dynamic size."""

    def convolution(
        input: Any,  # noqa: A002 (the name in PyTorch's schema)
        weight: Any,
        bias: Any = None,
        stride: Sequence[int] = (1,),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        groups: Any = 1,
    ) -> Any:
        rank = len(weight.shape) - 2
        stride, padding, dilation = (
            list(values) * (rank // len(values)) for values in (stride, padding, dilation)
        )
        if isinstance(groups, int):
            if bias is None:  # the exporter's own zeros of a 3-D convolution have the shape [outputs, 2]
                from onnxscript import opset18 as op

                bias = op.Expand(like(0, input), op.Shape(weight, end=1))
            return own(input, weight, bias, stride, padding, dilation, groups)
        if len(input.shape) > rank + 1:
            return of_any_groups(input, weight, bias, stride, padding, dilation, groups)
        from onnxscript import opset18 as op

        one = op.Unsqueeze(input, ints(0))  # an image without the axis of the batch
        return op.Squeeze(of_any_groups(one, weight, bias, stride, padding, dilation, groups), ints(0))

    return convolution


def of_any_groups(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: Any,
) -> Any:
    """The convolution of x [n, groups * c, …] with weight [groups * o, c, …], whose last axes are fixed.

    stride, padding, dilation: one number for each of the last axes; groups: a tensor of no axes.
    """
    from onnxscript import opset18 as op

    kernel = list(weight.shape)[2:]
    if not all(isinstance(size, int) for size in kernel):
        raise ValueError("a convolution whose groups and kernel are dynamic sizes; fix one of them")
    padded = op.Pad(x, ints(0, 0, *padding, 0, 0, *padding)) if any(padding) else x
    axes = ints(*range(2, 2 + len(kernel)))
    count, channels = op.Reshape(groups, ints(-1)), op.Shape(weight, start=1, end=2)
    parts = op.Concat(op.Shape(x, end=1), count, channels, ints(-1), axis=0)
    matrices = op.Concat(count, ints(-1), channels, axis=0)
    total = shape = None
    for place in itertools.product(*map(range, kernel)):
        left = [step * (size - 1 - at) for step, size, at in zip(dilation, kernel, place, strict=True)]
        begin = ints(*(step * at for step, at in zip(dilation, place, strict=True)))
        window = op.Slice(padded, begin, ints(*(-far or _FAR for far in left)), axes, ints(*stride))
        if shape is None:
            sizes = op.Shape(window, start=2)
            shape = op.Concat(op.Shape(x, end=1), op.Shape(weight, end=1), sizes, axis=0)
        values = op.Reshape(window, parts)
        ends = ints(*(at + 1 for at in place))
        taken = op.Reshape(op.Slice(weight, ints(*place), ends, axes), matrices)
        product = op.MatMul(taken, values)
        total = product if total is None else op.Add(total, product)
    total = op.Reshape(total, shape)
    if bias is None:
        return total
    return op.Add(total, op.Reshape(bias, ints(1, -1, *(1 for _ in kernel))))
