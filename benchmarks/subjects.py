"""The subjects of a comparison: a model file, sizes of its dynamic dimensions, an input, its output."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kiln.config import load_model, sizes
from kiln.config.data import RandomInput
from kiln.config.interface import Interface
from kiln.errors import KilnError
from kiln.files import atomic_write, read_json
from kiln.golden import inputs as input_sets
from kiln.golden.reference import open_reference
from kiln.manifest import read_manifest

from benchmarks.contenders import Folders, LeftOutError, Subject

# Measured by default. Where a model has a bucket for a size, that bucket runs.
MODELS = (
    "resnet50",
    "resnet18",
    "mobilenet_v1",
    "mobilenet_v2",
    "efficientnet_lite0",
    "vit_tiny",
    "minilm_l6@1x16",
    "minilm_l6@1x64",
    "minilm_l6@1x128",
    "ppocr_rec@320",
    "ppocr_rec@640",
    "ppocr_det@320x320",
    "ppocr_det@640x640",
)


@dataclass(frozen=True)
class SizedModel:
    """A model by name, and the sizes asked for in the order of its dimensions; none: of its golden vector."""

    model: str
    sizes: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """The model with its sizes as on the command line and in tables."""
        return "@".join([self.model, *(["x".join(map(str, self.sizes))] if self.sizes else [])])


def parse(text: str) -> SizedModel:
    """`resnet50`, or `ppocr_det@320x640` with a size for each dynamic dimension. Raises KilnError."""
    model, mark, given = text.partition("@")
    if mark and not re.fullmatch(r"[0-9]+(x[0-9]+)*", given):
        raise KilnError(f"--model '{text}': sizes are numbers with x between them, as in minilm_l6@1x64")
    return SizedModel(model, tuple(map(int, given.split("x"))) if mark else ())


def find(chosen: SizedModel, folders: Folders, targets: Sequence[str]) -> Subject:
    """The model's source and a tensor for every input and output.

    Without sizes that is the source as it is with the first golden vector. With sizes: the source with its
    dimensions fixed, so that peers that want constant shapes have them and the others may use them; the input
    is drawn as the model's golden vectors are, and the output comes from their reference. Raises LeftOutError
    when the model was not built, KilnError for sizes that it does not have.
    """
    sources = sorted((folders.build / ".stages/models" / chosen.model).glob("source.*"))
    built = any((folders.build / target / chosen.model).is_dir() for target in targets)
    if not sources or not built:
        how = f"./kiln target={','.join(targets)} model={chosen.model}"
        raise LeftOutError(f"{chosen.label}: not built; to build it: {how}")
    return (
        _sized(chosen, sources[0], folders, targets)
        if chosen.sizes
        else _golden(chosen, sources[0], folders, targets)
    )


def _golden(chosen: SizedModel, source: Path, folders: Folders, targets: Sequence[str]) -> Subject:
    places = [folders.build / target / chosen.model / "golden" for target in targets]
    golden = next((place for place in places if (place / "golden.json").is_file()), None)
    if golden is None:
        how = f"./kiln target={','.join(targets)} model={chosen.model}"
        raise LeftOutError(f"{chosen.label}: no golden vectors; to build them: {how}")
    vector = read_json(golden / "golden.json")["vectors"][0]
    interface: dict[str, Any] = {"format": source.suffix[1:], "dims": vector.get("dims") or {}}
    for side in ("inputs", "outputs"):
        interface[side] = [
            {key: tensor[key] for key in ("name", "dtype", "shape")} | {"file": str(golden / tensor["file"])}
            for tensor in vector[side]
        ]
    return Subject(chosen.label, chosen.model, source, interface)


def interface_of(model: str, folders: Folders, targets: Sequence[str]) -> Interface:
    """Inputs, outputs and dimensions of a model, as its first bundle for one of `targets` says."""
    bundle = next(
        folders.build / target / model for target in targets if (folders.build / target / model).is_dir()
    )
    manifest = read_manifest(bundle)
    fields: dict[str, Any] = {"model": model, "dims": manifest["dims"]}
    for side, ports in (("inputs", manifest["inputs"]), ("outputs", manifest["outputs"])):
        fields[side] = [{key: value for key, value in port.items() if key != "bytes"} for port in ports]
    return Interface.model_validate(fields)


def _sized(chosen: SizedModel, source: Path, folders: Folders, targets: Sequence[str]) -> Subject:
    model = load_model(chosen.model)
    if len(chosen.sizes) != len(model.dims):
        known_dims = " x ".join(model.dims) or "none, its shapes are fixed"
        raise KilnError(
            f"--model '{chosen.label}': {len(chosen.sizes)} sizes, its dimensions are {known_dims}"
        )
    dims = dict(zip(model.dims, chosen.sizes, strict=True))
    for name, size in dims.items():
        about = model.dims[name]
        if not about.min <= size <= about.max or size % about.multiple:
            allowed = f"{about.min}..{about.max}, a multiple of {about.multiple}"
            raise KilnError(f"--model '{chosen.label}': {name} = {size}, allowed {allowed}")
    interface = interface_of(chosen.model, folders, targets)
    folder = folders.work / "inputs" / chosen.label
    folder.mkdir(parents=True, exist_ok=True)
    fixed = fix_shapes(source, interface, dims, folder / source.name)
    drawn = draw_inputs(chosen.model, interface, dims)
    expected = open_reference(fixed, shapes=[value.shape for value in drawn]).run(drawn)
    described: dict[str, Any] = {"format": source.suffix[1:], "dims": dims}
    for side, ports, values in (
        ("inputs", interface.inputs, drawn),
        ("outputs", interface.outputs, expected),
    ):
        described[side] = [
            write_tensor(folder / f"{side}.{at}.bin", port.name, value)
            for at, (port, value) in enumerate(zip(ports, values, strict=True))
        ]
    return Subject(chosen.label, chosen.model, fixed, described)


def draw_inputs(model: str, interface: Interface, dims: Mapping[str, int]) -> list[np.ndarray]:
    """An input of these sizes, drawn as the model's golden vectors are; masks hold ones."""
    config = load_model(model)
    specs = (spec for spec in config.golden.inputs if isinstance(spec, input_sets.DRAWN))
    spec = next(specs, RandomInput(kind="random", seed=1))
    masks = [name for name, port in config.inputs.items() if port.mask]
    return input_sets.make_set(spec, interface.at(dims).inputs, None, masks)


def write_tensor(file: Path, name: str, value: np.ndarray) -> dict[str, Any]:
    """Write the bytes of a tensor to `file`; returns its entry of an interface (benchmarks.peers)."""
    atomic_write(file, np.ascontiguousarray(value).tobytes())
    return {"name": name, "dtype": str(value.dtype), "shape": list(value.shape), "file": str(file)}


def fix_shapes(source: Path, interface: Interface, dims: Mapping[str, int], made: Path) -> Path:
    """A copy of an ONNX file whose inputs have constant shapes; a TFLite file, resized when loaded, as it is.

    Shapes of outputs and intermediate values that name a dimension are removed, since every framework infers
    them again. An unchanged copy is left alone, so that converted files stay up to date.
    """
    if source.suffix != ".onnx":
        return source
    import onnx

    model = onnx.load(str(source))
    ports = {port.name: port for port in interface.inputs}
    for value in model.graph.input:
        if value.name in ports:
            axes = value.type.tensor_type.shape.dim
            for axis, size in zip(axes, ports[value.name].shape, strict=True):
                axis.dim_value = sizes.evaluate(size, dims)
    del model.graph.value_info[:]
    for value in model.graph.output:
        for axis in value.type.tensor_type.shape.dim:
            if not axis.HasField("dim_value"):
                axis.Clear()
    data = model.SerializeToString(deterministic=True)
    if not made.is_file() or made.read_bytes() != data:
        atomic_write(made, data)
    return made
