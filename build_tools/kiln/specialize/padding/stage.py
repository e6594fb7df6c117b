"""padding: stage that proves for each pad bucket that padding is neutral, and finds the fill values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kiln.config import sizes
from kiln.config.boxes import Box, BoxList
from kiln.config.interface import Interface
from kiln.config.padding import MEASURED, PROVEN, PaddingProof, PaddingProofs, given_fill
from kiln.config.records import read
from kiln.config.slice_records import ImportConfig
from kiln.errors import KilnError
from kiln.files import write_json
from kiln.params.states import with_states
from kiln.stages.model import PaddingStage


def run(args: PaddingStage) -> None:
    """Write padding.json. Raises KilnError for the first bucket whose padding is not proven neutral."""
    config, interface = read(ImportConfig, args.config), read(Interface, args.interface)
    check_pads(config, interface, read(BoxList, args.buckets).buckets)
    try:
        proofs = {
            bucket.name: padding(config, args.source, interface, bucket)
            for bucket in read(BoxList, args.buckets).buckets
            if bucket.padded
        }
    except KilnError as error:
        raise KilnError(str(error).replace(str(args.source), args.called or str(args.source))) from error
    write_json(args.out, PaddingProofs(buckets=proofs).model_dump())


def check_pads(config: ImportConfig, interface: Interface, buckets: Sequence[Box]) -> None:
    """Raise KilnError for a fill value of an input that no bucket pads."""
    padded = {name for bucket in buckets for name in bucket.padded}
    for port in with_states(interface).inputs:
        setting = config.inputs.get(port.name)
        if setting is not None and setting.pad is not None:
            own_dims = {name for size in port.shape for name in sizes.names(size)}
            if not own_dims & padded:
                raise KilnError(
                    f"model '{interface.model}': inputs.{port.name}.pad: {setting.pad:g}, but no axis of "
                    f"this input is padded, only {', '.join(sorted(padded))}: remove the key"
                )


def padding(config: ImportConfig, source: Path, interface: Interface, bucket: Box) -> PaddingProof:
    """The proof for one bucket that pads. Raises KilnError if its padding is not proven neutral."""
    from kiln.specialize.padding.fill_values import json_fill, typed_fill
    from kiln.specialize.padding.fills import proven_fills

    configured, interface = config.inputs, with_states(interface)
    padded = bucket.padded
    for port in interface.inputs:
        for axis, size in enumerate(port.shape):
            both = sorted(sizes.names(size) & padded.keys()) if not isinstance(size, str) else []
            if both:
                raise KilnError(
                    f"model '{interface.model}': dims.{both[0]}: input '{port.name}' axis {axis} is "
                    f"{sizes.show(size)}, which cannot be padded; use exact or range in place of pad"
                )
    if any(segment.measured for segment in padded.values()):
        fills = {port.name: given_fill(configured.get(port.name)) for port in interface.inputs}
        for port in interface.inputs:
            typed_fill(port.name, fills[port.name], port.dtype)
        return PaddingProof(proof=MEASURED, fill=dict(fills))
    subject = " and ".join(f"dims.{name}: pad {segment.size}" for name, segment in padded.items())
    where = f"model '{interface.model}': {subject} is not proven neutral"
    size = next(iter(padded.values())).size
    advice = (
        "; use exact or range in place of pad, hide the padding by a mask (inputs.<name>.mask: true) or by a "
        "value (inputs.<name>.pad), or, if you know that it is neutral, take measured data for a proof: "
        f"pad: {{to: {size}, assume: measured}}"
    )
    try:
        module = _with_dynamic_sizes(config, source, bucket)
    except KilnError as error:
        raise KilnError(f"{where}: the graph cannot be followed for every size: {error}{advice}") from error
    try:
        fills = proven_fills(module, list(padded), interface, configured)
    except KilnError as error:
        raise KilnError(f"{where}: {error}{advice}") from error
    return PaddingProof(proof=PROVEN, fill={name: json_fill(value) for name, value in fills.items()})


def _with_dynamic_sizes(config: ImportConfig, source: Path, bucket: Box) -> Any:
    """The model, imported with the padded dimensions of a bucket dynamic, all others as in the bucket."""
    from kiln.frontend import options
    from kiln.frontend.importer import import_model

    dynamic = {"strategy": "range", "size": None, "measured": False}
    segments = {
        name: segment.model_copy(update=dynamic) if name in bucket.padded else segment
        for name, segment in bucket.dims.items()
    }
    dynamic_bucket = bucket.model_copy(update={"dims": segments})
    settings = replace(options.from_config(config, dynamic_bucket), every_node=True)
    return import_model(source, settings)[0]
