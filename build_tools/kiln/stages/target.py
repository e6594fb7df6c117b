"""The stages of a model on a target: from the graph of each bucket to the bundle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from kiln.stage import POSITIONAL, Input, Output, Scratch, Setting, Stage, StageSpec, Unhashed
from kiln.stages import common


@dataclass(frozen=True, kw_only=True)
class LibraryStage(Stage, spec=StageSpec("library", "kiln.byoc.libraries.stage", cached=False)):
    """An external library for one target, found on this machine or fetched → headers, objects, licence."""

    backend: Annotated[str, Setting("name of the backend")]
    target: common.Target
    out: Annotated[Path, Output("folder for include/, lib/ and library.json", listed=True)]


@dataclass(frozen=True, kw_only=True)
class ChooseStage(
    Stage,
    spec=StageSpec(
        "byoc-choose", "kiln.tune.choose", cached=False, prints=True, limited=False, measures=True
    ),
):
    """For `byoc=auto`: each subgraph, timed with Kiln's own kernels and with libraries → its backend."""

    sources: common.Sources
    target: common.Target
    config: common.LowerSlice
    byoc: Annotated[Path, Input("byoc.json")]
    libraries: common.Libraries = ()
    device: common.Device = None
    times: Annotated[Path, Scratch("file of times from earlier builds")]
    out: Annotated[Path, Output("byoc.json with the choices")]


@dataclass(frozen=True, kw_only=True)
class PackingsStage(Stage, spec=StageSpec("packings", "kiln.lower.packings_stage", cached=True)):
    """For several buckets: their graphs → the layouts in which the weights that they share are stored."""

    sources: common.Sources
    target: common.Target
    config: common.LowerSlice
    out: Annotated[Path, Output("folder for packings.json", files=("packings.json",))]


@dataclass(frozen=True, kw_only=True)
class LowerStage(Stage, spec=StageSpec("lower", "kiln.lower.stage", cached=True)):
    """The graph of a bucket → kernels and steps for the target."""

    source: Annotated[Path, Input("folder of the simplify, weights or specialize stage", "--in")]
    target: common.Target
    config: common.LowerSlice
    byoc: Annotated[Path | None, Input("byoc.json: the library that computes each subgraph")] = None
    packings: Annotated[Path | None, Input("packings.json, of a model with several buckets")] = None
    out: Annotated[
        Path, Output("folder of the kernels", files=("functions.json", "params.safetensors", "steps.json"))
    ]
    dump: Annotated[Path | None, Unhashed("write the IR after each pass into this folder", dump=True)] = None


@dataclass(frozen=True, kw_only=True)
class PlanStage(Stage, spec=StageSpec("plan", "kiln.plan.stage", cached=True, prints=True)):
    """Kernels and steps of all buckets → the order of steps, and an arena offset for every tensor."""

    sources: common.LoweredModules
    interface: Annotated[Path, Input("interface.json")]
    buckets: common.Buckets = None
    target: common.Target
    config: Annotated[Path, common.config("plan", "params", "winograd", "checks")]
    byoc: Annotated[Path | None, Input("byoc.json: the libraries that may compute subgraphs")] = None
    out: Annotated[Path, Output("folder of the plan", files=("plan.json", "params.raw"))]


@dataclass(frozen=True, kw_only=True)
class ObjectsStage(Stage, spec=StageSpec("emit-objects", "kiln.emit.objects", cached=True)):
    """Kernels → object files."""

    sources: common.LoweredModules
    plan: Annotated[Path, Input("folder of the plan stage")]
    target: common.Target
    libraries: common.Libraries = ()
    cache: Annotated[Path, Scratch("folder of objects that builds share")]
    out: Annotated[Path, Output("folder for the objects and vectors.json", listed=True)]


@dataclass(frozen=True, kw_only=True)
class SourceStage(Stage, spec=StageSpec("emit-source", "kiln.emit.source", cached=True)):
    """The plan → C, the model's header, and the parameters ready to link or to load."""

    plan: Annotated[Path, Input("plan.json with params.raw next to it, or their folder")]
    out: Annotated[
        Path,
        Output(
            "folder of the source",
            files=("{model}.h", "{model}_plan.c", "{model}_params.S", "params.bin"),
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class CompileStage(
    Stage,
    spec=StageSpec("compile", "kiln.emit.compile", cached=True, one_of=("runtime", "source"), early=True),
):
    """C → objects, by the target's compiler: the runtime, or the generated source of a model."""

    target: common.Target
    runtime: Annotated[
        Literal["pthread", "none"] | None, Setting("compile the runtime with these threads")
    ] = None
    source: Annotated[Path | None, Input("folder of the emit-source stage")] = None
    name: Annotated[str | None, Setting("the model's name, with --source")] = None
    out: Annotated[Path, Output("folder for the objects", listed=True)]


@dataclass(frozen=True, kw_only=True)
class LinkStage(Stage, spec=StageSpec("link", "kiln.emit.link", cached=True)):
    """Objects → a static and a shared library, and their headers."""

    name: Annotated[str, Setting("the model's name")]
    target: common.Target
    plan: common.Plan
    source: Annotated[Path, Input("folder of the emit-source stage")]
    libraries: common.Libraries = ()
    objects: Annotated[tuple[Path, ...], Input("folders of objects", POSITIONAL)]
    out: Annotated[Path, Output("folder that gets include/, lib/ and params.bin", listed=True)]


@dataclass(frozen=True, kw_only=True)
class ImageStage(Stage, spec=StageSpec("image", "kiln.emit.image", cached=True)):
    """Plan and kernels → one file that a program runs at any address, and its figures."""

    target: common.Target
    plan: Annotated[Path, Input("folder of the plan stage")]
    source: Annotated[Path, Input("folder of the emit-source stage")]
    objects: Annotated[Path, Input("folder of the emit-objects stage")]
    out: Annotated[Path, Output("the image", signed=True)]
    facts: Annotated[Path, Output("the image's figures: bytes, tables, alignment")]


@dataclass(frozen=True, kw_only=True)
class JointStage(Stage, spec=StageSpec("joint", "kiln.emit.joint", cached=True)):
    """The code of several models → one library with one runtime, and equal kernels and parameters once."""

    name: Annotated[str, Setting("name of the library")]
    together: Annotated[str, Setting("models that run at the same time: a+b,c+d")] = ""
    target: common.Target
    runtime: Annotated[Path, Input("folder of the runtime's objects")]
    plans: Annotated[tuple[Path, ...], Input("folder of the plan stage; once for each model", "--plan")]
    objects: Annotated[tuple[Path, ...], Input("folder of emit-objects; once for each model", "--kernels")]
    out: Annotated[Path, Output("folder that gets include/, lib/, src/ and joint.json", listed=True)]


@dataclass(frozen=True, kw_only=True)
class JointSizeStage(Stage, spec=StageSpec("joint-size", "kiln.report.joint", cached=False, prints=True)):
    """Sizes of a joint library, compared with the sizes of its models' own libraries."""

    joint: Annotated[Path, Input("folder of the joint stage")]
    sizes: Annotated[tuple[Path, ...], Input("size.json; once for each model", "--size")]
    target: common.Target
    work: Annotated[Path, Scratch("folder where linked programs are kept")]
    out: Annotated[Path, Output("the figures")]


@dataclass(frozen=True, kw_only=True)
class SizeStage(Stage, spec=StageSpec("size", "kiln.report.size", cached=True, prints=True)):
    """Flash and RAM of a model, compared with its budgets; with --print, only printed."""

    show: Annotated[
        Path | None, Input("print the figures of an existing size.json and do nothing else", "--print")
    ] = None
    byoc: Annotated[Path | None, Input("with --print: the file with the summary of byoc=auto")] = None
    plan: Annotated[Path | None, Input("plan.json")] = None
    target: Annotated[Path | None, Input("target.json")] = None
    bundle: Annotated[Path | None, Input("folder with include/ and lib/, to measure a linked program")] = None
    config: Annotated[Path | None, common.config("budget", "budget", "patches")] = None
    usage: Annotated[Path | None, Input("usage.json: resources of kernels on a GPU")] = None
    work: Annotated[Path | None, Scratch("folder where linked programs are kept")] = None
    quiet: Annotated[bool, Setting("print nothing unless a budget is exceeded")] = False
    out: Annotated[Path | None, Output("the figures, written only when every budget is kept")] = None


@dataclass(frozen=True, kw_only=True)
class ReportStage(Stage, spec=StageSpec("report", "kiln.report.html", cached=True)):
    """A page with the sizes, the arena and the checks of a bundle."""

    bundle: Annotated[Path, Input("the bundle's folder")]
    plan: common.Plan
    target: common.Target
    size: Annotated[Path, Input("size.json")]
    golden: Annotated[Path | None, Input("folder of golden.json; absent: the bundle's golden/")] = None
    tolerance: Annotated[Path | None, common.ToleranceSlice] = None
    test: Annotated[Path | None, Input("test.json, to show measured errors and their limits")] = None
    precision: Annotated[Path | None, Input("precision.json, of a model below float32")] = None
    byoc: Annotated[Path | None, Input("with byoc=auto, the choice for each subgraph")] = None
    source: Annotated[Path | None, Input("the model's file, for the names of its nodes")] = None
    profile: Annotated[Path | None, Input("profile.json, for the times of steps")] = None
    compare: Annotated[Path | None, Input("compare.json, for the errors of tensors")] = None
    out: Annotated[Path, Output("report.html")]


@dataclass(frozen=True, kw_only=True)
class BundleStage(Stage, spec=StageSpec("bundle", "kiln.emit.bundle", cached=True)):
    """All results → the bundle's folder and its archive."""

    limits: Annotated[Path, Input("limits.json: of the errors of outputs")]
    config: Annotated[Path, common.config("bundle", "description", "licence", "homepage")]
    model_file: Annotated[Path, Input("the model's file, for its hash")]
    target: common.Target
    plan: common.Plan
    source: Annotated[Path, Input("folder of the emit-source stage")]
    link: Annotated[Path, Input("folder of the link stage")]
    golden: Annotated[Path, Input("folder of the golden stage")]
    size: Annotated[Path, Input("size.json")]
    precision: Annotated[Path | None, Input("precision.json, of a model in less than float32")] = None
    byoc: Annotated[Path | None, Input("with byoc=auto, the choice for each subgraph")] = None
    report: Annotated[Path | None, Input("report.html")] = None
    out: Annotated[
        Path,
        Output("the bundle's folder", files=("manifest.json", "lib/lib{model}.a", "include/{model}.h")),
    ]
    archive: Annotated[Path, Output("the bundle as .tar.gz", signed=True)]
