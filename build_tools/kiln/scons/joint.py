"""The goal `joint`: several models of a target in one library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kiln.config.c_words import can_name_model
from kiln.config.together import groups_of
from kiln.errors import KilnError
from kiln.scons import flow, needs
from kiln.scons.libraries import declare_libraries
from kiln.scons.model_build import ModelBuild
from kiln.scons.place import RunPlace
from kiln.scons.results import ModelCode
from kiln.scons.session import session
from kiln.scons.stage import declare, nodes
from kiln.stages.target import JointSizeStage, JointStage
from kiln.stages.use import JointTestStage, PackageStage


def joint_name(units: Sequence[ModelBuild], name: str | None) -> str:
    """The library's name: `name`, or the models' names. Raises KilnError for a name that C does not allow."""
    if len(units) < 2:
        raise KilnError("joint: at least two models expected: model=a,b")
    chosen = name or "_".join(unit.name for unit in units)
    if not (chosen.isidentifier() and chosen.isascii()):
        raise KilnError(f"option 'name': '{chosen}' cannot name a C function: letters, digits and _ expected")
    if not can_name_model(chosen):
        raise KilnError(
            f"option 'name': '{chosen}' is a word of C, a function of its library or a name in generated "
            f"code; choose another name, {chosen}_models for example"
        )
    if chosen in [unit.name for unit in units]:
        raise KilnError(f"option 'name': '{chosen}' is one of the models; choose another name")
    return chosen


def declare_joint(units: Sequence[ModelBuild], name: str, together: str) -> Any:
    """Declare the joint library of models on one target, and the table of its sizes.

    Raises KilnError for a wrong `together` before anything is built.
    """
    groups_of(together, [unit.name for unit in units])
    first = units[0]
    models_code: list[ModelCode] = []
    for unit in units:
        importing = flow.declare_graphs(unit)
        models_code.append(flow.declare_code(unit, importing, declare_libraries(unit, importing.folders)))
    subject, out = f"{first.target.name}/{name}", _folder(first, name)
    target = first.target_json()
    declare(
        JointStage(
            name=name,
            together=together,
            target=target,
            runtime=first.of_target / f"runtime-{first.threads}",
            plans=tuple(code.plan for code in models_code),
            objects=tuple(code.objects for code in models_code),
            out=out,
        ),
        subject,
    )
    sizes = declare(
        JointSizeStage(
            joint=out,
            sizes=tuple(flow.declare_size(unit, code) for unit, code in zip(units, models_code, strict=True)),
            target=target,
            work=Path(session().work, first.target.name, name, "device"),
            out=Path(session().work, first.target.name, name, "joint.json"),
        ),
        subject,
    )
    return nodes(sizes.out)[0]


def declare_test(units: Sequence[ModelBuild], name: str, together: str) -> Any:
    """Declare that every model of the joint library runs on its golden vectors."""
    first = units[0]
    run_place = RunPlace(first)
    needs.check([first.target], ["test"], run_place.device)
    declare_joint(units, name, together)
    for unit in units:
        flow.declare_bundle(unit)
    on = "" if run_place.device is None else run_place.device.name
    work = Path(session().work, first.target.name, name, *(["on", on] if on else []))
    stage = declare(
        JointTestStage(
            joint=_folder(first, name),
            bundles=tuple(unit.bundle for unit in units),
            target=first.target_json(),
            work=work / "test",
            device=run_place.config,
            timeout=float(max(unit.model.limits.program_seconds for unit in units)),
            out=work / "test.json",
        ),
        f"{first.target.name}/{name}" + (f" on {on}" if on else ""),
        always=bool(on),  # the state of a device cannot be read from files
        dry_run_text=run_place.dry_run_text("test"),
    )
    return nodes(stage.out)[0]


def declare_package(units: Sequence[ModelBuild], name: str, together: str, kind: str | None) -> PackageStage:
    """Declare the joint library as a package of a kind, and return the stage.

    Raises KilnError if the target's system has no such kind for joint libraries.
    """
    from kiln.device.packages import joint_kind_of, version

    first = units[0]
    chosen = joint_kind_of(first.target, kind)
    declare_joint(units, name, together)
    for unit in units:
        flow.declare_bundle(unit)
    folder, work = _folder(first, name), Path(session().work, first.target.name, name)
    stage = PackageStage(
        bundle=folder, models=tuple(unit.bundle for unit in units), target=first.target_json(), kind=chosen,
        work=work / "package", out=folder.with_name(
            first.target.system.packages[chosen].format(name, version=version())
        ),
        facts=work / f"package-{chosen}.json",
    )  # fmt: skip
    return declare(stage, f"{first.target.name}/{name}")


def _folder(unit: ModelBuild, name: str) -> Path:
    return unit.bundle.with_name(name)
