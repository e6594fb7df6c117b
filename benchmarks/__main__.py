"""`./kiln bench`: Kiln and its peers on the same model files in one run; `profile`: the time of each step.

`int8`: models in float32 and quantised, with peers. `weights`: products of one row, against the speed of
memory. `variants`: every variant of a target, compared with its base. `microcontrollers`: instructions and
sizes on emulated machines without an operating system. `operators`: models of one to three operators,
compared with ONNX Runtime. `stream`: inputs of many sizes, through buckets and through peers that take any
size. `dispatch`: the choice of a bucket. `farm`: builds on 1 to 256 workers.

Compared: writes times.csv, footprints.csv, report.md and times-<threads>.svg; prints report.md.
Profiled: writes profile-<target>-<model>-<threads>.md and .csv; prints the slowest steps.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kiln.command_line.checked_output import checked
from kiln.errors import INTERRUPTED, KilnError
from kiln.files import atomic_write

from benchmarks import (
    dispatch,
    install,
    instructions,
    int8,
    int8_forms,
    microcontrollers,
    plot,
    profile,
    record,
    stream,
    subjects,
    tables,
    variants,
    weights,
)
from benchmarks.compare import Plan, play
from benchmarks.contenders import (
    Contender,
    Folders,
    LeftOutError,
    check_peers,
    files_of,
    find_peer,
    kiln_for,
)
from benchmarks.footprint import measure
from benchmarks.machine import description
from benchmarks.operators import run as operators
from benchmarks.peers import PEERS
from benchmarks.record import Record
from benchmarks.workers import ROOT, say

_TARGETS = ["x86_64", "host"]
_WHAT = ("compare", "int8", "weights", "profile", "instructions", "variants", "microcontrollers",
         "operators", "stream", "dispatch", "install")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, 130 after Ctrl-C, or 2 after an error, which is one line on stderr."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments[:1] == ["farm"]:  # it has options of its own
        return _farm(arguments[1:])
    args = parse(arguments)
    try:
        run(args)
    except KilnError as error:
        print(f"kiln: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130
    return 0


def _farm(given: Sequence[str]) -> int:
    from benchmarks import farm

    try:
        return farm.main(given)
    except KilnError as error:
        print(f"kiln: error: {error}", file=sys.stderr)
        return 2


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; lists are separated by commas."""
    parser = argparse.ArgumentParser(prog="./kiln bench", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add(
        "what",
        nargs="?",
        choices=_WHAT,
        default="compare",
        help="default: compare",
    )
    add("--model", type=_list, default=list(subjects.MODELS), help=f"default: {','.join(subjects.MODELS)}")
    add("--target", type=_list, default=_TARGETS, help="Kiln's targets; default: x86_64,host; "
        "TARGET:VARIANT: that variant alone")  # fmt: skip
    add(
        "--peer",
        type=_list,
        default=list(PEERS),
        help=f"default: {','.join(PEERS)}; microcontrollers: tflm=DIR",
    )
    add("--form", type=_list, default=list(int8_forms.SHORT), help="int8: beside float32 and int8; "
        f"default: {','.join(int8_forms.SHORT)}; none: no others")  # fmt: skip
    add("--isa", choices=("avx2",), help="hold peers to it; those that cannot be held to it are marked")
    add("--threads", type=_numbers, default=[1, 2], help="default: 1,2")
    add("--cpus", type=_numbers, default=sorted(os.sched_getaffinity(0)), help="cores to pin to")
    add("--rounds", type=int, default=7, help="turns of each contender; default: 7")
    add("--seconds", type=float, default=0.3, help="length of a turn; default: 0.3")
    add("--cold-rounds", type=int, default=5, help="process starts of each; 0: no footprints; default: 5")
    add("--profile-rounds", type=int, default=100, help="runs whose steps are timed; default: 100")
    add("--most", type=int, default=15, help="steps that a profile prints; default: 15")
    add("--histogram", type=Path, help="stream: sizes and counts, CSV; default: the model's traffic file")
    add("--also", type=_list, default=[], help="stream: other bundles of the same model file")
    add("--only", type=_list, default=[], help="operators: cases whose names contain one of these words")
    add("--count", type=int, default=1000, help="stream: inputs; default: 1000")
    add("--clock", choices=("wall", "cpu"), default="wall", help="cpu: one thread without interruptions")
    add("--add", action="store_true", help="keep what --out holds of other models and threads")
    add("--no-build", action="store_true", help="take the bundles as they lie")
    add("--build", type=Path, default=ROOT / "build", help="another build folder; needs --no-build")
    add("--python", type=Path, help="of the peers' environment; default: BUILD/bench/venv/bin/python")
    add("--out", type=Path, help="default: BUILD/bench/results")
    args = parser.parse_args(argv)
    if max(args.threads) > len(args.cpus) or min(args.threads) < 1:
        parser.error(f"--threads {max(args.threads)}: allowed 1..{len(args.cpus)}, the cores of --cpus")
    if args.build != ROOT / "build" and not args.no_build:
        parser.error("--build needs --no-build: what is built is built in the source tree")
    if min(args.rounds, args.profile_rounds, args.most) < 1 or args.seconds <= 0:
        parser.error("--rounds, --profile-rounds, --most and --seconds must be positive")
    return args


def run(args: argparse.Namespace) -> None:
    """Measure and write. Raises KilnError when no contender or no model is there."""
    folders = Folders(args.build.absolute(), (args.python or args.build / "bench/venv/bin/python").absolute())
    folders.work.mkdir(parents=True, exist_ok=True)
    out = args.out or folders.work / "results"
    if args.what == "dispatch":
        dispatch.run(folders.work, out, args.cpus)
    elif args.what == "install":
        install.run(args.peer, folders)
    elif args.what == "int8":
        labels = int8.chosen(args.model)
        kinds = int8.kinds(args.form)
        prepared = {}
        for label in labels:
            one = subjects.parse(label)
            prepared[label] = int8_forms.prepare(one.model, folders.work / "int8", kinds, one.sizes)
        if not args.no_build:
            every = [form.build for forms in prepared.values() for form in forms]
            build(_without_variants(args.target), list(dict.fromkeys(every)))
        int8.run(args, prepared, find_contenders(args.target, args.peer, folders, args.isa), folders, out)
    elif args.what == "weights":
        products = weights.prepare(folders.work / "weights")
        if not args.no_build:
            build(_without_variants(args.target), products)
        weights.run(args, find_contenders(args.target, args.peer, folders, args.isa), folders, out)
    elif args.what == "operators":
        targets = ["host"] if args.target == _TARGETS else args.target
        operators.run(targets, args.only, args.seconds, args.cpus[0], folders.work, out)
    elif args.what == "variants":
        models = variants.MODELS if args.model == list(subjects.MODELS) else args.model
        args.target = list(variants.TARGETS) if args.target == _TARGETS else args.target
        variants.run(args, models, folders, out)
    elif args.what == "microcontrollers":
        models = microcontrollers.MODELS if args.model == list(subjects.MODELS) else args.model
        args.target = list(microcontrollers.TARGETS) if args.target == _TARGETS else args.target
        microcontrollers.run(args, models, folders, out)
    else:
        run_built(args, folders, out)


def run_built(args: argparse.Namespace, folders: Folders, out: Path) -> None:
    """Build the chosen models, unless told not to, and measure them."""
    chosen = [subjects.parse(text) for text in args.model]
    if args.what == "instructions":
        args.target = [target for target in args.target if target not in ("x86_64", "host")] or ["aarch64"]
    if not args.no_build:
        build(_without_variants(args.target), [*dict.fromkeys(one.model for one in chosen), *args.also])
    if args.what == "profile":
        profile.run(args, folders, out)
    elif args.what == "stream":
        stream.run(args, folders, out)
    elif args.what == "instructions":
        instructions.run(args, chosen, folders, out)
    else:
        compare_times(args, chosen, folders, out)


def compare_times(
    args: argparse.Namespace, chosen: Sequence[subjects.SizedModel], folders: Folders, out: Path
) -> None:
    """Measure the chosen models with every contender. Raises KilnError if nothing could be measured."""
    machine = description(args.cpus)
    contenders = find_contenders(args.target, args.peer, folders, args.isa)
    if not folders.python.exists():  # Kiln can be measured without any peer
        folders = Folders(folders.build, Path(sys.executable))
    plan = Plan(args.rounds, args.seconds, args.clock, args.cpus, args.isa)
    measured = Record(machine, contenders, plan.rounds, plan.seconds)
    empty = Record(machine, contenders, plan.rounds, plan.seconds)
    earlier = (record.load(out) if args.add else None) or empty
    for one in chosen:
        try:
            subject = subjects.find(one, folders, _without_variants(args.target))
        except LeftOutError as reason:
            say(str(reason))
            continue
        files, reasons = files_of(subject, contenders, folders)
        for threads in args.threads:
            say(f"{one.label}, {threads} thread{'s' if threads > 1 else ''}")
            match = play(subject, files, threads, plan, folders)
            match.left_out |= reasons
            reasons = dict(match.left_out)  # who failed is not asked again
            measured.matches.append(match)
            files = {c: file for c, file in files.items() if c.name in match.times}
        if args.cold_rounds:
            measured.footprints += measure(subject, files, args.cold_rounds, args.cpus[0], folders)
        write(out, measured.follow(earlier, subjects.MODELS))  # now, since a run may be interrupted
    if not any(match.times for match in measured.matches):
        raise KilnError("nothing could be measured; the lines above say why")
    print((out / "report.md").read_text())
    say(f"written to {out}")


def build(targets: Sequence[str], models: Sequence[str]) -> None:
    """Build the bundles of all pairs of `targets` and `models` that are out of date. Raises KilnError."""
    command_options = [f"target={','.join(targets)}", f"model={','.join(models)}"]
    done = subprocess.run(
        [sys.executable, "-m", "SCons", "-Q", "-C", str(ROOT), *command_options],
        check=False,
        stdout=sys.stderr,
    )
    if done.returncode != 0:
        raise KilnError(
            f"the build of {' '.join(command_options)} failed; --no-build measures what was built before"
        )


def _without_variants(targets: Sequence[str]) -> list[str]:
    """The names of targets that are given as TARGET or TARGET:VARIANT, each once."""
    return list(dict.fromkeys(target.partition(":")[0] for target in targets))


def find_contenders(
    targets: Sequence[str], peers: Sequence[str], folders: Folders, isa: str | None = None
) -> list[Contender]:
    """Kiln for each target, then the peers that are installed, held to `isa`; a line for each that is not."""
    contenders = [kiln_for(target) for target in targets]
    check_peers(peers)
    for peer in peers:
        try:
            contenders.append(find_peer(peer, folders, isa))
        except LeftOutError as reason:
            say(str(reason))
    return contenders


def write(out: Path, made: Record) -> None:
    """Write report.md, the CSV files, the pictures and record.json into `out`."""
    versions = {contender.name: contender.version for contender in made.contenders}
    report = [
        f"{made.machine}.\n\n",
        ", ".join(f"{name} {version}" for name, version in versions.items()) + ".\n\n",
        f"Median of {made.rounds} rounds, each the median of the runs in {made.seconds:g} s; "
        "± is half the range of the rounds; \\* got less than 97 % of its core; † is not held to the "
        "instruction set of the others and is no best peer.\n\n",
    ]
    for threads in sorted({match.threads for match in made.matches}):
        chosen = [match for match in made.matches if match.threads == threads and match.times]
        title = f"{threads} thread{'s' if threads > 1 else ''}"
        clocks = {"cpu": "processor time", "wall": "wall time"}
        clock = " and ".join(sorted({clocks[match.clock] for match in chosen}))
        shown = f"![times over the best peer's](times-{threads}.svg)\n\n"
        report += [f"### {title}, {clock}\n\n", shown, tables.times_table(chosen, made.contenders), "\n"]
        picture = plot.svg(chosen, made.contenders, f"{made.machine}; {title}")
        atomic_write(out / f"times-{threads}.svg", picture)
    report += [tables.left_out(made.matches)]
    report += ["### Distance from the reference\n\n", tables.errors_table(made.matches, made.contenders)]
    if made.footprints:
        report += ["\n### Footprint\n\n", tables.footprints_table(made.footprints)]
        atomic_write(out / "footprints.csv", tables.footprints_csv(made.footprints))
    atomic_write(out / "times.csv", tables.times_csv(made.matches, versions))
    record.save(made, out)
    atomic_write(out / "report.md", "".join(report))


def _list(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _numbers(text: str) -> list[int]:
    return [int(word) for word in _list(text)]


if __name__ == "__main__":
    sys.exit(checked(main))
