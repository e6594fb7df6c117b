"""Kiln's methods of an SCons environment: each declares all stages that a model on a target needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kiln.config import load_target
from kiln.config.check import choices
from kiln.errors import KilnError
from kiln.files import make_build_folder
from kiln.scons import flow, goals, jobs, joint, needs, options, result_files, summary
from kiln.scons.first_build import WORK
from kiln.scons.model_build import BuildOptions, ModelBuild
from kiln.scons.options import Options
from kiln.scons.place import RunPlace
from kiln.scons.results import BundleNodes
from kiln.scons.signatures import store_signatures

# SCons names the methods after these functions; the names follow SCons's own style. `more` are the fields of
# BuildOptions.


def KilnBundle(env: Any, model: str, target: str = "host", **more: Any) -> BundleNodes:  # noqa: N802
    """Declare the bundle of `model` for `target`."""
    unit = _unit(model, target, more)
    archive = unit.bundle.with_name(f"{unit.name}.tar.gz")
    bundle = flow.declare_bundle(unit)
    result_files.add(
        unit,
        "bundle",
        "manifest",
        manifest=unit.bundle / "manifest.json",
        folder=unit.bundle,
        archive=archive,
        interface=flow.declare_graphs(unit).interface,
    )
    return bundle


def KilnTest(env: Any, model: str, target: str = "host", **more: Any) -> Any:  # noqa: N802
    """Declare the comparison with the golden vectors.

    The build fails where an output exceeds its tolerance.
    """
    unit = _unit(model, target, more)
    result_files.add(unit, "test", "results", results=RunPlace(unit).folder / "test.json")
    return flow.declare_test(unit)


def KilnRun(  # noqa: N802
    env: Any,
    model: str,
    target: str = "host",
    image: str | None = None,
    traffic: str | None = None,
    **more: Any,
) -> Any:
    """Declare a run on an image; it is done in every build. `traffic`: a file that gets its sizes."""
    unit = _unit(model, target, more)
    result_files.add(unit, "run", "result", result=RunPlace(unit).folder / "run.json")
    return goals.declare_run(unit, image, traffic)


def KilnBench(  # noqa: N802
    env: Any,
    model: str,
    target: str = "host",
    steps: bool = False,
    traffic: str | None = None,
    **more: Any,
) -> Any:
    """Declare the timing of runs, with `steps` of each step too; it is done in every build.

    `traffic`: a file that gets the sizes of the runs.
    """
    unit, name = _unit(model, target, more), "profile" if steps else "bench"
    pages = (
        {"page": goals.result_path(unit, "profile.html"), "trace": goals.result_path(unit, "trace.json")}
        if steps
        else {}
    )
    result_files.add(unit, name, "times", times=RunPlace(unit).folder / f"{name}.json", **pages)
    return goals.declare_bench(unit, steps, traffic)


def KilnReport(env: Any, model: str, target: str = "host", **more: Any) -> Any:  # noqa: N802
    """Declare the report of a bundle with earlier measurements: its test, times, errors of tensors."""
    unit = _unit(model, target, more)
    result_files.add(unit, "report", "page", page=goals.result_path(unit, "report.html"))
    return goals.declare_report(unit)


def KilnDevice(  # noqa: N802
    env: Any, goal: str, model: str, target: str = "host", device: str = "local", **more: Any
) -> Any:
    """Declare `goal` (flash, rollback or status) on a device; it is done in every build."""
    unit = _unit(model, target, {"device": device, **more})
    if goal == "flash":
        result_files.add(unit, goal, "results", results=RunPlace(unit).folder / "flash.json")
        return goals.declare_flash(unit)
    result_files.add(unit, goal, "state", state=RunPlace(unit).folder / f"{goal}.json")
    return goals.declare_installed(unit, goal)


def KilnProgram(  # noqa: N802
    env: Any,
    goal: str,
    program: str,
    device: str,
    model: str | None = None,
    target: str = "host",
    **more: Any,
) -> Any:
    """Declare `goal` (flash, status, run or test) of a linked program on a device with a gdb server.

    It is done in every build; `test` runs the program on the golden vectors of `model`.
    """
    return goals.declare_program(goal, program, device, _unit(model, target, more) if model else None)


def KilnDevices(env: Any) -> Any:  # noqa: N802
    """Declare that the devices in devices/ are listed."""
    result_files.add(None, "devices", "devices", devices=goals.devices_file())
    return goals.declare_devices()


def KilnSize(env: Any, model: str, target: str = "host", **more: Any) -> Any:  # noqa: N802
    """Declare that the flash and RAM of a bundle are printed."""
    unit = _unit(model, target, more)
    result_files.add(unit, "size", "figures", figures=unit.folder / "size.json")
    return goals.declare_size_table(unit)


def KilnJoint(  # noqa: N802
    env: Any,
    models: Sequence[str],
    target: str = "host",
    name: str | None = None,
    together: str | None = None,
    test: bool = False,
    package: str | None = None,
    **more: Any,
) -> Any:
    """Declare one library of several models.

    With `test`, its test on the golden vectors of all of them; with `package`, the library in the form that
    other tools install. `together`: models that run at the same time, as a+b,c+d.
    """
    units = [_unit(model, target, more) for model in models]
    chosen = joint.joint_name(units, name)
    if test:
        return joint.declare_test(units, chosen, together or "")
    if package is not None:
        package_stage = joint.declare_package(units, chosen, together or "", package or None)
        result_files.entry(
            "package",
            "figures",
            {"package": package_stage.out, "figures": package_stage.facts},
            chosen,
            target,
        )
        return env.File(str(package_stage.out))
    figures = Path(WORK, units[0].target.name, chosen, "joint.json")
    result_files.add(units[0], "joint", "figures", figures=figures, folder=units[0].bundle.with_name(chosen))
    return joint.declare_joint(units, chosen, together or "")


def KilnImage(  # noqa: N802
    env: Any, model: str, target: str = "host", test: bool = False, **more: Any
) -> Any:
    """Declare the image of a model, which a program runs at any address; `test`: its golden vectors too."""
    unit = _unit(model, target, more)
    if test:
        return goals.declare_image(unit, test=True)
    result_files.add(
        unit,
        "image",
        "figures",
        figures=unit.folder / "image.json",
        image=unit.bundle.with_name(f"{unit.name}.img"),
    )
    return goals.declare_image(unit)


def KilnPackage(  # noqa: N802
    env: Any,
    model: str,
    target: str = "host",
    package: str | None = None,
    targets: Sequence[str] = (),
    **more: Any,
) -> Any:
    """Declare a package of a bundle, such as a Zephyr module; `package`: its kind, None: the only one.

    `targets`: whose bundles a package that can hold several has, too, where it is for their systems.
    """
    unit = _unit(model, target, more)
    other_units = [_unit(model, other, more) for other in targets if other != target]
    package_stage = goals.declare_package(unit, package, other_units)
    result_files.add(unit, "package", "figures", package=package_stage.out, figures=package_stage.facts)
    return env.File(str(package_stage.out))


def KilnPlan(env: Any, model: str, target: str = "host", **more: Any) -> Any:  # noqa: N802
    """Declare that the plan of a bundle is printed."""
    unit = _unit(model, target, more)
    result_files.add(unit, "plan", "plan", plan=unit.folder / "plan" / "plan.json")
    return goals.declare_plan(unit)


def KilnTune(env: Any, model: str, target: str = "host", **more: Any) -> Any:  # noqa: N802
    """Declare that the kernels of `model` are timed, here or on a device; later builds use the result."""
    unit = _unit(model, target, more)
    result_files.add(unit, "tune", "measurements", measurements=RunPlace(unit).folder / "tuned.json")
    return goals.declare_tune(unit)


def KilnSchemas(env: Any) -> list[Any]:  # noqa: N802
    """Declare the JSON Schemas of targets and models, for editors."""
    result_files.add(None, "schema", None, **goals.schema_files())
    return goals.declare_schemas()


def _unit(model: str, target: str, more: Mapping[str, Any]) -> ModelBuild:
    """A model on a target; raises KilnError for an option that does not exist."""
    field_names = [field.name for field in dataclasses.fields(BuildOptions)]
    for name in more:
        if name not in field_names:
            raise KilnError(f"model '{model}': unknown option '{name}'{choices(name, field_names)}")
    return ModelBuild(model, target, BuildOptions(**more))


def KilnAlias(env: Any, name: str, nodes: Any) -> Any:  # noqa: N802
    """Add nodes to the goal `name`; bundle, test and others print a summary after their last node."""
    print_summary = {
        "bundle": summary.bundles,
        "test": summary.tests,
        "report": summary.pages,
        "image": summary.images,
        "package": summary.packages,
    }.get(name)
    first = name not in _aliases
    _aliases.add(name)
    action = env.Action(print_summary, strfunction=None) if print_summary and first else None
    return env.AlwaysBuild(env.Alias(name, nodes, action))


_aliases: set[str] = set()


def KilnOptions(env: Any, arguments: Mapping[str, str], goals: Sequence[str]) -> Options:  # noqa: N802
    """Parse and check the command line.

    Also makes SCons store its signatures in build/, like all outputs, and run several stages at a time where
    there is no -j.
    """
    from SCons.Script import ARGLIST, SetOption

    options.check_given_once(ARGLIST)
    parsed = options.parse(arguments, goals)
    needs.check([load_target(name) for name in parsed.targets], goals, parsed.known_device())
    if "cluster" not in arguments:  # which decides for itself
        SetOption("num_jobs", jobs.default(goals, len(parsed.targets) * len(parsed.models)))
    make_build_folder(WORK)
    # Absolute, since SCons resolves a relative path at the SConstruct. Its own SConsignFile would replace
    # `$x` in the name of the folder.
    store_signatures(Path(WORK, "sconsign").absolute())
    return parsed


def KilnHelp(env: Any) -> str:  # noqa: N802
    """The text of -h."""
    return options.help_text()


METHODS = (
    KilnBundle,
    KilnTest,
    KilnRun,
    KilnSize,
    KilnJoint,
    KilnPlan,
    KilnPackage,
    KilnImage,
    KilnTune,
    KilnBench,
    KilnReport,
    KilnDevice,
    KilnProgram,
    KilnDevices,
    KilnSchemas,
    KilnAlias,
    KilnOptions,
    KilnHelp,
)
