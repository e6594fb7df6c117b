"""The stages of a model on a target, from its file to its tested bundle, in this order.

Each function declares a group of stages to SCons, from the paths that the functions above it return. A stage
that is declared again, for another goal, stays the same node.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from kiln.scons import listing, needs
from kiln.scons.bucket_build import bucket_builds, buckets_json
from kiln.scons.libraries import Libraries, declare_libraries
from kiln.scons.model_build import ModelBuild
from kiln.scons.outside import own_operators, runtime_source
from kiln.scons.place import RunPlace
from kiln.scons.results import BundleNodes, Graphs, ModelCode
from kiln.scons.session import session
from kiln.scons.stage import declare, nodes
from kiln.sources.torch_archive import versions
from kiln.stages import model as of_model
from kiln.stages import target as of_target
from kiln.stages.use import DeviceTestStage


def declare_import(unit: ModelBuild) -> Graphs:
    """Declare the stages from the model's file to a graph of each bucket as it was in the file."""
    source = declare(
        of_model.FetchStage(config=unit.slice("fetch"), out=unit.source),
        unit.name,
        more=unit.local_files("fetch"),
    ).out

    graph = source
    if unit.model.format == "pt2":
        called, out = unit.source_name, unit.exported
        export = of_model.ExportStage(source=source, tools=versions(), called=called, out=out)
        graph = declare(export, unit.name).out
    if unit.model.cut is not None:
        config, out = unit.slice("cut"), unit.of_model / f"cut{graph.suffix}"
        cut = of_model.CutStage(
            config=config, source=graph, sizes=unit.program_sizes, called=unit.source_name, out=out
        )
        source = graph = declare(cut, unit.name).out

    buckets = buckets_json(unit)
    folders = [
        declare(
            of_model.ImportStage(
                config=unit.slice("import"),
                bucket=bucket_build.bucket_json(),
                source=graph,
                called=unit.source_name,
                out=bucket_build.of_model / "import",
            ),
            bucket_build.model_subject,
            more=own_operators(),
        ).out
        for bucket_build in bucket_builds(unit)
    ]

    interfaces = tuple(folder / "interface.json" for folder in folders)
    interface = interfaces[0]
    if buckets is not None:
        interface = declare(
            of_model.InterfaceStage(
                buckets=buckets,
                config=unit.slice("import"),
                interfaces=interfaces,
                out=unit.of_model / "interface.json",
            ),
            unit.name,
        ).out
    return Graphs(source, graph, buckets, interface, folders)


def declare_graphs(unit: ModelBuild) -> Graphs:
    """Declare the stages from the model's file to the graph of each bucket that `lower` starts from."""
    importing, tolerance = declare_import(unit), unit.slice("tolerance")
    limits = of_model.LimitsStage(interface=importing.interface, tolerance=tolerance, out=unit.limits)
    declare(limits, unit.name)
    folders = [
        declare(
            of_model.SimplifyStage(
                source=folder,
                out=bucket_build.of_model / "simplify",
                dump=unit.dump(bucket_build.of_model / "dump" / "simplify"),
            ),
            bucket_build.model_subject,
            first=unit.limits,
        ).out
        for bucket_build, folder in zip(bucket_builds(unit), importing.folders, strict=True)
    ]
    if unit.model.weights is not None:
        for number, bucket_build in enumerate(bucket_builds(unit)):
            source, rounded = folders[number], bucket_build.of_model / "weights"
            stage = of_model.WeightsStage(source=source, config=unit.slice("weights"), out=rounded)
            folders[number] = declare(stage, bucket_build.model_subject).out

    padding = None
    if importing.buckets is not None and any(bucket_build.is_padded for bucket_build in bucket_builds(unit)):
        padding = declare(
            of_model.PaddingStage(
                config=unit.slice("padding"),
                source=importing.graph,
                called=unit.source_name,
                interface=importing.interface,
                buckets=importing.buckets,
                out=unit.of_model / "padding" / "padding.json",
            ),
            unit.name,
            more=own_operators(),
        ).out

    for number, bucket_build in enumerate(bucket_builds(unit)):
        if bucket_build.is_special:
            bucket = bucket_build.bucket_json()
            folders[number] = declare(
                of_model.SpecializeStage(
                    source=folders[number],
                    bucket=bucket,
                    interface=importing.interface if bucket else None,
                    padding=padding if bucket_build.is_padded else None,
                    config=unit.slice("specialize"),
                    out=bucket_build.of_model / "specialize",
                ),
                bucket_build.model_subject,
                more=unit.local_files("specialize"),
            ).out
    return replace(importing, folders=folders, padding=padding)


def declare_golden(unit: ModelBuild, importing: Graphs) -> Path:
    """Declare the golden vectors: inputs, and the outputs that a reference computes for them."""
    return declare(
        of_model.GoldenStage(
            config=unit.slice("golden"),
            source=importing.source,
            called=unit.source_name,
            interface=importing.interface,
            buckets=importing.buckets,
            padding=importing.padding,
            # The error that padding adds is compared with the tolerance.
            tolerance=unit.slice("tolerance") if importing.padding else None,
            out=unit.of_model / "golden",
        ),
        unit.name,
        more=[*unit.local_files("golden"), *own_operators()],
    ).out


def declare_precision(unit: ModelBuild, importing: Graphs, vectors: Path) -> Path | None:
    """Declare the measured errors of a model in less than float32; returns None for a model in float32."""
    if unit.model.precision == "fp32" and unit.model.weights is None:
        return None
    return declare(
        of_model.PrecisionStage(
            sources=tuple(importing.folders),
            golden=vectors,
            interface=importing.interface,
            config=unit.slice("precision"),
            tolerance=unit.slice("tolerance"),
            out=unit.folder / "precision.json",
        ),
        unit.subject,
    ).out


def declare_kernels(unit: ModelBuild, importing: Graphs, external: Libraries) -> tuple[Path, ...]:
    """Declare the kernels and steps of each bucket; returns their folders."""
    target = unit.target_json()
    packings = None
    if len(importing.folders) > 1:  # buckets share weights, so they are stored in forms that suit all of them
        sources, config, out = tuple(importing.folders), unit.slice("lower"), unit.folder / "packings"
        stage = of_target.PackingsStage(sources=sources, target=target, config=config, out=out)
        folder = declare(stage, unit.subject).out
        packings = folder / "packings.json"

    return tuple(
        declare(
            of_target.LowerStage(
                source=folder,
                target=target,
                config=unit.slice("lower"),
                byoc=external.byoc,
                packings=packings,
                out=bucket_build.folder / "lower",
                dump=unit.dump(bucket_build.folder / "dump" / "lower"),
            ),
            bucket_build.subject,
            more=external.sources,
        ).out
        for bucket_build, folder in zip(bucket_builds(unit), importing.folders, strict=True)
    )


def declare_plan(unit: ModelBuild, importing: Graphs, external: Libraries, lowered: tuple[Path, ...]) -> Path:
    """Declare the plan of all buckets, whose kernels and steps are in the folders `lowered`."""
    stage = of_target.PlanStage(
        sources=lowered, interface=importing.interface, buckets=importing.buckets, target=unit.target_json(),
        config=unit.slice("plan"), byoc=external.byoc, out=unit.folder / "plan",
    )  # fmt: skip
    return declare(stage, unit.subject).out


def declare_code(unit: ModelBuild, importing: Graphs, external: Libraries) -> ModelCode:
    """Declare the stages from the graphs to libraries and headers: kernels, plan, objects, C."""
    target, lowered = unit.target_json(), declare_kernels(unit, importing, external)
    plan = declare_plan(unit, importing, external, lowered)

    # A library that is loaded at run time on the device needs code of the runtime in the objects.
    opens = unit.target.cuda is not None and unit.backends
    objects = declare(
        of_target.ObjectsStage(
            sources=lowered,
            plan=plan,
            target=target,
            libraries=tuple(external.folders),
            cache=Path(session().work) / "kernels",
            out=unit.folder / "objects",
        ),
        unit.subject,
        more=[runtime_source()] if opens else [],
    ).out

    source = declare(
        of_target.SourceStage(plan=plan, out=unit.folder / "source"), unit.subject, model=unit.name
    ).out

    compiled = declare(
        of_target.CompileStage(target=target, source=source, name=unit.name, out=unit.folder / "compiled"),
        unit.subject,
        more=[runtime_source()],
    ).out
    runtime = declare(  # once for all models of a target
        of_target.CompileStage(
            target=target, runtime=unit.threads, out=unit.of_target / f"runtime-{unit.threads}"
        ),
        f"{unit.target.name}/runtime",
        more=[runtime_source()],
    ).out

    link = declare(
        of_target.LinkStage(
            name=unit.name,
            target=target,
            plan=plan / "plan.json",
            source=source,
            libraries=tuple(external.folders),
            objects=(objects, compiled, runtime),
            out=unit.folder / "link",
        ),
        unit.subject,
    ).out
    return ModelCode(plan, source, objects, link)


def declare_size(unit: ModelBuild, compiled: ModelCode) -> Path:
    """Declare size.json; the stage fails, and writes no file, when a budget is exceeded."""
    out = unit.folder / "size.json"
    declare(
        of_target.SizeStage(
            plan=compiled.plan / "plan.json",
            target=unit.target_json(),
            bundle=compiled.link,
            config=unit.slice("budget"),
            usage=compiled.objects / "usage.json" if unit.target.cuda is not None else None,
            work=unit.folder / "device",
            quiet=True,
            out=out,
        ),
        unit.subject,
    )
    return out


def declare_bundle(unit: ModelBuild) -> BundleNodes:
    """Declare the bundle of a model on a target, and all stages before it."""
    session().prepare(unit.folder)
    importing = declare_graphs(unit)
    vectors = declare_golden(unit, importing)
    measured = declare_precision(unit, importing, vectors)
    external = declare_libraries(unit, importing.folders)
    compiled = declare_code(unit, importing, external)
    sizes = declare_size(unit, compiled)
    plan, target, tolerance = compiled.plan / "plan.json", unit.target_json(), unit.slice("tolerance")
    page = declare(
        of_target.ReportStage(
            bundle=compiled.link,
            plan=plan,
            target=target,
            size=sizes,
            golden=vectors,
            tolerance=tolerance,
            precision=measured,
            byoc=external.choice,
            source=importing.graph,
            out=unit.folder / "report.html",
        ),
        unit.subject,
    )

    stage = declare(
        of_target.BundleStage(
            limits=unit.limits,
            config=unit.slice("bundle"),
            model_file=importing.source,
            target=target,
            plan=plan,
            source=compiled.source,
            link=compiled.link,
            golden=vectors,
            size=sizes,
            precision=measured,
            byoc=external.choice,
            report=page.out,
            out=unit.bundle,
            archive=unit.bundle.with_name(f"{unit.name}.tar.gz"),
        ),
        unit.subject,
        model=unit.name,
        # The manifest lists every file of the bundle: when one is missing, the bundle is built again.
        always=not listing.is_complete(unit.bundle, unit.bundle / "manifest.json"),
    )
    return BundleNodes(stage.out, stage.archive, plan, page)


def declare_test(unit: ModelBuild) -> Any:
    """Declare test.json: the errors of the bundle's outputs on the golden vectors."""
    run_place = RunPlace(unit)
    needs.check([unit.target], ["test"], run_place.device)
    declare_bundle(unit)
    stage = declare(
        DeviceTestStage(
            bundle=unit.bundle,
            target=unit.target_json(),
            tolerance=unit.slice("tolerance"),
            work=unit.folder / "device",
            device=run_place.config,
            compare=unit.compare_command,
            timeout=float(unit.model.limits.program_seconds),
            out=run_place.folder / "test.json",
        ),
        run_place.subject,
        always=run_place.device is not None,  # the state of a device cannot be read from files
        dry_run_text=run_place.dry_run_text("test"),
    )
    return nodes(stage.out)[0]
