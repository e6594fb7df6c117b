"""limits: stage that checks the limits of a model's `tolerance` against the types of its outputs.

It needs the model's interface alone, so that a wrong key ends a build before its kernels are compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kiln.config.check import choices
from kiln.config.interface import Interface, PortRecord
from kiln.config.records import read
from kiln.errors import KilnError
from kiln.files import read_json, write_json
from kiln.stages.model import LimitsStage

_KINDS = {
    ("absolute", "relative"): "floats, whose limits are: absolute, relative",
    ("levels",): "quantised integers, whose limits are: levels",
    (): "integers or booleans that are not quantised, which must be equal",
}


def run(args: LimitsStage) -> None:
    """Write the limits, unchanged. Raises KilnError as `check_limits`."""
    interface, limits = read(Interface, args.interface), read_json(args.tolerance)
    check_limits(interface.model, limits, interface.outputs)
    write_json(args.out, limits["tolerance"])


def check_limits(model: str, slice_of_tolerance: Mapping[str, Any], outputs: Sequence[PortRecord]) -> None:
    """Raise KilnError for a limit that no output of `model` reads, or not the output that it is stated for.

    `slice_of_tolerance`: `tolerance`, and in `stated` its keys that are not the default's.
    """
    kinds = {output.name: _limits_of(output) for output in outputs}
    for name, limits in slice_of_tolerance["tolerance"]["outputs"].items():
        where = f"model '{model}': tolerance.outputs.{name}"
        if name not in kinds:
            raise KilnError(f"{where}: the model has no such output{choices(name, kinds)}")
        for key, value in limits.items():
            if value is not None and key not in kinds[name]:
                raise KilnError(f"{where}.{key}: {value:g}, but the output is of {_KINDS[kinds[name]]}")
    for key in slice_of_tolerance.get("stated", []):
        if not any(key in kind for kind in kinds.values()):
            output_kinds = " or of ".join(dict.fromkeys(_KINDS[kind] for kind in kinds.values()))
            raise KilnError(
                f"model '{model}': tolerance.{key}: every output is of {output_kinds}: remove the key"
            )


def _limits_of(output: PortRecord) -> tuple[str, ...]:
    """The keys of `tolerance` that limit the error of an output; see kiln.golden.compare.RULE."""
    if "float" in output.dtype:
        return ("absolute", "relative")
    return ("levels",) if output.quant is not None or output.element is not None else ()
