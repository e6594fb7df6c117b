"""Exports one model of the zoo, in PyTorch's environment: python -m zoo.export NAME FORM OUT, or `list`.

FORM: `archive` (torch.export, .pt2), `dynamo` or `script` (the two exporters of torch.onnx), each followed by
`-static` or `-dynamic`. Beside the file OUT a YAML file of the same name is written, which Kiln builds.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import sys
import warnings
from pathlib import Path
from typing import Any

from zoo.catalogue import ENTRIES, Entry

SCRIPT_OPSET, DYNAMO_OPSET = 17, 18


def main(name: str, form: str, out: Path) -> int:
    """Write the file and its YAML; returns 0, or 3 after one line on stderr if the export fails."""
    import zoo.models  # noqa: F401
    from zoo.prepare import randomise, torch

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # its operator has no export
    torch.manual_seed(0)
    chosen = ENTRIES[name]
    exporter, _, sizes = form.partition("-")
    is_dynamic = sizes == "dynamic"
    if is_dynamic and not chosen.axes:
        print("has no dynamic dimension", file=sys.stderr)
        return 3
    module, inputs = chosen.make()
    if is_dynamic:
        inputs = of_two(chosen, inputs)
    module.eval()
    randomise(module)
    try:
        with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
            write = {"archive": archive, "dynamo": dynamo, "script": script}[exporter]
            write(chosen, module, inputs, is_dynamic, out)
    except Exception as error:
        message = " ".join(str(error).split())
        print(f"{type(error).__name__}: {message[:300]}", file=sys.stderr)
        return 3
    out.with_suffix(".yaml").write_text(describe(chosen, out, inputs, is_dynamic), encoding="utf-8")
    return 0


def of_two(chosen: Entry, inputs: dict[str, Any]) -> dict[str, Any]:
    """`inputs`, twice along each dynamic dimension of size 1: torch.export makes a size of 1 a constant."""
    twice = dict(inputs)
    for key, axes in chosen.axes.items():
        for axis, text in axes.items():
            if text.isidentifier() and inputs[key].shape[axis] == 1 and chosen.ranges[text][1] > 1:
                twice[key] = twice[key].repeat_interleave(2, axis)
    return twice


def archive(chosen: Entry, module: Any, inputs: dict[str, Any], is_dynamic: bool, out: Path) -> None:
    """A .pt2 archive, as Kiln itself writes it for a Python function."""
    from kiln.frontend.torch.trace_stage import export

    out.write_bytes(export(chosen.name, module, tuple(inputs.values()), shapes(chosen, inputs, is_dynamic)))


def dynamo(chosen: Entry, module: Any, inputs: dict[str, Any], is_dynamic: bool, out: Path) -> None:
    """An ONNX file, by torch.export."""
    from zoo.prepare import torch

    torch.onnx.export(
        module,
        tuple(inputs.values()),
        str(out),
        dynamo=True,
        external_data=False,
        opset_version=DYNAMO_OPSET,
        input_names=list(inputs),
        dynamic_shapes=shapes(chosen, inputs, is_dynamic),
        verbose=False,
    )


def script(chosen: Entry, module: Any, inputs: dict[str, Any], is_dynamic: bool, out: Path) -> None:
    """An ONNX file, by tracing."""
    from zoo.prepare import torch

    axes = {key: {axis: _name(text) for axis, text in value.items()} for key, value in chosen.axes.items()}
    torch.onnx.export(
        module,
        tuple(inputs.values()),
        str(out),
        dynamo=False,
        opset_version=SCRIPT_OPSET,
        input_names=list(inputs),
        dynamic_axes=axes if is_dynamic else None,
        verbose=False,
    )


def shapes(chosen: Entry, inputs: dict[str, Any], is_dynamic: bool) -> Any:
    """The dynamic shapes of torch.export, in the order of the inputs."""
    if not is_dynamic:
        return None
    from zoo.prepare import torch

    dims = {
        name: torch.export.Dim(name, min=max(low, 1), max=high) for name, (low, high) in chosen.ranges.items()
    }
    return tuple(
        {axis: eval(text, {}, dict(dims)) for axis, text in chosen.axes.get(key, {}).items()}
        for key in inputs
    )


def _name(text: str) -> str:
    return text if text.isidentifier() else re.sub(r"\W+", "_", text).strip("_")


def describe(chosen: Entry, out: Path, inputs: dict[str, Any], is_dynamic: bool) -> str:
    """The YAML file of a model. A factor of an axis, as in 8*h, becomes the multiple of the whole axis."""
    document: dict[str, Any] = {
        "description": f"{chosen.name}, of the zoo",
        "source": {"kind": "file", "path": out.name},
    }
    import onnx

    if chosen.bounds and out.suffix == ".onnx":
        computed = {name for node in onnx.load(out).graph.node for name in node.output}
        document["bounds"] = {name: most for name, most in chosen.bounds.items() if name in computed}
    if is_dynamic and out.suffix == ".onnx":
        scaled = {}
        for text in {text for axes in chosen.axes.values() for text in axes.values() if "*" in text}:
            factor, _, name = text.partition("*")
            scaled[text] = f"{name}_by_{factor}", int(factor), chosen.ranges[name]
        factors = {name for name in chosen.ranges if any(text.endswith(f"*{name}") for text in scaled)}
        document["dims"] = {
            name: {"min": low, "max": high}
            for name, (low, high) in chosen.ranges.items()
            if name not in factors
        } | {
            name: {"min": factor * low, "max": factor * high, "multiple": factor}
            for name, factor, (low, high) in scaled.values()
        }
        document["inputs"] = {}
        graph_inputs = {value.name for value in onnx.load(out, load_external_data=False).graph.input}
        for key, axes in chosen.axes.items():
            if key not in graph_inputs:  # the exporter drops inputs that the network does not read
                continue
            shape: list[Any] = list(inputs[key].shape)
            for axis, text in axes.items():
                shape[axis] = scaled[text][0] if text in scaled else text
            document["inputs"][key] = {"shape": shape}
    return json.dumps(document, indent=1) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["list"]:
        import zoo.models  # noqa: F401

        print(json.dumps({name: one.group for name, one in ENTRIES.items()}))
        sys.exit(0)
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
