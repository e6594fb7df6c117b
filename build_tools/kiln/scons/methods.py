"""Kiln's methods of an SCons environment: each declares all stages that a model on a target needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kiln.config import load_target
from kiln.config.check import choices
from kiln.errors import KilnError
from kiln.scons import flow, goals, needs, options, summary
from kiln.scons.model_build import BuildOptions, ModelBuild
from kiln.scons.options import Options
from kiln.scons.results import BundleNodes
from kiln.scons.session import WORK

# SCons names the methods after these functions; the names follow SCons's own style. `more` are the fields of
# BuildOptions.


def KilnBundle(env: Any, model: str, target: str = "host", **more: Any) -> BundleNodes:  # noqa: N802
    """Declare the bundle of `model` for `target`."""
    return flow.bundle(_unit(model, target, more))


def KilnTest(env: Any, model: str, target: str = "host", **more: Any) -> Any:  # noqa: N802
    """Declare the comparison with the golden vectors.

    The build fails where an output exceeds its tolerance.
    """
    return flow.tested(_unit(model, target, more))


def KilnRun(  # noqa: N802
    env: Any, model: str, target: str = "host", image: str | None = None, **more: Any
) -> Any:
    """Declare a run on an image; it is done in every build."""
    return goals.ran(_unit(model, target, more), image)


def KilnBench(  # noqa: N802
    env: Any, model: str, target: str = "host", steps: bool = False, **more: Any
) -> Any:
    """Declare the timing of runs, with `steps` of each step too; it is done in every build."""
    return goals.timed(_unit(model, target, more), steps)


def KilnReport(env: Any, model: str, target: str = "host", **more: Any) -> Any:  # noqa: N802
    """Declare the report of a bundle with what was measured before: its test, times, errors of tensors."""
    return goals.reported(_unit(model, target, more))


def KilnDevice(  # noqa: N802
    env: Any, goal: str, model: str, target: str = "host", device: str = "local", **more: Any
) -> Any:
    """Declare `goal` (flash, rollback or status) on a device; it is done in every build."""
    unit = _unit(model, target, {"device": device, **more})
    return goals.flashed(unit) if goal == "flash" else goals.installed(unit, goal)


def KilnProgram(  # noqa: N802
    env: Any,
    goal: str,
    program: str,
    device: str,
    model: str | None = None,
    target: str = "host",
    **more: Any,
) -> Any:
    """Declare `goal` (flash, status, run or test) of a linked program on a device behind a gdb server.

    It is done in every build; `test` runs the program on the golden vectors of `model`.
    """
    return goals.of_program(goal, program, device, _unit(model, target, more) if model else None)


def KilnDevices(env: Any) -> Any:  # noqa: N802
    """Declare that the devices in devices/ are listed."""
    return goals.devices()


def KilnSize(env: Any, model: str, target: str = "host", **more: Any) -> Any:  # noqa: N802
    """Declare that the flash and RAM of a bundle are printed."""
    return goals.shown(_unit(model, target, more))


def KilnTune(env: Any, model: str, target: str = "host", **more: Any) -> Any:  # noqa: N802
    """Declare that the kernels of `model` are timed, here or on a device; later builds use the result."""
    return goals.tuned(_unit(model, target, more))


def KilnSchemas(env: Any) -> list[Any]:  # noqa: N802
    """Declare the JSON Schemas of targets and models, for editors."""
    return goals.schemas()


def _unit(model: str, target: str, more: Mapping[str, Any]) -> ModelBuild:
    """A model on a target; raises KilnError for an option that does not exist."""
    known = [field.name for field in dataclasses.fields(BuildOptions)]
    for name in more:
        if name not in known:
            raise KilnError(f"model '{model}': unknown option '{name}'{choices(name, known)}")
    return ModelBuild(model, target, BuildOptions(**more))


def KilnAlias(env: Any, name: str, nodes: Any) -> Any:  # noqa: N802
    """Add nodes to the goal `name`; bundle and test print a summary after their last node."""
    says = {"bundle": summary.bundles, "test": summary.tests, "report": summary.pages}.get(name)
    first = name not in _aliases
    _aliases.add(name)
    action = env.Action(says, strfunction=None) if says and first else None
    return env.AlwaysBuild(env.Alias(name, nodes, action))


_aliases: set[str] = set()


def KilnOptions(env: Any, arguments: Mapping[str, str], wanted: Sequence[str]) -> Options:  # noqa: N802
    """Parse and check the command line. Also makes SCons store its signatures in build/, like all outputs."""
    from SCons.Script import ARGLIST

    options.once(ARGLIST)
    parsed = options.parse(arguments, wanted)
    needs.check([load_target(name) for name in parsed.targets], wanted, parsed.known_device())
    Path(WORK).mkdir(parents=True, exist_ok=True)
    # Absolute, since SCons resolves a relative path at the SConstruct.
    env.SConsignFile(str(Path(WORK, "sconsign").absolute()))
    return parsed


def KilnHelp(env: Any) -> str:  # noqa: N802
    """The text of -h."""
    return options.help_text()


METHODS = (
    KilnBundle,
    KilnTest,
    KilnRun,
    KilnSize,
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
