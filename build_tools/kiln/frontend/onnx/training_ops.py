"""Optimisers of the domain ai.onnx.preview.training, which are arithmetic: a step of training on the device.

Inputs: the learning rate, the number of updates before (int64), and for each of n tensors the tensor, its
gradient and the values that the optimiser keeps, each group of n together. Outputs: the new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kiln.frontend.onnx.body import Body, Expansion

# (body, learning rate, number of updates, [tensor, gradient, kept values …]) → [new tensor, new values …]
Update = Callable[[Body, str, str, Sequence[str]], list[str]]


def _for_each_tensor(update: Update, states: int) -> Expansion:
    """The expansion of an optimiser that keeps `states` values for each tensor."""

    def expand(body: Body) -> list[str]:
        names, width = list(body.node.input[2:]), 2 + states
        if not names or len(names) % width or not all(names):
            raise ValueError(f"it has {len(names)} tensors, allowed: {width} for each that is trained")
        count = len(names) // width
        results = [update(body, body.input(0), body.input(1), names[index::count]) for index in range(count)]
        return [result[output] for output in range(1 + states) for result in results]

    return expand


def _regularised(body: Body, x: str, gradient: str) -> str:
    """The gradient plus the gradient of the L2 norm of the tensor, norm_coefficient * x."""
    factor = body.like(x, float(body.attribute("norm_coefficient", 0.0)))
    return body.op("Add", body.op("Mul", factor, x), gradient)


def momentum(body: Body, rate: str, count: str, tensors: Sequence[str]) -> list[str]:
    """Momentum, standard or Nesterov's; the first gradient counts in full."""
    x, gradient, velocity = tensors
    alpha, beta = (body.like(x, float(body.required(name))) for name in ("alpha", "beta"))
    mode = body.only("mode", "standard", "nesterov")
    gradient = _regularised(body, x, gradient)
    is_not_first = body.op("Greater", count, body.like(count, 0))
    share = body.op("Where", is_not_first, beta, body.like(x, 1.0))
    new = body.op("Add", body.op("Mul", alpha, velocity), body.op("Mul", share, gradient))
    step = new if mode == "standard" else body.op("Add", gradient, body.op("Mul", alpha, new))
    return [body.op("Sub", x, body.op("Mul", rate, step)), new]


def adagrad(body: Body, rate: str, count: str, tensors: Sequence[str]) -> list[str]:
    """Adagrad: the rate of an element falls with the sum of its squared gradients."""
    x, gradient, squares = tensors
    decay, epsilon = (
        body.like(x, float(body.attribute(n, d))) for n, d in (("decay_factor", 0.0), ("epsilon", 0.0))
    )
    unit = body.like(x, 1.0)
    updates = body.cast(count, body.dtype(x))
    rate = body.op("Div", rate, body.op("Add", unit, body.op("Mul", updates, decay)))
    gradient = _regularised(body, x, gradient)
    new = body.op("Add", squares, body.op("Mul", gradient, gradient))
    step = body.op("Div", body.op("Mul", rate, gradient), body.op("Add", body.op("Sqrt", new), epsilon))
    return [body.op("Sub", x, step), new]


def adam(body: Body, rate: str, count: str, tensors: Sequence[str]) -> list[str]:
    """Adam, with the correction of both means' bias from the second update on."""
    x, gradient, mean, squares = tensors
    defaults = {"alpha": 0.9, "beta": 0.999, "epsilon": 0.0, "norm_coefficient_post": 0.0}
    alpha, beta, epsilon, shrink = (float(body.attribute(name, value)) for name, value in defaults.items())

    def const(value: float) -> str:
        return body.like(x, value)

    def mixed(old: str, new: str, share: float) -> str:
        return body.op("Add", body.op("Mul", const(share), old), body.op("Mul", const(1 - share), new))

    gradient = _regularised(body, x, gradient)
    mean = mixed(mean, gradient, alpha)
    squares = mixed(squares, body.op("Mul", gradient, gradient), beta)
    updates = body.cast(count, body.dtype(x))
    corrections = [
        body.op("Sub", const(1.0), body.op("Pow", const(share), updates)) for share in (beta, alpha)
    ]
    updates_known = body.constant(count)
    if updates_known is None or int(updates_known.reshape(-1)[0]) > 0:
        is_not_first = body.op("Greater", count, body.like(count, 0))
        divisor = body.op("Where", is_not_first, corrections[1], const(1.0))
        corrected = body.op("Div", body.op("Mul", rate, body.op("Sqrt", corrections[0])), divisor)
        rate = body.op("Where", is_not_first, corrected, rate)
    step = body.op("Div", mean, body.op("Add", body.op("Sqrt", squares), const(epsilon)))
    new = body.op("Sub", x, body.op("Mul", rate, step))
    return [body.op("Mul", const(1 - shrink), new), mean, squares]


OPTIMISERS: dict[str, Expansion] = {
    "Adagrad": _for_each_tensor(adagrad, 1),
    "Adam": _for_each_tensor(adam, 2),
    "Momentum": _for_each_tensor(momentum, 1),
}
