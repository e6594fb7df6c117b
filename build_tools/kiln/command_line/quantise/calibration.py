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
from kiln.config import Model, sizes
from kiln.config.dims import Dim, key_of
from kiln.config.interface import PortRecord
from kiln.config.sizes import SizeExpr
from kiln.errors import KilnError
from kiln.golden.inputs import make_set
from kiln.golden.sequence import input_set_of_run
from kiln.sources.npy import load_npz

_OPEN_AXIS = 64  # the size of a dynamic axis with golden inputs, where the YAML allows it

# Runs the float model: from its inputs to its outputs, by name.
Step = Callable[[Mapping[str, Array]], Mapping[str, Array]]


def calibration_samples(model: Model, data: Path | None, ports: Sequence[SamplePort], step: Step) -> Samples:
    """Samples with all inputs `ports` of the model's file.

    The samples of a model with `state` are runs in sequence: each starts from the state that `step`, the
    float model, left after the sample before. Data with arrays of the state are used as they are. Raises
    KilnError for data that do not fit.
    """
    shaped = [replace(port, shape=_shape(model, port)) for port in ports]
    states = {port.name for port in ports if port.name in model.state}
    if data is None:
        return _golden_samples(model, shaped, states, step)
    arrays = sample_data.is_of_arrays(data)
    if arrays and states and data.suffix.lower() == ".npz" and states & set(load_npz(data)):
        return sample_data.samples_from_arrays(data, ports)
    stateless = [port for port in (ports if arrays else shaped) if port.name not in states]
    samples = sample_data.samples_from_file(data, model, stateless)
    return replace(samples, runs=_with_states(model, shaped, samples.runs, step))


def _golden_samples(model: Model, ports: Sequence[SamplePort], states: set[str], step: Step) -> Samples:
    """The golden inputs; a model with state makes `golden.runs` runs in sequence of each set of inputs."""
    stateless = [port for port in ports if port.name not in states]
    entries = [
        PortRecord(name=p.name, c_name=p.name, dtype=str(p.dtype), shape=[size or 1 for size in p.shape])
        for p in stateless
    ]
    masks = {name for name, tensor in model.inputs.items() if tensor.mask}
    vectors, runs = [], []
    for spec in model.golden.inputs:
        steps = model.golden.runs if states else 1
        drawn = [
            make_set(input_set_of_run(spec, run), entries, model.preprocess, masks) for run in range(steps)
        ]
        vectors += drawn
        named = [dict(zip((port.name for port in stateless), arrays, strict=True)) for arrays in drawn]
        runs += _with_states(model, ports, named, step)
    return replace(sample_data.samples_from_golden(vectors, stateless), runs=runs)


def _with_states(
    model: Model, ports: Sequence[SamplePort], runs: Sequence[Mapping[str, Array]], step: Step
) -> list[dict[str, Array]]:
    """`runs` in sequence, each with the state that it starts from."""
    state = {port.name: _initial_state(model, port) for port in ports if port.name in model.state}
    complete: list[dict[str, Array]] = []
    for run in runs:
        complete.append({**run, **state})
        if state:
            results = step(complete[-1])
            for name in state:
                output = model.state[name].output
                if output not in results:
                    raise KilnError(
                        f"model '{model.name}': state '{name}': no output '{output}', "
                        f"the file has {', '.join(results)}"
                    )
                state[name] = results[output]
    return complete


def _initial_state(model: Model, port: SamplePort) -> Array:
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
    """The shape of an input, dynamic axes at a size that `dims` of the model allow; None: not known."""
    entry = model.inputs.get(port.name)
    shape: Sequence[SizeExpr | None] | None = port.declared
    if entry is not None and entry.shape is not None and len(entry.shape) == len(port.shape):
        shape = entry.shape
    return port.shape if shape is None else tuple(_size(model, axis) for axis in shape)


def _size(model: Model, axis: SizeExpr | None) -> int | None:
    """The size of an axis at the calibration sizes of the dimensions; None without a range in `dims`."""
    if axis is None:
        return None
    ranges = {name: model.dims.get(name) or model.dims.get(key_of(name)) for name in sizes.names(axis)}
    known = {name: _calibration_size(dim) for name, dim in ranges.items() if dim is not None}
    return sizes.evaluate(axis, known) if len(known) == len(ranges) else None


def _calibration_size(dim: Dim) -> int:
    """The greatest size of a dimension up to 64; its least one if that is greater."""
    greatest = min(dim.max, max(_OPEN_AXIS, dim.min))
    return max(greatest // dim.multiple * dim.multiple, dim.min)
