"""Samples to calibrate with: the user's data or the golden inputs, at sizes of the model's YAML.

Runs of a model with state follow one another, and hand its state on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from kiln.arrays import Array
from kiln.command_line import samples as sample_data
from kiln.command_line.samples import SamplePort, Samples
from kiln.config import Model
from kiln.config.dims import Dim
from kiln.config.interface import PortRecord
from kiln.errors import KilnError
from kiln.golden.inputs import make_set
from kiln.golden.sequence import of_run
from kiln.sources.npy import load_npz

_LONGEST = 64  # the size of an open axis with golden inputs, where the YAML allows it

# Runs the float model: from its inputs to its outputs, by name.
Step = Callable[[Mapping[str, Array]], Mapping[str, Array]]


def calibration_samples(model: Model, data: Path | None, ports: Sequence[SamplePort], step: Step) -> Samples:
    """Samples with all inputs `ports` of the model's file.

    Of a model with `state`, samples follow one another, and the state of each is what `step`, the float
    model, has left: unless the data have arrays of the state. Raises KilnError for data that do not fit.
    """
    shaped = [replace(port, shape=_shape(model, port)) for port in ports]
    kept = {port.name for port in ports if port.name in model.state}
    if data is not None and (data.is_dir() or data.suffix.lower() == ".csv"):
        found = sample_data.from_images(data, model, [port for port in shaped if port.name not in kept])
    elif data is not None:
        if kept & set(load_npz(data)):
            return sample_data.from_npz(data, ports)
        found = sample_data.from_npz(data, [port for port in ports if port.name not in kept])
    else:
        return _golden(model, shaped, kept, step)
    return replace(found, runs=_stepped(model, shaped, found.runs, step))


def _golden(model: Model, ports: Sequence[SamplePort], kept: set[str], step: Step) -> Samples:
    """The golden inputs; of a model with state `golden.runs` of each set, which follow one another."""
    given = [port for port in ports if port.name not in kept]
    entries = [
        PortRecord(name=p.name, c_name=p.name, dtype=str(p.dtype), shape=[size or 1 for size in p.shape])
        for p in given
    ]
    vectors, runs = [], []
    for spec in model.golden.inputs:
        steps = model.golden.runs if kept else 1
        drawn = [make_set(of_run(spec, run), entries, model.preprocess) for run in range(steps)]
        vectors += drawn
        named = [dict(zip((port.name for port in given), arrays, strict=True)) for arrays in drawn]
        runs += _stepped(model, ports, named, step)
    return replace(sample_data.from_golden(vectors, given), runs=runs)


def _stepped(
    model: Model, ports: Sequence[SamplePort], runs: Sequence[Mapping[str, Array]], step: Step
) -> list[dict[str, Array]]:
    """`runs`, which follow one another, with the state that each starts from."""
    state = {port.name: _initial(model, port) for port in ports if port.name in model.state}
    found: list[dict[str, Array]] = []
    for run in runs:
        found.append({**run, **state})
        if state:
            made = step(found[-1])
            for name in state:
                output = model.state[name].output
                if output not in made:
                    raise KilnError(
                        f"model '{model.name}': state '{name}': no output '{output}', "
                        f"the file has {', '.join(made)}"
                    )
                state[name] = made[output]
    return found


def _initial(model: Model, port: SamplePort) -> Array:
    """The state before the first run. Raises KilnError for numbers that do not fit."""
    value = np.asarray(model.state[port.name].initial).astype(port.dtype)
    shape = [size or 1 for size in port.shape]
    try:
        return np.array(np.broadcast_to(value, shape))
    except ValueError as error:
        raise KilnError(
            f"model '{model.name}': state '{port.name}': initial has the shape {list(value.shape)}, "
            f"the input has {shape}"
        ) from error


def _shape(model: Model, port: SamplePort) -> tuple[int | None, ...]:
    """The shape of an input, open axes at a size that `dims` of the model allow; None: not known."""
    entry = model.inputs.get(port.name)
    if entry is None or entry.shape is None or len(entry.shape) != len(port.shape):
        return port.shape
    sizes = {name: _typical(dim) for name, dim in model.dims.items()}
    record = PortRecord(name=port.name, c_name=port.name, dtype=str(port.dtype), shape=list(entry.shape))
    return tuple(size if isinstance(size, int) else None for size in record.at(sizes).shape)


def _typical(dim: Dim) -> int:
    """The greatest size of a dimension up to 64; its least one if that is greater."""
    greatest = min(dim.max, max(_LONGEST, dim.min))
    return max(greatest // dim.multiple * dim.multiple, dim.min)
