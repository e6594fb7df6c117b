"""joint: several models of a target in one library: one runtime, equal kernels and parameters once."""

from __future__ import annotations

import shutil
from pathlib import Path

from kiln import templates
from kiln.config import Target, read_target
from kiln.config.together import groups_of
from kiln.emit import c_text
from kiln.emit.cold_kernels import code_bytes
from kiln.emit.compile import c_flags, compile_file
from kiln.emit.headers import dlpack_h, include_flags, kiln_h, kiln_image_h
from kiln.emit.joint_arena import SharedArena, share_arena
from kiln.emit.joint_example import joint_example
from kiln.emit.joint_plans import JointPlans, join_plans
from kiln.emit.joint_schema import JointFigures
from kiln.emit.link import archive, has_shared, shared
from kiln.emit.source import emit
from kiln.errors import KilnError
from kiln.files import atomic_dir, atomic_write, write_json
from kiln.plan.schema import Plan, read_plan
from kiln.scratch import scratch_folder
from kiln.stages.target import JointStage


def run(args: JointStage) -> None:
    """Write the folder of the joint library, completely or not at all."""
    target = read_target(args.target)
    models = [
        (read_plan(folder / "plan.json"), (folder / "params.raw").read_bytes()) for folder in args.plans
    ]
    names = [plan.name for plan, _ in models]
    _check_names(args.name, names)
    groups = groups_of(args.together, names)
    joined = join_plans(models, args.name)
    arenas = share_arena(joined.plans, groups)
    with atomic_dir(args.out) as folder, scratch_folder("joint") as work:
        for name_of_folder in ("include", "lib", "src"):
            (folder / name_of_folder).mkdir()
        objects = [*_kernels(args.objects), *_compiled(joined, target, work, folder)]
        headers = {model: (folder / "include" / f"{model}.h").read_text(encoding="utf-8") for model in names}
        objects += sorted(args.runtime.glob("*.o"))
        archive(objects, folder / "lib" / f"lib{args.name}.a")
        if has_shared(target):
            kernels = sorted({k.symbol for plan in joined.plans for k in plan.kernels if k.is_function})
            shared(target, args.name, names, kernels, joined.plans[0].threads, objects, folder)
        for header in (kiln_h(), kiln_image_h(), dlpack_h()):
            shutil.copyfile(header, folder / "include" / header.name)
        environment = templates.environment(Path(__file__).resolve().parent / "templates")
        environment.filters.update(c=c_text.string, size=c_text.size)
        text = environment.get_template("joint.h.j2").render(
            name=args.name, models=names, arenas=arenas, groups=groups,
            example=joint_example(args.name, headers, not any(arena.name for arena in arenas)),
        )  # fmt: skip
        atomic_write(folder / "include" / f"{args.name}.h", text)
        figures = _figures(args.name, target, models, joined, arenas)
        write_json(folder / "joint.json", figures.model_dump())


def _check_names(name: str, models: list[str]) -> None:
    """Raise KilnError for fewer than two models, and for names that would be one in C."""
    if len(models) < 2:
        raise KilnError("joint: at least two models expected, such as model=kws,vww")
    upper = [model.upper() for model in (*models, name)]
    for model in (*models, name):
        if upper.count(model.upper()) > 1:
            raise KilnError(
                f"joint: '{model}' is the name of two of the models and the library; choose another name="
            )
    c_text.check_name(name, "option 'name'")


def _kernels(folders: tuple[Path, ...]) -> list[Path]:
    """The objects of all kernels, without duplicates: objects of equal kernels have equal names.

    A kernel that one model has compiled for size and another for speed is compiled for speed: it is larger.
    """
    objects: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.o")):
            first_object = objects.setdefault(path.name, path)
            if first_object.read_bytes() == path.read_bytes():
                continue
            sizes = [code_bytes(each, path.stem) for each in (first_object, path)]
            if sizes[0] == sizes[1]:
                raise KilnError(f"{path}: differs from {first_object}, which has the same name")
            objects[path.name] = max((sizes[0], first_object), (sizes[1], path))[1]
    return [objects[name] for name in sorted(objects)]


def _compiled(joined: JointPlans, target: Target, work: Path, folder: Path) -> list[Path]:
    """Objects of the models' plans, and of the parameters once; adds headers and sources to the bundle."""
    objects = []
    flags = [*c_flags(target, oldest_cpu=True), f"-I{folder / 'include'}", f"-I{work}", *include_flags()]
    sources = {plan.name: emit(plan, joined.payload) for plan in joined.plans}
    for name, files in sources.items():
        atomic_write(folder / "include" / f"{name}.h", files[f"{name}.h"])
    for number, (name, files) in enumerate(sources.items()):
        for file in (f"{name}_plan.c", f"{name}_params.S", "params.bin"):
            (work / file).write_bytes(_bytes(files[file]))
        shutil.copyfile(work / f"{name}_plan.c", folder / "src" / f"{name}_plan.c")
        for source in (f"{name}_plan.c", *([f"{name}_params.S"] if number == 0 else [])):
            out = work / f"{Path(source).stem}.o"
            compile_file(flags, work / source, out)
            objects.append(out)
    if joined.plans[0].params.storage == "file" and joined.payload:
        shutil.copyfile(work / "params.bin", folder / "params.bin")
    return objects


def _bytes(content: bytes | str) -> bytes:
    return content if isinstance(content, bytes) else content.encode()


def _figures(
    name: str, target: Target, models: list[tuple[Plan, bytes]], joined: JointPlans,
    arenas: list[SharedArena],
) -> JointFigures:  # fmt: skip
    """The content of joint.json: bytes and kernels that the models share."""
    return JointFigures(
        name=name,
        target=target.name,
        threads=joined.plans[0].threads,
        models=[plan.name for plan in joined.plans],
        params_bytes=len(joined.payload),
        params_bytes_alone={plan.name: len(payload) for plan, payload in models},
        kernels=len({kernel.symbol for plan in joined.plans for kernel in plan.kernels}),
        kernels_alone={plan.name: len(plan.kernels) for plan in joined.plans},
        arena_bytes={arena.name: arena.bytes for arena in arenas},
        arena_bytes_alone={arena.name: dict(arena.sizes) for arena in arenas},
    )
