"""The stages of a model that all targets share: from its file to the graph of each bucket, and references."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from kiln.stage import POSITIONAL, Input, Output, Setting, Stage, StageSpec, Unhashed
from kiln.stages import common

_ModelFile = Annotated[Path, Input("model file: .onnx or .tflite; for the golden vectors also .pt2")]


@dataclass(frozen=True, kw_only=True)
class FetchStage(Stage, spec=StageSpec("fetch", "kiln.sources.stage", cached=False, early=True)):
    """A package, a path or a generator → the model's file."""

    config: Annotated[Path, common.config("fetch", "source")]
    out: Annotated[Path, Output("the model file to write")]


@dataclass(frozen=True, kw_only=True)
class TraceStage(Stage, spec=StageSpec("trace", "kiln.frontend.torch.trace_stage", cached=False, early=True)):
    """A Python function that returns a PyTorch module → an archive of torch.export."""

    function: Annotated[str, Setting("package.module:function, searched in this folder first")]
    out: Annotated[Path, Output("archive of torch.export to write: .pt2")]


@dataclass(frozen=True, kw_only=True)
class ExportStage(
    Stage, spec=StageSpec("export", "kiln.frontend.torch.export_stage", cached=True, early=True)
):
    """An archive of torch.export → an ONNX file, converted by PyTorch."""

    source: Annotated[Path, Input("archive of torch.export: .pt2")]
    tools: Annotated[str, Setting("versions of PyTorch and its exporter, as `versions` shows them")] = ""
    called: common.Called = None
    out: Annotated[Path, Output("ONNX file to write")]


@dataclass(frozen=True, kw_only=True)
class CutStage(Stage, spec=StageSpec("cut", "kiln.frontend.cut_stage", cached=True)):
    """The model's file → a file with the part that the key `cut` describes."""

    config: Annotated[Path, common.config("cut", "cut")]
    source: Annotated[Path, Input("ONNX or TFLite file")]
    sizes: Annotated[str, Setting("of a PyTorch model, the shapes of its inputs by name, JSON")] = "{}"
    called: common.Called = None
    out: Annotated[Path, Output("file to write, of the same format")]


@dataclass(frozen=True, kw_only=True)
class ImportStage(Stage, spec=StageSpec("import", "kiln.frontend.stage", cached=True)):
    """The model's file → a Relax module."""

    config: common.ImportSlice
    bucket: Annotated[Path | None, Input("bucket.json: the sizes; left out: a static model")] = None
    source: _ModelFile
    called: common.Called = None
    out: Annotated[Path, Output("folder of the module", files=common.GraphFiles)]


@dataclass(frozen=True, kw_only=True)
class InterfaceStage(Stage, spec=StageSpec("interface", "kiln.frontend.merge", cached=True)):
    """The interfaces of all buckets → one, whose shapes are expressions of the dimensions."""

    buckets: Annotated[Path, Input("buckets.json")]
    config: common.ImportSlice
    interfaces: Annotated[tuple[Path, ...], Input("interface.json of each bucket, in order", POSITIONAL)]
    out: Annotated[Path, Output("interface.json")]


@dataclass(frozen=True, kw_only=True)
class SimplifyStage(Stage, spec=StageSpec("simplify", "kiln.graph.stage", cached=True)):
    """A Relax module → the canonical graph."""

    source: Annotated[Path, Input("folder of the import stage", "--in")]
    dump: Annotated[Path | None, Unhashed("write the IR after each pass into this folder", dump=True)] = None
    out: Annotated[Path, Output("folder of the module", files=common.GraphFiles)]


@dataclass(frozen=True, kw_only=True)
class WeightsStage(Stage, spec=StageSpec("weights", "kiln.graph.weights", cached=True, prints=True)):
    """For the key `weights`: the canonical graph → the same graph with rounded weights."""

    source: Annotated[Path, Input("folder of the simplify stage", "--in")]
    config: Annotated[Path, common.config("weights", "weights")]
    out: Annotated[Path, Output("folder of the module", files=common.GraphFiles)]


@dataclass(frozen=True, kw_only=True)
class PaddingStage(Stage, spec=StageSpec("padding", "kiln.specialize.padding.stage", cached=True)):
    """For buckets that pad: the proof that padding is neutral, and the padding values."""

    config: Annotated[Path, common.config("padding", *common.IMPORT_KEYS)]
    source: _ModelFile
    called: common.Called = None
    interface: Annotated[Path, Input("interface.json of the model")]
    buckets: Annotated[Path, Input("buckets.json")]
    out: Annotated[Path, Output("padding.json")]


@dataclass(frozen=True, kw_only=True)
class SpecializeStage(Stage, spec=StageSpec("specialize", "kiln.specialize.stage", cached=True, prints=True)):
    """A bucket's graph → the graph with padding around it, and with functions for special cases."""

    source: Annotated[Path, Input("folder of the simplify stage", "--in")]
    bucket: Annotated[Path | None, Input("bucket.json; left out: a static model")] = None
    interface: Annotated[Path | None, Input("interface.json of the model; needed where sizes are padded")] = (
        None
    )
    padding: Annotated[Path | None, Input("padding.json: needed where sizes are padded")] = None
    config: Annotated[Path, common.config("specialize", "dims", "special_cases")]
    out: Annotated[Path, Output("folder of the module", files=common.GraphFiles)]


@dataclass(frozen=True, kw_only=True)
class EdgesStage(Stage, spec=StageSpec("edges", "kiln.specialize.edges", cached=False)):
    """For `buckets: auto`: traffic and costs → the buckets. It runs before SCons plans the build."""

    config: Annotated[Path, common.config("edges", *common.IMPORT_KEYS)]
    source: _ModelFile
    called: common.Called = None
    target: Annotated[Path | None, Input("target.json: the machine of the cost model")] = None
    out: Annotated[Path, Output("the chosen buckets, JSON")]


@dataclass(frozen=True, kw_only=True)
class GoldenStage(
    Stage,
    spec=StageSpec("golden", "kiln.golden.stage", cached=True),
):
    """The model's file → test inputs, and the outputs that a reference computes for them."""

    config: Annotated[Path, common.config("golden", "golden", "preprocess", "inputs", "special_cases")]
    source: _ModelFile
    called: common.Called = None
    interface: Annotated[Path, Input("interface.json of the imported model")]
    buckets: common.Buckets = None
    padding: Annotated[Path | None, Input("padding.json of the padding stage, where buckets pad")] = None
    tolerance: Annotated[Path | None, common.ToleranceSlice] = None
    out: Annotated[Path, Output("folder for golden.json and the tensors (*.bin)", listed=True)]


@dataclass(frozen=True, kw_only=True)
class LimitsStage(Stage, spec=StageSpec("limits", "kiln.golden.limits", cached=True, early=True)):
    """The key `tolerance` → the same limits, if the types of the outputs have them."""

    interface: Annotated[Path, Input("interface.json of the model")]
    tolerance: Annotated[Path, common.ToleranceSlice]
    out: Annotated[Path, Output("limits.json")]


@dataclass(frozen=True, kw_only=True)
class PrecisionStage(Stage, spec=StageSpec("precision", "kiln.precision.stage", cached=True, prints=True)):
    """Graphs in a lower precision than float32, or with rounded weights, and golden vectors → the errors."""

    sources: common.Sources
    golden: Annotated[Path, Input("folder of the golden stage")]
    interface: Annotated[Path, Input("interface.json, with the values that a run leaves for the next one")]
    config: Annotated[Path, common.config("precision", "precision", "weights")]
    tolerance: Annotated[Path, common.ToleranceSlice]
    out: Annotated[Path, Output("precision.json")]
