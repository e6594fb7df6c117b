"""Alignment of axes: atoms regrouped to another shape, and the operands of a broadcasting call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kiln.specialize.padding.sizes import Size, Sizes
from kiln.specialize.padding.tensors import Atom, Axis, NotNeutralError, Padded, Region


def regrouped(atoms: Sequence[Atom], result_sizes: Sequence[Size], sizes: Sizes) -> list[Axis]:
    """Regroup the atoms of a tensor into axes of the sizes `result_sizes`, as a reshape does.

    An atom may be split. A padded atom may only be split into a padded outer factor and a fixed inner factor,
    as its kept part must remain the leading part. Raises NotNeutralError where no such regrouping exists.
    """
    remaining = _coalesced(atoms, sizes)
    axes: list[Axis] = []
    for size in result_sizes:
        axis: list[Atom] = []
        unmatched = sizes.simplify(size)
        while not sizes.equal(unmatched, 1):
            if not remaining:
                raise NotNeutralError("the proof cannot follow its shapes")
            first = remaining.pop(0)
            if sizes.equal(first.size, unmatched):
                axis.append(first)
                break
            if (count := _quotient(unmatched, first.size, sizes)) is not None:
                axis.append(first)
                unmatched = count
            elif (count := _quotient(first.size, unmatched, sizes)) is not None and (
                not first.padded or (isinstance(count, int) and sizes.depends(unmatched))
            ):
                axis.append(replace(first, size=unmatched))
                remaining.insert(0, Atom(count))
                break
            elif first.padded:
                raise NotNeutralError(
                    f"it splits the padded axis of size {first.size}, and the padding does not stay last"
                )
            else:
                raise NotNeutralError(
                    f"the proof cannot follow its shapes: {first.size} elements become {unmatched}"
                )
        axes.append(tuple(axis))
    return axes


def _quotient(whole: Size, part: Size, sizes: Sizes) -> Size | None:
    """whole / part, if the quotient is an integer for every size of the bucket, else None."""
    if isinstance(whole, int) and isinstance(part, int):
        return whole // part if part > 0 and whole % part == 0 else None
    count = sizes.simplify(whole // part)
    return count if sizes.equal(sizes.simplify(count * part), whole) and not sizes.equal(count, 0) else None


def _coalesced(atoms: Sequence[Atom], sizes: Sizes) -> list[Atom]:
    """Merge adjacent atoms that are not padded, and drop atoms of size 1 that are not padded."""
    merged: list[Atom] = []
    for atom in atoms:
        if merged and not atom.padded and not merged[-1].padded:
            merged[-1] = Atom(sizes.simplify(merged[-1].size * atom.size))
        elif atom.padded or not sizes.equal(atom.size, 1):
            merged.append(atom)
    return merged


class Operands:
    """The operands of a call, aligned by NumPy's broadcasting.

    axes: axes of the result, with new atoms. `region(i, r)`: the region of operand i that is read to compute
    region r of the result. Raises NotNeutralError where the factors of two operands' axes differ.
    """

    def __init__(self, operands: Sequence[Padded], sizes: Sizes) -> None:
        rank = max((len(operand.axes) for operand in operands), default=0)
        self._maps: list[dict[int, int]] = [{} for _ in operands]
        self.axes: list[Axis] = []
        for position in range(rank):
            present = [
                (index, operand.axes[position - rank + len(operand.axes)])
                for index, operand in enumerate(operands)
                if position - rank + len(operand.axes) >= 0
            ]
            self.axes.append(self._axis([(i, axis) for i, axis in present if axis], sizes))

    def _axis(self, present: Sequence[tuple[int, Axis]], sizes: Sizes) -> Axis:
        if not present:
            return ()
        finest = max((axis for _, axis in present), key=len)
        axis = sizes.like(finest)
        for index, operand_axis in present:
            groups = regrouped(operand_axis, [atom.size for atom in axis], sizes)
            for atom, group in zip(axis, groups, strict=True):
                if len(group) != 1 or group[0].padded != atom.padded:
                    raise NotNeutralError("reshapes have merged the axes of its operands differently")
                if atom.key is not None and group[0].key is not None:
                    self._maps[index][atom.key] = group[0].key
        return axis

    def region(self, index: int, region: Region) -> Region:
        """The region of operand `index` that corresponds to `region` of the result."""
        own: Mapping[int, int] = self._maps[index]
        return frozenset(own[key] for key in region if key in own)
