"""Einsum as matmuls, for which there are kernels; TVM would convert it to an opaque loop nest.

A label that an operand has several times takes its diagonal. Operands are multiplied in pairs from the left.
A pair with letters that nothing reads later is a matmul: the letters of both that stay are its batch, the
summed ones its depth. Other pairs are multiplied elementwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, relax, te

from kiln.extents import Extent, is_one, shape_of
from kiln.frontend.onnx.node import Node, shape_expr
from kiln.frontend.symbols import int64_of

op = relax.op


class _Term:
    """A tensor, and a letter for each of its axes."""

    def __init__(self, tensor: Any, letters: str) -> None:
        self.tensor, self.letters = tensor, letters
        self.sizes = dict(zip(letters, shape_of(tensor), strict=True))

    @property
    def is_constant(self) -> bool:
        return isinstance(self.tensor, ir.GenericConst)


def einsum(node: Node) -> Any:
    """Einsum. Raises ValueError for an equation that does not fit its operands."""
    tensors = [node.tensor(index) for index in range(len(node.inputs))]
    equation = node.text("equation", "").replace(" ", "")
    letters, result = _parsed_equation(equation, [len(shape_of(tensor)) for tensor in tensors])
    terms = _broadcast(
        node, [_diagonal(node, tensor, axes) for tensor, axes in zip(tensors, letters, strict=True)]
    )
    products = _Products(node)
    terms = [
        products.summed(term, result + "".join(other.letters for other in terms[:index] + terms[index + 1 :]))
        for index, term in enumerate(terms)
    ]
    while len(terms) > 1:
        read_later = result + "".join(term.letters for term in terms[2:])
        terms = [products.product(terms[0], terms[1], read_later), *terms[2:]]
    return products.ordered(products.summed(terms[0], result), result).tensor


def _parsed_equation(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The letters of each operand and of the result, an ellipsis written out.

    Raises ValueError for another number of operands or axes, and for a result with repeated or new labels.
    """
    inputs, arrow, result = equation.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"equation '{equation}' has {len(terms)} operands, and the node has {len(ranks)}")
    spare = [chr(number) for number in range(0x100, 0x180)]  # letters that no equation contains
    letters, most = [], 0
    for index, (text, rank) in enumerate(zip(terms, ranks, strict=True)):
        count = rank - len(text.replace("...", ""))
        if count < 0 or (count and "..." not in text):
            raise ValueError(
                f"operand {index} has {rank} axes, which labels '{text}' of '{equation}' do not fit"
            )
        letters.append(text.replace("...", "".join(spare[64 - count : 64])))
        most = max(most, count)
    of_operands = "".join(letters)
    if not arrow:
        once = sorted(
            letter for letter in set(of_operands) if of_operands.count(letter) == 1 and letter.isascii()
        )
        result = "..." * (most > 0) + "".join(once)
    result = result.replace("...", "".join(spare[64 - most : 64]))
    if len(set(result)) < len(result) or not set(result) <= set(of_operands):
        raise ValueError(f"the result of '{equation}' has a label twice, or one that no operand has")
    return letters, result


def _diagonal(node: Node, tensor: Any, letters: str) -> _Term:
    """The term of an operand: its diagonal along the axes that share a letter."""
    distinct, shape = "".join(dict.fromkeys(letters)), shape_of(tensor)
    if distinct == letters:
        return _Term(tensor, letters)
    sizes: dict[str, Extent] = {}
    for letter, size in zip(letters, shape, strict=True):
        if not node.symbols.equal(sizes.setdefault(letter, size), size):
            shown = " and ".join(str(node.symbols.shown(one)) for one in (sizes[letter], size))
            raise ValueError(f"axes of label '{letter}' have sizes {shown}, allowed: one size")

    def compute(x: Any) -> Any:
        def element(*indices: Any) -> Any:
            at = dict(zip(distinct, indices, strict=True))
            return x(*(at[letter] for letter in letters))

        return te.compute([int64_of(sizes[letter]) for letter in distinct], element, name="diagonal")

    return _Term(node.builder.emit_te(compute, tensor, primfunc_name_hint="diagonal"), distinct)


def _broadcast(node: Node, terms: Sequence[_Term]) -> list[_Term]:
    """The terms without axes of one element that repeat for a longer axis of another term.

    Raises ValueError for axes of the same letter whose sizes differ in a run.
    """
    sizes: dict[str, Extent] = {}
    for term in terms:
        for letter, size in term.sizes.items():
            known = sizes.setdefault(letter, size)
            if is_one(known):
                sizes[letter] = size
            elif not is_one(size) and not node.symbols.equal(known, size):
                label = f"label '{letter}'" if letter.isascii() else "the ellipsis"
                raise ValueError(
                    f"axes of {label} have sizes {node.symbols.shown(known)} and {node.symbols.shown(size)}, "
                    "allowed: one size, and 1 for an axis that repeats; Expand the shorter operand first"
                )
    results = []
    for term in terms:
        repeated = [
            axis
            for axis, letter in enumerate(term.letters)
            if is_one(term.sizes[letter]) and not is_one(sizes[letter])
        ]
        rest = "".join(letter for axis, letter in enumerate(term.letters) if axis not in repeated)
        tensor = node.builder.emit(op.squeeze(term.tensor, repeated)) if repeated else term.tensor
        results.append(_Term(tensor, rest))
    return results


class _Products:
    """Relax expressions of parts of an Einsum."""

    def __init__(self, node: Node) -> None:
        self.emit: Callable[[Any], Any] = node.builder.emit
        self.product_of = node.symbols.product

    def ordered(self, term: _Term, letters: str) -> _Term:
        """The term with its axes in the order of `letters`, a permutation of its own."""
        if term.letters == letters:
            return term
        order = [term.letters.index(letter) for letter in letters]
        return _Term(self.emit(op.permute_dims(term.tensor, order)), letters)

    def summed(self, term: _Term, result_letters: str) -> _Term:
        """The term without the letters that are not in `result_letters`."""
        axes = [axis for axis, letter in enumerate(term.letters) if letter not in result_letters]
        if not axes:
            return term
        remaining = "".join(letter for letter in term.letters if letter in result_letters)
        return _Term(self.emit(op.sum(term.tensor, axes)), remaining)

    def product(self, left: _Term, right: _Term, result_letters: str) -> _Term:
        """The product of two terms, summed over their common letters that are not in `result_letters`."""
        common = [letter for letter in left.letters if letter in right.letters]
        batch = "".join(letter for letter in common if letter in result_letters)
        depth = "".join(letter for letter in common if letter not in result_letters)
        rows = "".join(letter for letter in left.letters if letter not in common)
        columns = "".join(letter for letter in right.letters if letter not in common)
        if not depth or not (rows or columns):
            letters = batch + depth + rows + columns
            factors = [self._with_missing_axes(term, letters) for term in (left, right)]
            return self.summed(_Term(self.emit(op.multiply(*factors)), letters), result_letters)
        if left.is_constant and not right.is_constant:  # the right operand is the one that is packed
            left, right, rows, columns = right, left, columns, rows
        sizes = {**left.sizes, **right.sizes}
        groups = [*batch, rows] if batch else [*rows]
        a = self._grouped(left, [*groups, depth])
        b = self._grouped(right, [*batch, depth, columns])
        letters = batch + rows + columns
        result = self.emit(op.matmul(a, b))
        if any(len(group) != 1 for group in [*groups, columns]):
            result = self.emit(op.reshape(result, shape_expr([sizes[letter] for letter in letters])))
        return _Term(result, letters)

    def _grouped(self, term: _Term, groups: Sequence[str]) -> Any:
        """The tensor with an axis for each group of letters; an empty group becomes an axis of size 1."""
        ordered = self.ordered(term, "".join(groups))
        if all(len(group) == 1 for group in groups):
            return ordered.tensor
        shape = [self.product_of([term.sizes[letter] for letter in group]) for group in groups]
        return self.emit(op.reshape(ordered.tensor, shape_expr(shape)))

    def _with_missing_axes(self, term: _Term, letters: str) -> Any:
        """The tensor with axes in the order of `letters`, of size 1 for letters that it lacks."""
        ordered = self.ordered(term, "".join(letter for letter in letters if letter in term.letters))
        missing = [axis for axis, letter in enumerate(letters) if letter not in term.letters]
        return self.emit(op.expand_dims(ordered.tensor, missing)) if missing else ordered.tensor
