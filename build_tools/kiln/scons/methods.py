"""Kiln's methods of an SCons environment: each declares all stages that a model on a target needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kiln.config import load_target
from kiln.scons import needs, options, summary
from kiln.scons.builders.bundle import Bundle, bundle
from kiln.scons.builders.checked import ran, tested, timed
from kiln.scons.builders.devices import devices, of_program, on_device
from kiln.scons.builders.schema import schema
from kiln.scons.builders.shown import shown
from kiln.scons.builders.tune import tune
from kiln.scons.model_build import Unit
from kiln.scons.options import Options
from kiln.scons.session import WORK

# SCons names the methods after these functions; the names follow SCons's own style.


def KilnBundle(  # noqa: N802
    env: Any,
    model: str,
    target: str = "host",
    dump: bool = False,
    byoc: str | None = None,
    precision: str | None = None,
    variants: str | None = None,
) -> Bundle:
    """Declare the bundle of `model` for `target`; `dump` writes the IR after each pass."""
    return bundle(Unit(model, target, byoc, precision, variants=variants), dump)


def KilnTest(  # noqa: N802
    env: Any,
    model: str,
    target: str = "host",
    dump: bool = False,
    device: str | None = None,
    byoc: str | None = None,
    precision: str | None = None,
    variants: str | None = None,
) -> Any:
    """Declare the comparison with the golden vectors.

    The build fails where an output exceeds its tolerance.
    """
    return tested(Unit(model, target, byoc, precision, device, variants), dump, device)


def KilnRun(  # noqa: N802
    env: Any,
    model: str,
    target: str = "host",
    dump: bool = False,
    image: str | None = None,
    device: str | None = None,
    byoc: str | None = None,
    precision: str | None = None,
    variants: str | None = None,
) -> Any:
    """Declare a run on an image; it is done in every build."""
    return ran(Unit(model, target, byoc, precision, device, variants), dump, image, device)


def KilnBench(  # noqa: N802
    env: Any,
    model: str,
    target: str = "host",
    dump: bool = False,
    device: str | None = None,
    steps: bool = False,
    byoc: str | None = None,
    precision: str | None = None,
    variants: str | None = None,
) -> Any:
    """Declare the timing of runs, with `steps` of each step too; it is done in every build."""
    return timed(Unit(model, target, byoc, precision, device, variants), dump, device, steps)


def KilnDevice(  # noqa: N802
    env: Any,
    goal: str,
    model: str,
    target: str = "host",
    dump: bool = False,
    device: str = "local",
    byoc: str | None = None,
    precision: str | None = None,
    variants: str | None = None,
) -> Any:
    """Declare `goal` (flash, rollback or status) on a device; it is done in every build."""
    return on_device(goal, Unit(model, target, byoc, precision, device, variants), dump, device)


def KilnProgram(  # noqa: N802
    env: Any,
    goal: str,
    program: str,
    device: str,
    model: str | None = None,
    target: str = "host",
    dump: bool = False,
) -> Any:
    """Declare `goal` (flash, status, run or test) of a linked program on a device behind a gdb server.

    It is done in every build; `test` runs the program on the golden vectors of `model`.
    """
    return of_program(goal, program, device, Unit(model, target) if model else None, dump)


def KilnDevices(env: Any) -> Any:  # noqa: N802
    """Declare that the devices in devices/ are listed."""
    return devices()


def KilnSize(  # noqa: N802
    env: Any,
    model: str,
    target: str = "host",
    dump: bool = False,
    byoc: str | None = None,
    precision: str | None = None,
    variants: str | None = None,
) -> Any:
    """Declare that the flash and RAM of a bundle are printed."""
    return shown(Unit(model, target, byoc, precision, variants=variants), dump)


def KilnTune(  # noqa: N802
    env: Any,
    model: str,
    target: str = "host",
    dump: bool = False,
    device: str | None = None,
    byoc: str | None = None,
    precision: str | None = None,
    variants: str | None = None,
) -> Any:
    """Declare that the kernels of `model` are timed, here or on a device; later builds use the result."""
    return tune(Unit(model, target, byoc, precision, variants=variants), dump, device)


def KilnSchemas(env: Any) -> list[Any]:  # noqa: N802
    """Declare the JSON Schemas of targets and models, for editors."""
    return schema()


def KilnAlias(env: Any, name: str, nodes: Any) -> Any:  # noqa: N802
    """Add nodes to the goal `name`; bundle and test print a summary after their last node."""
    says = {"bundle": summary.bundles, "test": summary.tests}.get(name)
    first = name not in _aliases
    _aliases.add(name)
    action = env.Action(says, strfunction=None) if says and first else None
    return env.AlwaysBuild(env.Alias(name, nodes, action))


_aliases: set[str] = set()


def KilnOptions(env: Any, arguments: Mapping[str, str], goals: Sequence[str]) -> Options:  # noqa: N802
    """Parse and check the command line. Also makes SCons store its signatures in build/, like all outputs."""
    from SCons.Script import ARGLIST

    options.once(ARGLIST)
    parsed = options.parse(arguments, goals)
    needs.check([load_target(name) for name in parsed.targets], goals, parsed.known_device())
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
    KilnDevice,
    KilnProgram,
    KilnDevices,
    KilnSchemas,
    KilnAlias,
    KilnOptions,
    KilnHelp,
)
