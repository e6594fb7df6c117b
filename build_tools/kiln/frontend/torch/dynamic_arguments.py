"""Functions of PyTorch that make a constant of a dynamic size, composed of others that do not.

An operator's schema has some arguments as `int`, not as `SymInt`: the steps of linspace, the kernel of a
pooling, the classes of one_hot. torch.export gives them the size of the example, and then refuses all others.
Inside `dynamic_arguments`, such calls are composed of operators that take dynamic sizes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kiln.frontend.torch import dynamic_functions, dynamic_pools


@contextlib.contextmanager
def dynamic_arguments() -> Iterator[None]:
    """Compose, inside the block, the functions in `_functions` where an argument or a shape is dynamic."""
    from torch.overrides import TorchFunctionMode

    own = _functions()

    class Composed(TorchFunctionMode):  # type: ignore[misc,unused-ignore]  # PyTorch may be missing
        """Each call of a function of PyTorch goes to Kiln's, unless this returns NotImplemented."""

        def __torch_function__(
            self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            named = kwargs or {}
            result = own[function](*args, **named) if function in own else NotImplemented
            return function(*args, **named) if result is NotImplemented else result

    with Composed():
        yield


def _functions() -> Mapping[Any, Callable[..., Any]]:
    """Kiln's functions by those of PyTorch, with the same arguments; NotImplemented: call PyTorch's."""
    import torch
    from torch.nn import functional

    average, extreme = dynamic_pools.averages, dynamic_pools.extremes
    greatest = functional.max_pool1d, functional.max_pool2d, functional.max_pool3d
    pools = {
        **{pool: extreme(axes, pool) for axes, pool in enumerate(greatest, 1)},
        torch.max_pool1d: extreme(1, torch.max_pool1d),
        torch.max_pool2d: extreme(2, torch.max_pool2d),
        torch.max_pool3d: extreme(3, torch.max_pool3d),
        functional.avg_pool1d: average(1, functional.avg_pool1d),
        functional.avg_pool2d: average(2, functional.avg_pool2d),
        functional.avg_pool3d: average(3, functional.avg_pool3d),
    }
    return {
        **pools,
        torch.linspace: dynamic_functions.linspace,
        torch.fft.fftfreq: dynamic_functions.fftfreq,
        torch.fft.rfftfreq: dynamic_functions.rfftfreq,
        torch.as_tensor: dynamic_functions.as_tensor,
        torch.Tensor.new_tensor: dynamic_functions.new_tensor,
        functional.one_hot: dynamic_functions.one_hot,
        functional.affine_grid: dynamic_functions.affine_grid,
        torch.kron: dynamic_functions.kron,
        torch.Tensor.kron: dynamic_functions.kron,
        torch.take_along_dim: dynamic_functions.take_along_dim,
        torch.Tensor.take_along_dim: dynamic_functions.take_along_dim,
    }
