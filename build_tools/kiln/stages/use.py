"""The stages that use a finished bundle: on the target's runner, on a device, or for a page; and schemas."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from kiln.stage import Input, Output, Scratch, Setting, Stage, StageSpec, Unhashed
from kiln.stages import common

TIMEOUT = 900.0  # seconds, for all golden vectors together; emulated large models need minutes

_Work = Annotated[Path, Scratch("folder where linked programs are kept")]
_Traffic = Annotated[Path | None, Scratch("a traffic file, which gets the sizes of the runs")]
_Bundle = Annotated[Path, Input("the bundle's folder")]
_List = Annotated[bool, Setting("print what would be executed on the device")]


@dataclass(frozen=True, kw_only=True)
class GoldenCheck(Stage):
    """The flags of stages that run a bundle on its golden vectors."""

    bundle: _Bundle
    target: common.Target
    tolerance: Annotated[Path | None, common.ToleranceSlice] = None
    work: _Work
    timeout: Annotated[float, Setting("seconds for all vectors together")] = TIMEOUT
    compare: Annotated[str | None, Unhashed("the command that finds the first wrong tensor")] = None
    out: Annotated[Path, Output("results, written only when all passed")]


@dataclass(frozen=True, kw_only=True)
class DeviceTestStage(
    GoldenCheck,
    spec=StageSpec(
        "device-test", "kiln.device.check.test", cached=False, prints=True, limited=False, on_device=True
    ),
):
    """The errors of the bundle's outputs on the golden vectors."""

    device: common.Device = None


@dataclass(frozen=True, kw_only=True)
class JointTestStage(
    Stage,
    spec=StageSpec(
        "joint-test", "kiln.device.check.joint", cached=False, prints=True, limited=False, on_device=True
    ),
):
    """The errors of every model of a joint library on its golden vectors."""

    joint: Annotated[Path, Input("folder of the joint stage")]
    bundles: Annotated[tuple[Path, ...], Input("the model's own bundle; once for each model", "--bundle")]
    target: common.Target
    work: _Work
    timeout: Annotated[float, Setting("seconds for all vectors of a model together")] = TIMEOUT
    device: common.Device = None
    out: Annotated[Path, Output("results, written only when all passed")]


@dataclass(frozen=True, kw_only=True)
class ImageTestStage(
    Stage,
    spec=StageSpec("image-test", "kiln.device.check.image", cached=False, prints=True, limited=False),
):
    """The errors of an image's outputs on the golden vectors, at two addresses in memory."""

    bundle: _Bundle
    image: Annotated[Path, Input("the image")]
    facts: Annotated[Path, Input("the image's figures")]
    target: common.Target
    tolerance: Annotated[Path | None, common.ToleranceSlice] = None
    work: _Work
    timeout: Annotated[float, Setting("seconds for all vectors together")] = TIMEOUT
    out: Annotated[Path, Output("results, written only when all passed")]


@dataclass(frozen=True, kw_only=True)
class DeviceRunStage(
    Stage, spec=StageSpec("device-run", "kiln.device.check.run", cached=False, prints=True, limited=False)
):
    """The bundle's result for an image."""

    bundle: _Bundle
    target: common.Target
    config: Annotated[Path, common.config("run", "preprocess", "labels", "run")]
    plan: Annotated[Path, Input("plan.json: inputs and outputs of the model")]
    work: _Work
    image: Annotated[Path | None, Setting("an image in place of the model's own")] = None
    traffic: _Traffic = None
    device: common.Device = None
    out: Annotated[Path | None, Output("the printed result, as JSON")] = None
    timeout: Annotated[float, Setting("seconds for the run")] = TIMEOUT


@dataclass(frozen=True, kw_only=True)
class PackageStage(Stage, spec=StageSpec("package", "kiln.device.packages", cached=False)):
    """The bundle in the form that other tools install."""

    bundle: _Bundle
    target: common.Target
    kind: Annotated[str, Setting("kind of package, such as zephyr")]
    others: Annotated[
        tuple[Path, ...], Input("the model's bundle for a further target; once for each target", "--other")
    ] = ()
    other_targets: Annotated[
        tuple[Path, ...], Input("target.json of that bundle, in the same order", "--other-target")
    ] = ()
    models: Annotated[
        tuple[Path, ...], Input("for a joint library: the own bundle of each of its models", "--model")
    ] = ()
    work: _Work
    out: Annotated[Path, Output("the package")]
    facts: Annotated[Path, Output("kind, size and digest of the package, JSON")]


@dataclass(frozen=True, kw_only=True)
class DeviceBenchStage(
    Stage,
    spec=StageSpec(
        "device-bench",
        "kiln.device.check.bench",
        cached=False,
        prints=True,
        limited=False,
        on_device=True,
        measures=True,
    ),
):
    """The times of runs, and with --steps of each step."""

    bundle: _Bundle
    target: common.Target
    plan: Annotated[Path, Input("plan.json: the steps")]
    work: _Work
    device: common.Device = None
    steps: Annotated[bool, Setting("show the slowest steps, measure the core's peak")] = False
    timeout: Annotated[float, Setting("seconds for a program to end")] = TIMEOUT
    traffic: _Traffic = None
    out: Annotated[Path, Output("all figures, as JSON")]


@dataclass(frozen=True, kw_only=True)
class ProfileStage(Stage, spec=StageSpec("profile", "kiln.report.profile", cached=False, prints=True)):
    """The times of steps → a page for the browser, and a trace."""

    profile: Annotated[Path, Input("the output of device-bench --steps")]
    plan: common.Plan
    source: Annotated[Path | None, Input("the model's file, for the names of its nodes")] = None
    out: Annotated[Path, Output("the page")]
    trace: Annotated[Path, Output("the steps in Chrome's trace format")]


@dataclass(frozen=True, kw_only=True)
class PlanTextStage(Stage, spec=StageSpec("plan-text", "kiln.report.plan_text", cached=False, prints=True)):
    """Prints the steps of each bucket."""

    plan: common.Plan


@dataclass(frozen=True, kw_only=True)
class TuneStage(
    Stage, spec=StageSpec("tune", "kiln.tune.stage", cached=False, prints=True, limited=False, measures=True)
):
    """Times candidates for each kernel, and records the ones that are faster than the heuristics."""

    sources: common.Sources
    target: common.Target
    config: common.LowerSlice
    device: common.Device = None
    database: Annotated[
        Path | None,
        Scratch("folder of the tuning records of all CPUs; left out: the folder that `lower` reads"),
    ] = None
    out: Annotated[Path, Output("the measurements, JSON")]


@dataclass(frozen=True, kw_only=True)
class FlashStage(
    GoldenCheck, spec=StageSpec("device-flash", "kiln.device.flash", cached=False, prints=True, limited=False)
):
    """Installs a bundle on a device, checks it there, and switches to it."""

    device: Annotated[Path, Input("device.json")]
    list: _List = False


@dataclass(frozen=True, kw_only=True)
class InstalledStage(
    Stage,
    spec=StageSpec("device-installed", "kiln.device.installed", cached=False, prints=True, limited=False),
):
    """Switches back to the version before, or shows the installed one."""

    goal: Annotated[Literal["rollback", "status"], Setting("what to do")]
    device: Annotated[Path, Input("device.json")]
    model: Annotated[str, Setting("the model's name")]
    # Not an input: the bundle is compared as it is, and not built first.
    bundle: Annotated[Path | None, Setting("the bundle built here, to compare with")] = None
    list: _List = False
    out: Annotated[Path | None, Output("what is installed, JSON")] = None


@dataclass(frozen=True, kw_only=True)
class ProgramStage(
    Stage, spec=StageSpec("device-program", "kiln.device.program", cached=False, prints=True, limited=False)
):
    """Loads a linked program on a device with a gdb server, compares it, runs it or tests it."""

    goal: Annotated[Literal["flash", "run", "status", "test"], Setting("what to do")]
    device: Annotated[Path, Input("device.json of a device with a gdb server")]
    # Not an input: SCons would expand a $ in the user's file name.
    program: Annotated[Path, Setting("ELF file, linked for the device's memory")]
    bundle: Annotated[Path | None, Input("the bundle with the golden vectors for `test`")] = None
    tolerance: Annotated[Path | None, common.ToleranceSlice] = None
    timeout: Annotated[float, Setting("seconds for the program to end")] = TIMEOUT
    out: Annotated[Path, Output("results, JSON; the program's files go next to it")]


@dataclass(frozen=True, kw_only=True)
class DevicesStage(Stage, spec=StageSpec("devices", "kiln.device.deploy.devices", cached=False, prints=True)):
    """Lists the devices, and whether they answer."""

    out: Annotated[Path, Output("the devices and their answers, JSON")]


@dataclass(frozen=True, kw_only=True)
class DeviceSchemaStage(
    Stage, spec=StageSpec("device-schema", "kiln.device.deploy.registry", cached=False, early=True)
):
    """JSON Schema of devices, for editors."""

    out: Annotated[Path, Output("device.schema.json")]


@dataclass(frozen=True, kw_only=True)
class SchemaStage(Stage, spec=StageSpec("schema", "kiln.config.schema", cached=False, early=True)):
    """JSON Schemas of targets and models, for editors."""

    out: Annotated[Path, Output("folder for the schemas", files=("target.schema.json", "model.schema.json"))]
