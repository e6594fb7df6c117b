"""Programs whose numbers, such as a factor or a shift, are dynamic sizes, as programs of other operators.

PyTorch's exporter stores these numbers as attributes: it fails, or, for adaptive pools, takes the numbers of
the example that the program was exported with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kiln.frontend.torch.library import graphs_of
from kiln.frontend.torch.present import aten as own_operators
from kiln.frontend.torch.present import present


def without_dynamic_numbers(program: Any) -> Any:
    """`program`, an ExportedProgram, with other operators in place of those with a dynamic size as a number.

    The program itself where it has none.
    """
    rules = present(_rules(own_operators()))
    found = {
        node.target
        for graph in graphs_of(program)
        for node in graph.nodes
        if node.op == "call_function" and node.target in rules and _has_number(node)
    }
    if not found:
        return program
    try:
        return program.run_decompositions({target: _rule(rules[target]) for target in found})
    except Exception:  # PyTorch cannot trace some programs again; the exporter says what it does not know
        return program


def _has_number(node: Any) -> bool:
    """Whether a call may have a dynamic number: one among its arguments, or a size of its first one."""
    import torch

    leaves = torch.utils._pytree.tree_leaves((node.args, node.kwargs))
    values = [leaf.meta.get("val") for leaf in leaves if isinstance(leaf, torch.fx.Node)]
    return any(isinstance(value, (torch.SymInt, torch.SymFloat)) for value in values) or (
        "adaptive_avg_pool" in str(node.target) and _is_dynamic(values[0])
    )


def _is_dynamic(tensor: Any) -> bool:
    return not all(isinstance(size, int) for size in tensor.shape)


def _rule(rule: Callable[..., Any]) -> Callable[..., Any]:
    """`rule` for calls with a dynamic number or of a dynamic size, PyTorch's own way for others."""
    import torch

    def applied(*arguments: Any, **keywords: Any) -> Any:
        leaves = torch.utils._pytree.tree_leaves((arguments, keywords))
        dynamic = any(
            isinstance(leaf, (torch.SymInt, torch.SymFloat))
            or (isinstance(leaf, torch.Tensor) and _is_dynamic(leaf))
            for leaf in leaves
        )
        return rule(*arguments, **keywords) if dynamic else NotImplemented

    return applied


def _rules(aten: Any) -> Mapping[Any, Callable[..., Any]]:
    """By operator of PyTorch, a function of the same arguments."""
    return {
        aten.addcmul.default: lambda x, a, b, value=1: x + a * b * value,
        aten.addcdiv.default: lambda x, a, b, value=1: x + a / b * value,
        aten.addmm.default: lambda x, a, b, beta=1, alpha=1: _sum(x, a.matmul(b), beta, alpha),
        aten.addmv.default: lambda x, a, b, beta=1, alpha=1: _sum(x, a.matmul(b), beta, alpha),
        aten.addbmm.default: lambda x, a, b, beta=1, alpha=1: _sum(x, a.matmul(b).sum(0), beta, alpha),
        aten.leaky_relu.default: _leaky_relu,
        aten.elu.default: _elu,
        aten.celu.default: lambda x, alpha=1.0: _elu(x, alpha, 1, 1 / alpha),
        aten.softplus.default: _softplus,
        aten.hardtanh.default: lambda x, low=-1, high=1: x.clamp(low, high),
        aten.scatter.value: _scatter_value,
        aten.roll.default: _roll,
        aten.adaptive_avg_pool1d.default: _adaptive_avg_pool,
        aten.adaptive_avg_pool2d.default: _adaptive_avg_pool,
        aten._adaptive_avg_pool2d.default: _adaptive_avg_pool,
        aten.adaptive_avg_pool3d.default: _adaptive_avg_pool,
        aten._adaptive_avg_pool3d.default: _adaptive_avg_pool,
    }


def _sum(x: Any, product: Any, beta: Any, alpha: Any) -> Any:
    return x * beta + product * alpha


def _leaky_relu(x: Any, negative_slope: Any = 0.01) -> Any:
    import torch

    return torch.where(x > 0, x, x * negative_slope)


def _elu(x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    import torch

    return torch.where(x > 0, x * scale, (x * input_scale).expm1() * alpha * scale)


def _softplus(x: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    import torch

    scaled = x * beta
    return torch.where(scaled > threshold, x, scaled.exp().log1p() / beta)


def _scatter_value(x: Any, dim: int, index: Any, value: Any) -> Any:
    return x.scatter(dim, index, x.new_zeros(()).add(value).to(x.dtype).expand(index.shape))


def _roll(x: Any, shifts: Any, dims: Any = ()) -> Any:
    import torch

    if not dims:
        return _roll(x.reshape(-1), shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        x = x.index_select(dim, torch.remainder(torch.arange(size, device=x.device) - shift, size))
    return x


def _adaptive_avg_pool(x: Any, output_size: Any) -> Any:
    """The means of equal parts of the last axes, by products with a matrix along each of them.

    Part i of m of an axis of n elements goes from floor(i n / m) to ceil((i + 1) n / m). Elements are finite.
    """
    import torch

    for place, parts in enumerate(output_size):
        axis = place - len(output_size)
        size = x.shape[axis]
        if parts is size:
            continue
        if isinstance(parts, int) and parts == 1:
            x = x.mean(axis, keepdim=True)
            continue
        part = torch.arange(parts, device=x.device).unsqueeze(1)
        begin, end = part * size // parts, ((part + 1) * size + parts - 1) // parts
        position = torch.arange(size, device=x.device)
        inside = (position >= begin) & (position < end)
        x = x.movedim(axis, -1) @ (inside.to(x.dtype) / (end - begin)).to(x.dtype).transpose(0, 1)
        x = x.movedim(-1, axis)
    return x
