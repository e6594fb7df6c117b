"""Print the sizes of a joint library and of its models' own libraries, and write them."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from kiln.config import Target, read_target
from kiln.config.records import read
from kiln.device.link import link, link_flags
from kiln.emit.joint_schema import JointFigures, JointSizes
from kiln.emit.size_schema import read_size
from kiln.errors import KilnError
from kiln.files import write_json
from kiln.report.elf import read_program
from kiln.stages.target import JointSizeStage
from kiln.tables import table_console

_PROGRAMS = Path(__file__).resolve().parent / "programs"


def run(args: JointSizeStage) -> None:
    """Link a program that uses all models, print the table, and write the figures."""
    target = read_target(args.target)
    figures = read(JointFigures, args.joint / "joint.json")
    sizes = JointSizes(
        **figures.model_dump(),
        flash_bytes=_flash(args.joint, figures, target, args.work),
        flash_bytes_alone=dict(map(_flash_alone, args.sizes)),
    )
    _print(sizes)
    write_json(args.out, sizes.model_dump())


def _flash_alone(path: Path) -> tuple[str, int]:
    """A model's name, and the bytes of flash of its own library, by its size.json."""
    size = read_size(path)
    if size.linked is None:
        raise KilnError(f"{path}: the model '{size.model}' was not linked")
    return size.model, size.linked.flash_bytes


def _flash(joint: Path, figures: JointFigures, target: Target, work: Path) -> int:
    """Bytes of flash of a program that uses all models minus those of an empty program."""
    flags = ["-Os", "-g", *link_flags(target, figures.threads)]
    models = " ".join(f"M({model})" for model in figures.models)
    program = link(
        target,
        [_PROGRAMS / "joint.c"],
        [*flags, f'-DJOINT_HEADER="{figures.name}.h"', f"-DJOINT_MODELS={models}"],
        work / "size_joint",
        include=[joint / "include"],
        libraries=[joint / "lib" / f"lib{figures.name}.a"],
    )
    empty = link(target, [_PROGRAMS / "empty.c"], flags, work / "size_empty")
    return (read_program(program).sections - read_program(empty).sections).flash


def _print(figures: JointSizes) -> None:
    table = Table(title=f"{figures.name} on {figures.target}", title_justify="left", title_style="bold")
    table.add_column("bytes", no_wrap=True)
    for model in figures.models:
        table.add_column(model, justify="right", no_wrap=True)
    for name in ("sum", "joint"):
        table.add_column(name, justify="right", no_wrap=True)
    rows = [("flash", figures.flash_bytes_alone, figures.flash_bytes)]
    rows += [("parameters", figures.params_bytes_alone, figures.params_bytes)]
    for region, joint_bytes in figures.arena_bytes.items():
        rows.append((f"arena {region}".strip(), figures.arena_bytes_alone[region], joint_bytes))
    rows.append(("kernels, number", figures.kernels_alone, figures.kernels))
    for label, alone, joint in rows:
        own_bytes = [alone[model] for model in figures.models]
        table.add_row(label, *map(str, own_bytes), str(sum(own_bytes)), str(joint))
    table_console().print(table)
