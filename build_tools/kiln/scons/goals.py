"""Goals besides the bundle and its test: runs and timings, devices, tuning, sizes, schemas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kiln.config import canonical_json
from kiln.config.images import check_images
from kiln.scons import flow, needs, result_files
from kiln.scons.libraries import declare_libraries
from kiln.scons.model_build import ModelBuild
from kiln.scons.outside import runtime_source
from kiln.scons.place import RunPlace
from kiln.scons.session import BUILD, session
from kiln.scons.stage import declare, existing, nodes, text_file
from kiln.stages import use
from kiln.stages.target import ImageStage, SizeStage


def declare_run(unit: ModelBuild, image: str | None, traffic: str | None = None) -> Any:
    """Declare run.json: the bundle's result for an image. The stage runs in every build, as it prints it.

    `traffic`: the path of a traffic file that gets the sizes of the run.
    """
    run_place = RunPlace(unit)
    out = run_place.folder / "run.json"
    needs.check([unit.target], ["run"], run_place.device)
    declare(
        use.DeviceRunStage(
            plan=flow.declare_bundle(unit).plan,
            bundle=unit.bundle,
            target=unit.target_json(),
            config=unit.slice("run"),
            work=unit.folder / "device",
            image=Path(image) if image else None,
            traffic=None if traffic is None else Path(traffic),
            device=run_place.config,
            timeout=float(unit.model.limits.program_seconds),
            out=out,
        ),
        run_place.subject,
        always=True,
        dry_run_text=run_place.dry_run_text("run"),
    )
    return nodes(out)[0]


def declare_bench(unit: ModelBuild, steps: bool, traffic: str | None = None) -> Any:
    """Declare bench.json, or with `steps` profile.json, an HTML page and a trace next to the bundle.

    Both have the times of runs; the stage runs in every build.
    """
    run_place, name = RunPlace(unit), "profile" if steps else "bench"
    needs.check([unit.target], [name], run_place.device)
    times = declare(
        use.DeviceBenchStage(
            plan=flow.declare_bundle(unit).plan,
            bundle=unit.bundle,
            target=unit.target_json(),
            work=unit.folder / "device",
            device=run_place.config,
            steps=steps,
            timeout=float(unit.model.limits.program_seconds),
            traffic=None if traffic is None else Path(traffic),
            out=run_place.folder / f"{name}.json",
        ),
        run_place.subject,
        always=True,
        dry_run_text=run_place.dry_run_text(name),
    ).out
    if not steps:
        return nodes(times)[0]
    page, trace = result_path(unit, "profile.html"), result_path(unit, "trace.json")
    plan, source = flow.declare_bundle(unit).plan, flow.declare_graphs(unit).graph
    declare(
        use.ProfileStage(profile=times, plan=plan, source=source, out=page, trace=trace), run_place.subject
    )
    return nodes(page)[0]


def result_path(unit: ModelBuild, ending: str) -> Path:
    """The path of a result next to the bundle: <model>.<ending>, on a device <model>.<device>.<ending>."""
    device = RunPlace(unit).device
    return unit.bundle.with_name(f"{unit.name}{f'.{device.name}' if device else ''}.{ending}")


def declare_plan(unit: ModelBuild) -> Any:
    """Declare that the steps of the plan are printed, in every build with `plan`."""
    importing = flow.declare_graphs(unit)
    compiled = flow.declare_code(unit, importing, declare_libraries(unit, importing.folders))
    marker = unit.folder / "plan.shown"
    declare(use.PlanTextStage(plan=compiled.plan / "plan.json"), unit.subject, marker=marker, always=True)
    return nodes(marker)[0]


def declare_report(unit: ModelBuild) -> Any:
    """Declare the bundle's report with earlier measurements: test, times of steps, errors of tensors.

    If an earlier build tested the bundle, the test is repeated where the bundle has changed; the results of
    the goal `profile` and of the command `compare` are used as they are.
    """
    run_place, page = RunPlace(unit), flow.declare_bundle(unit).report
    test = run_place.folder / "test.json"
    if test.is_file():
        flow.declare_test(unit)
    stage = replace(
        page,
        test=existing(test),
        profile=existing(run_place.folder / "profile.json"),
        compare=existing(Path(BUILD, ".compare", unit.target.name, unit.name, "compare.json")),
        out=result_path(unit, "report.html"),
    )
    return nodes(declare(stage, run_place.subject).out)[0]


def declare_tune(unit: ModelBuild) -> Any:
    """Declare tuned.json, the measurements; the stage runs in every build with `tune`.

    The tuning records that `lower` reads are in tir/tuned/; new ones take effect in the next build.
    """
    run_place = RunPlace(unit)
    stage = declare(
        use.TuneStage(
            sources=tuple(flow.declare_graphs(unit).folders),
            target=unit.target_json(),
            config=unit.slice("lower"),
            device=run_place.config,
            out=run_place.folder / "tuned.json",
        ),
        run_place.subject,
        always=True,
        dry_run_text=run_place.dry_run_text("tune"),
    )
    return nodes(stage.out)[0]


def declare_size_table(unit: ModelBuild) -> Any:
    """Declare that the table of sizes is printed, in every build with `size`."""
    importing = flow.declare_graphs(unit)
    external = declare_libraries(unit, importing.folders)
    sizes = flow.declare_size(unit, flow.declare_code(unit, importing, external))
    marker = unit.folder / "size.shown"
    # Without a backend, the reason was printed at the start of the build.
    choice = external.choice if unit.auto is None else None
    declare(SizeStage(show=sizes, byoc=choice), unit.subject, marker=marker, always=True)
    return nodes(marker)[0]


def declare_package(
    unit: ModelBuild, kind: str | None, others: Sequence[ModelBuild] = ()
) -> use.PackageStage:
    """Declare the bundle as a package of a kind, and return the stage.

    `others`: the model on all targets of this build; a package that can hold several bundles contains the
    bundle of each target that supports this kind. Raises KilnError if the target's system does not.
    """
    from kiln.device.packages import holds_several, kind_of, version

    chosen = kind_of(unit.target, kind)
    flow.declare_bundle(unit)
    more = [
        other
        for other in others
        if holds_several(chosen)
        and chosen in other.target.system.packages
        and other.target.name != unit.target.name
    ]
    for other in more:
        flow.declare_bundle(other)
    name = unit.target.system.packages[chosen].format(unit.name, version=version())
    out = unit.bundle.with_name(name)
    stage = use.PackageStage(
        bundle=unit.bundle, target=unit.target_json(), kind=chosen, work=unit.folder / "device",
        others=tuple(other.bundle for other in more),
        other_targets=tuple(other.target_json() for other in more), out=out,
        facts=unit.folder / f"package-{chosen}.json",
    )  # fmt: skip
    return declare(stage, unit.subject)


def declare_image(unit: ModelBuild, test: bool = False) -> Any:
    """Declare the model's image next to the bundle; with `test`, its test from two addresses in memory."""
    check_images(unit.target, unit.backend_names)  # before anything is built
    importing = flow.declare_graphs(unit)
    compiled = flow.declare_code(unit, importing, declare_libraries(unit, importing.folders))
    target, out = unit.target_json(), unit.bundle.with_name(f"{unit.name}.img")
    image = declare(
        ImageStage(
            target=target,
            plan=compiled.plan,
            source=compiled.source,
            objects=compiled.objects,
            out=out,
            facts=unit.folder / "image.json",
        ),
        unit.subject,
        more=[runtime_source()],
    )
    if not test:
        return nodes(image.out)[0]
    needs.check([unit.target], ["test"], None)
    flow.declare_bundle(unit)
    tested = use.ImageTestStage(
        bundle=unit.bundle,
        image=image.out,
        facts=image.facts,
        target=target,
        tolerance=unit.slice("tolerance"),
        work=unit.folder / "image",
        timeout=float(unit.model.limits.program_seconds),
        out=unit.folder / "image-test.json",
    )
    return nodes(declare(tested, unit.subject).out)[0]


def declare_flash(unit: ModelBuild) -> Any:
    """Declare the installation of a bundle on a device."""
    run_place = RunPlace(unit)
    out = run_place.folder / "flash.json"
    flow.declare_bundle(unit)
    assert run_place.config is not None  # flash needs a device
    declare(
        use.FlashStage(
            bundle=unit.bundle,
            target=unit.target_json(),
            tolerance=unit.slice("tolerance"),
            work=unit.folder / "device",
            device=run_place.config,
            compare=unit.compare_command,
            out=out,
        ),
        run_place.subject,
        always=True,
        dry_run_text=run_place.dry_run_text("flash"),
    )
    return nodes(out)[0]


def declare_installed(unit: ModelBuild, goal: Any) -> Any:
    """Declare `goal`, rollback or status, for the model's versions on a device."""
    run_place = RunPlace(unit)
    assert run_place.config is not None  # these goals need a device
    # `status` compares with the bundle as it is now, so the bundle is not built first.
    out = run_place.folder / f"{goal}.json"
    stage = use.InstalledStage(
        goal=goal, device=run_place.config, model=unit.name, bundle=unit.bundle, out=out
    )
    declare(stage, run_place.subject, always=True, dry_run_text=run_place.dry_run_text(goal))
    return nodes(out)[0]


def declare_program(goal: Any, program: str, device: str, unit: ModelBuild | None) -> Any:
    """Declare flash, status, run or test of a linked program on a device without a file system.

    `unit` is the model whose golden vectors the program runs on for `test`.
    """
    from kiln.device.deploy.listing import program_listing
    from kiln.device.deploy.registry import device_config, load_device  # only where a device is named

    description = load_device(device)
    folder = Path(session().work) / "devices" / description.name
    model, target = (None, None) if unit is None else (unit.name, unit.target.name)
    result_files.entry(goal, "results", {"results": folder / f"{goal}.json"}, model, target, description.name)
    tested_unit = unit if goal == "test" else None
    if tested_unit is not None:
        flow.declare_bundle(tested_unit)
    stage = use.ProgramStage(
        goal=goal,
        device=text_file(folder / "device.json", canonical_json(device_config(description))),
        program=Path(program),
        bundle=tested_unit.bundle if tested_unit else None,
        tolerance=tested_unit.slice("tolerance") if tested_unit else None,
        out=folder / f"{goal}.json",
    )
    subject = f"{program} on {description.name}"
    declare(stage, subject, always=True, dry_run_text=lambda: program_listing(goal, description, program))
    return nodes(stage.out)[0]


def declare_devices() -> Any:
    """Declare that the devices in devices/ are listed."""
    stage = declare(use.DevicesStage(out=devices_file()), "known devices", always=True)
    return nodes(stage.out)[0]


def devices_file() -> Path:
    """The path of the file with the devices and their answers."""
    return Path(session().work) / "devices.json"


def declare_schemas() -> list[Any]:
    """Declare the JSON Schemas of targets, models and devices, which editors use for the YAML files."""
    files = schema_files()
    schemas = declare(use.SchemaStage(out=files["model"].parent), "YAML files of models and targets").out
    device = declare(use.DeviceSchemaStage(out=files["device"]), "YAML files of devices").out
    return [*nodes(schemas), *nodes(device)]


def schema_files() -> dict[str, Path]:
    """The paths of the JSON Schemas, by kind of YAML file."""
    folder = Path(BUILD) / "schema"
    return {kind: folder / f"{kind}.schema.json" for kind in ("target", "model", "device")}
