"""The state of an ONNX file that a PyTorch program became: which outputs feed which inputs of the next run.

The file's metadata has it under KEY: JSON, by input an entry as under the key `state` of a model's YAML file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import onnx

from kiln.config.state import KeptValue

KEY = "kiln.state"


def write_state(model: onnx.ModelProto, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Add the state to the metadata; `entries`: by input, a mapping of `output` and `initial`."""
    if entries:
        onnx.helper.set_model_props(model, {KEY: json.dumps(entries)})


def state_of(model: onnx.ModelProto) -> dict[str, KeptValue]:
    """The state in the metadata, by input, of the inputs and outputs that the graph has.

    A part of a graph may lack one of them: then the other is a plain input or output.
    """
    text = next((entry.value for entry in model.metadata_props if entry.key == KEY), "{}")
    inputs = {value.name for value in model.graph.input}
    outputs = {value.name for value in model.graph.output}
    entries = {name: KeptValue(**entry) for name, entry in json.loads(text).items()}
    return {name: entry for name, entry in entries.items() if name in inputs and entry.output in outputs}
