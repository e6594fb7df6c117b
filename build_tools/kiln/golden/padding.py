"""Measured padding: a second check after the proof (kiln.specialize.padding), or a replacement for it.

1. For every test case of a pad bucket the reference runs twice: on the exact inputs, and on inputs padded up
   to the bucket's size with the fill values of padding.json. The padded outputs, cut to their exact shapes,
   must agree with the exact outputs within the model's tolerance.
2. Where the YAML has `assume: measured`, the same comparison runs on adversarial data
   (`kiln.golden.adversarial`).
3. If the outputs do not agree, each padded dimension is padded alone, to find the dimension that causes the
   difference, and the first operator whose result changes is searched (`kiln.golden.trace`).

Padding changes a mean, a softmax, a norm or an attention over a padded axis, a second convolution at the
border and a reversed sequence, unless a mask input of the model makes the padding neutral.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kiln.arrays import Array
from kiln.config import sizes
from kiln.config.boxes import Box
from kiln.config.interface import Interface, PortRecord
from kiln.config.model import Tensor
from kiln.config.padding import MEASURED, PaddingProof, given_fill
from kiln.errors import KilnError
from kiln.golden.adversarial import attacks
from kiln.golden.cases import GoldenCase
from kiln.golden.compare import Comparison, compare, limits_for
from kiln.golden.reference_base import Reference
from kiln.golden.sample_sizes import Sizes
from kiln.golden.trace import first_to_differ
from kiln.specialize.padding.fill_values import typed_fill


def padded_sizes(bucket: Box, sizes: Mapping[str, int]) -> Sizes:
    """`sizes`, with each dimension that the bucket pads at the size that its kernels compute."""
    padded = {name: segment.size for name, segment in bucket.padded.items()}
    return {name: padded.get(name) or size for name, size in sizes.items()}


def share_of_padding(exact: Mapping[str, float], padded: Mapping[str, int]) -> float:
    """The share of padding among the elements of a tensor with all padded dimensions: 0.25 for 48 of 64."""
    share = 1.0
    for name, size in padded.items():
        share *= exact[name] / size
    return 1.0 - share


@dataclass(frozen=True)
class _PaddedRun:
    """A run of the reference with padding: the inputs `exact` of `test`, padded to the sizes `target`.

    `want`: the outputs without padding. `fill`: the fill value of each input. `data`: name of adversarial
    data; empty for the inputs of the test case itself.
    """

    test: GoldenCase
    target: Sizes
    exact: Sequence[Array]
    want: Sequence[Array]
    fill: Mapping[str, Any]
    data: str = ""


@dataclass
class PaddingChecks:
    """Checks every vector of the buckets that pad, and collects the results for padding.json.

    `ports`: by input, its entry in the model's configuration. `tolerance`: limits of the outputs' errors.
    `proofs`: by name of bucket, from the stage `padding`.
    """

    ports: Mapping[str, Tensor]
    tolerance: Mapping[str, Any]
    source: Path
    interface: Interface
    reference: Reference
    masks: Sequence[str]
    proofs: Mapping[str, PaddingProof] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._checked: dict[str, list[dict[str, Any]]] = {}
        self._names = [port.name for port in self.interface.inputs]

    def check(self, test: GoldenCase, bucket: Box, exact: Sequence[Array], want: Sequence[Array]) -> None:
        """Compare the outputs `want` of the test case with the outputs for padded inputs.

        Raises KilnError if an output changes.
        """
        if not bucket.padded:
            return
        target = padded_sizes(bucket, test.sizes)
        fill = self._fills(bucket)
        results = self._compare(target, exact, want, fill)
        self._raise_for(_PaddedRun(test, target, exact, want, fill), results)
        proof = self.proofs.get(bucket.name)
        if proof is not None and proof.proof == MEASURED and not test.shortened and test.case is None:
            self._attack(test, target, exact, fill)
        self._checked.setdefault(bucket.name, []).append(
            {
                "vector": test.name,
                "sizes": test.sizes,
                "padding": round(share_of_padding(test.sizes, target), 6),
                "outputs": [
                    {"name": entry.name, "error": r.error, "limit": r.limit, "unit": r.unit}
                    for entry, r in zip(self.interface.outputs, results, strict=True)
                ],
            }
        )

    def report(self, buckets: Sequence[Box]) -> dict[str, Any] | None:
        """The content of padding.json: mean padding and comparisons of buckets that pad; None without one."""
        entries = []
        for bucket in buckets:
            if bucket.name in self._checked:
                # Assumes that all sizes are equally likely; a traffic file is more exact.
                mean = {name: (segment.min + segment.max) / 2 for name, segment in bucket.padded.items()}
                share = share_of_padding(mean, padded_sizes(bucket, dict.fromkeys(bucket.padded, 0)))
                ranges = {
                    name: segment.model_dump(include={"min", "max", "size"})
                    for name, segment in bucket.padded.items()
                }
                entry = {"name": bucket.name, "dims": ranges, "mean_padding": round(share, 6)}
                if bucket.name in self.proofs:
                    entry |= self.proofs[bucket.name].model_dump()
                entries.append({**entry, "checked": self._checked[bucket.name]})
        return {"format": 1, "model": self.interface.model, "buckets": entries} if entries else None

    def _fills(self, bucket: Box) -> dict[str, Any]:
        """The value of each input's padded elements, by name of the input."""
        proven = self.proofs[bucket.name].fill if bucket.name in self.proofs else {}
        declared = {name: given_fill(self.ports.get(name)) for name in self._names}
        return {
            entry.name: np.asarray(
                typed_fill(entry.name, proven.get(entry.name, declared[entry.name]), entry.dtype), entry.dtype
            )
            for entry in self.interface.inputs
        }

    def _attack(
        self, test: GoldenCase, target: Sizes, exact: Sequence[Array], fill: Mapping[str, Any]
    ) -> None:
        """Compare outputs for adversarial data with and without padding. Raises KilnError if one changes."""
        with_fill = [name for name in self._names if name in self.ports and self.ports[name].pad is not None]
        for attack in attacks(exact, self._names, fill, self.masks, [*self.masks, *with_fill]):
            want = self.reference.run(attack.inputs)
            results = self._compare(target, attack.inputs, want, attack.fill)
            padded = _PaddedRun(test, target, attack.inputs, want, attack.fill, attack.name)
            self._raise_for(padded, results)

    def _raise_for(self, padded: _PaddedRun, results: Sequence[Comparison]) -> None:
        """Raise KilnError for the first failed comparison; `results` has one for each output."""
        for entry, result in zip(self.interface.outputs, results, strict=True):
            if not result.passed:
                raise KilnError(self._refusal(padded, entry, result))

    def _compare(
        self, target: Sizes, exact: Sequence[Array], want: Sequence[Array], fill: Mapping[str, Any]
    ) -> list[Comparison]:
        """Pad the inputs `exact` to the sizes `target`, run the reference, and compare with `want`."""
        got = self.reference.run(self._pad(target, exact, fill))
        return [
            compare(cut(output, expected.shape), expected, limits_for(self.tolerance, entry.name),
                    entry.quant is not None)
            for output, expected, entry in zip(got, want, self.interface.outputs, strict=True)
        ]  # fmt: skip

    def _pad(self, target: Sizes, exact: Sequence[Array], fill: Mapping[str, Any]) -> list[Array]:
        """The inputs padded at the end of each axis to the sizes `target`."""
        padded = []
        for tensor, entry in zip(exact, self.interface.inputs, strict=True):
            shape = [sizes.evaluate(size, target) for size in entry.shape]
            widths = [(0, padded_size - size) for padded_size, size in zip(shape, tensor.shape, strict=True)]
            padded.append(np.pad(tensor, widths, constant_values=fill[entry.name]))
        return padded

    def _refusal(self, padded: _PaddedRun, entry: PortRecord, result: Comparison) -> str:
        """The message: the padded dimension, the output's error, the first operator whose result changes."""
        test, target, exact, fill = padded.test, padded.target, padded.exact, padded.fill
        changed_dims = [name for name in target if target[name] != test.sizes[name]]
        for name in changed_dims if len(changed_dims) > 1 else []:
            one_padded = {**test.sizes, name: target[name]}
            results = self._compare(one_padded, exact, padded.want, fill)
            wrong = [index for index, r in enumerate(results) if not r.passed]
            if wrong:
                changed_dims, target = [name], one_padded
                entry, result = self.interface.outputs[wrong[0]], results[wrong[0]]
                break
        first = first_to_differ(
            self.source,
            exact,
            self._pad(target, exact, fill),
            limits_for(self.tolerance, ""),
        )
        subject = " and ".join(f"dims.{name}: pad {target[name]}" for name in changed_dims)
        sizes_shown = [f"{name} {test.sizes[name]} padded to {target[name]}" for name in changed_dims]
        data_and_sizes = ", ".join([*([f"data {padded.data}"] if padded.data else []), *sizes_shown])
        other_sizes = ", ".join(
            f"{name} {size}" for name, size in test.sizes.items() if name not in changed_dims
        )
        difference = f"it differs by {result.error:.3g}, allowed {result.limit:.3g} {result.unit}".rstrip()
        if not np.isfinite(result.error):
            difference = result.detail
        operator_text = f"; the first operator that sees the padding is {first}" if first else ""
        advice = (
            f"; the mask '{', '.join(self.masks)}' does not hide it"
            if self.masks
            else "; if an input of the model masks it, declare it with inputs.<name>.mask: true"
        )
        return (
            f"model '{self.interface.model}': {subject} changes output "
            f"'{entry.name}': with {data_and_sizes}{f' ({other_sizes})' if other_sizes else ''} {difference}"
            f"{operator_text}{advice}; use exact or range in place of pad"
        )


def cut(tensor: Array, shape: Sequence[int]) -> Array:
    """`tensor` cut to the first `shape` elements of each axis; unchanged if of another rank or smaller."""
    if tensor.ndim != len(shape) or any(size < kept for size, kept in zip(tensor.shape, shape, strict=True)):
        return tensor
    return tensor[tuple(slice(size) for size in shape)]
