"""The command line of Kiln's own SConstruct: options, aliases, and the help that explains them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from SCons.Script import GetOption

from kiln.config import Device, list_devices, list_models, list_targets
from kiln.config.check import choices
from kiln.config.model import Precision
from kiln.errors import KilnError
from kiln.paths import command_name, listed_names
from kiln.scons import cache
from kiln.scons.farm import cluster

OPTIONS = {
    "target": "what to build for: a target's name, a path to a .yaml, or several with commas",
    "model": "what to build: a model's name, a path to a .yaml, .onnx, .tflite or .pt2, "
    "package.module:function for PyTorch, or several with commas",
    "byoc": "libraries that compute subgraphs of the model: none, auto or names, see docs/libraries.md",
    "precision": "fp32; for GPUs tf32, or fp16, bf16 (half the bytes); in place of the model's own",
    "dims": "sizes of dynamic dimensions, in place of the model's own: batch:1,seq:1..128,h:64..512:32",
    "variants": "which of the target's variants to build, such as v3,v4; in place of all, or the model's own",
    "cache": "a folder or URL for outputs of stages, shared with other builds; none: no cache (KILN_CACHE)",
    "cluster": "workers of Dask for stages: tcp://HOST:8786, or local:N on this machine; see docs/farm.md",
    "dump": "dump=1 to get the intermediate representation after each pass in build/.stages/",
    "package": "zephyr, cmsis-pack, arduino, esp-idf or platformio for microcontrollers, npm for "
    "WebAssembly, aar for Android, xcframework for Apple's systems",
    "together": "for `joint`: models that run at the same time, such as kws+vww; others share one arena",
    "name": "for `joint`: the name of the library, in place of the models' names",
    "image": "for `run`: an image in place of the model's own",
    "device": "where to flash, test and run: a device's name, a .yaml, or any:TARGET for a free one",
    "traffic": "for `run`, `bench`, `profile`: a .csv file that gets sizes and contents of the runs",
    "program": "for flash, status, run, test by a gdb server: a linked ELF file in place of a bundle",
}
ALIASES = {
    "bundle": "build/<target>/<model>/ and its .tar.gz: headers, libraries, manifest, report (the default)",
    "test": "run the golden vectors on the target's runner: this machine, QEMU, or with device= a device",
    "run": "run the bundle on an image, and print the five best classes",
    "plan": "print the steps of each bucket in order, with the bytes that they read and write",
    "package": "pack the bundle in the form that other tools install, see package=",
    "size": "print the flash and RAM of the model: code, parameters, arena",
    "image": "build/<target>/<model>.img: the model for programs that it is not linked with, at any address",
    "joint": "all of model=a,b in one library: one runtime, equal kernels and parameters once, one arena",
    "tune": "measure the model's kernels, here or on device=…; later builds for that CPU use the fastest",
    "bench": "time whole runs, here or on device=…, on one thread and on all",
    "profile": "time each step, and compare it with the peak: build/<target>/<model>.profile.html",
    "report": "build/<target>/<model>.report.html: the report with the results of test, profile and compare; "
    "report A B, two bundles' folders or pages: what differs",
    "flash": "install the bundle on a device: copy, check, test there, switch over; -n prints the commands",
    "rollback": "switch the device back to the bundle before",
    "status": "compare the bundle on the device with the one built here",
    "devices": "list the known devices, and whether they answer",
    "schema": "write JSON Schemas of the YAML files into build/schema/, for editors",
}
# Commands that are not goals: kiln.command_line parses and runs them. `kiln COMMAND -h` has their options.
COMMANDS = {
    "compare": "compare all tensors of a model with the reference's, in order",
    "reduce": "find the smallest part of an ONNX model that fails in the same way",
    "quantise": "convert a float ONNX model to int8: NAME_int8.onnx, in QDQ form",
    "evaluate": "measure the accuracy of a bundle and of its reference on your data",
    "traffic": "choose the buckets of a model from traffic files, and build it",
    "sign": "sign a bundle, with provenance and bills of materials",
    "verify": "check a bundle's signature, every file and its release",
    "sbom": "write bills of materials of a bundle: CycloneDX 1.6 and SPDX 2.3",
    "publish": "add a signed bundle to a repository, or renew the repository",
    "fetch": "fetch a bundle from a repository, and verify it",
    "list": "print names and descriptions of targets, models, devices, backends, operators",
    "completion": "print a completion script for a shell",
}
# Variable of the environment: the path of a file in which a build lists the files with its results.
RESULTS = "KILN_RESULTS"
# The same: the folder for finished bundles, in place of build/, for commands that build copies of a model.
BUNDLES = "KILN_BUNDLES"
_MEASURE = {"bench", "profile", "tune"}
_NEED_DEVICE = ("flash", "rollback", "status")
_OF_PROGRAM = ("flash", "status", "run", "test")
_OF_NO_MODEL = {"devices", "schema"}
# Options that only some goals read.
_READERS = {
    "together": ("joint",), "name": ("joint",), "image": ("run",), "traffic": ("run", "bench", "profile"),
    "package": ("package", "bundle", "joint"),
}  # fmt: skip
_PATHS = (".yaml", ".yml", ".onnx", ".tflite", ".pt2")


@dataclass(frozen=True)
class LinkedProgram:
    """A linked program and its goals.

    For `test`, `model` and `target` name the bundle with the golden vectors.
    """

    path: str
    goals: Sequence[str]
    model: str | None
    target: str


@dataclass(frozen=True)
class Options:
    """The parsed command line."""

    targets: Sequence[str]
    models: Sequence[str]
    dump: bool
    image: str | None
    device: str | None
    device_goals: Sequence[str]
    program: LinkedProgram | None = None
    byoc: str | None = None
    precision: str | None = None
    dims: str | None = None
    variants: str | None = None
    package: str | None = None
    together: str | None = None
    name: str | None = None
    traffic: str | None = None

    def known_device(self) -> Device | None:
        """The device's configuration, read from its YAML file; None without `device=`."""
        if self.device is None:
            return None
        from kiln.device.deploy.registry import load_device  # imports the transports

        return load_device(self.device)


def check_given_once(arguments: Sequence[tuple[str, str]]) -> None:
    """Raise KilnError for an option that is given twice: SCons would silently use the last value."""
    values: dict[str, str] = {}
    for name, value in arguments:
        if name in values:
            is_list = name in ("target", "model", "byoc", "dims", "variants")
            hint = f"; several: {name}={values[name]},{value}" if is_list else ""
            raise KilnError(f"option '{name}' is given twice: '{values[name]}' and '{value}'{hint}")
        values[name] = value


def parse(arguments: Mapping[str, str], goals: Sequence[str]) -> Options:
    """Parse NAME=VALUE arguments and goals.

    Raises KilnError for an unknown name or goal, or a wrong value.
    """
    _check_names(arguments, goals)
    _check_readers(arguments, goals)
    if "cache" in arguments:
        cache.choose(arguments["cache"])
    if "cluster" in arguments:
        cluster.choose(arguments["cluster"])
    device = _device(arguments.get("device", ""), goals)
    if set(goals) <= _OF_NO_MODEL:
        return Options([], [], False, None, None, [])
    device_goals = [goal for goal in _NEED_DEVICE if goal in goals]
    if device_goals and device is None:
        raise KilnError(f"device is missing: device=NAME ({command_name()} devices lists them)")
    lists = {name: _names(arguments.get(name, "")) for name in ("target", "model")}
    if device is not None and not lists["target"]:
        from kiln.device.deploy.registry import target_of  # imports the transports, which only devices need

        lists["target"] = [target_of(device)]
    if arguments.get("program"):
        program = _program(arguments["program"], goals, device, lists)
        return Options([], [], arguments.get("dump") == "1", None, device, [], program)
    for name, values in lists.items():
        if not values:
            raise KilnError(
                f"{name} is missing: {name}=NAME or --{name} NAME ({command_name()} list {name}s shows them)"
            )
    _check_joint(goals, lists["model"])
    dump = arguments.get("dump", "0")
    if dump not in ("0", "1"):
        raise KilnError(f"option 'dump': 0 or 1 expected, got '{dump}'")
    image = _path(arguments["image"]) if arguments.get("image") else None
    if image is not None and not Path(image).is_file():
        raise KilnError(f"image '{arguments['image']}': no such file")
    precision = arguments.get("precision")
    if precision is not None and precision not in get_args(Precision):
        raise KilnError(f"option 'precision': '{precision}', allowed: {', '.join(get_args(Precision))}")
    return Options(
        lists["target"], lists["model"], dump == "1", image, device, device_goals,
        byoc=arguments.get("byoc"), precision=precision, dims=arguments.get("dims"),
        variants=arguments.get("variants"), package=arguments.get("package"),
        together=arguments.get("together"), name=arguments.get("name"),
        traffic=_traffic(arguments.get("traffic")),
    )  # fmt: skip


def _check_names(arguments: Mapping[str, str], goals: Sequence[str]) -> None:
    """Raise KilnError for an unknown name of an option or goal, and for an option with an empty value.

    An empty target or model is reported as missing, like one that is not given.
    """
    for name, value in arguments.items():
        if name not in OPTIONS:
            raise KilnError(f"unknown option '{name}='{choices(name, OPTIONS)}")
        if name not in ("target", "model") and not value.strip():
            raise KilnError(f"option '{name}': no value after '='; leave it out, or give {OPTIONS[name]}")
    for goal in goals:
        if Path(goal).suffix in _PATHS[2:]:
            raise KilnError(f"'{goal}' is not a goal; use model={goal}")
        if goal not in ALIASES:  # though a file or a folder may have that name
            raise KilnError(f"unknown goal '{goal}'{choices(goal, ALIASES)}")


def _check_readers(arguments: Mapping[str, str], goals: Sequence[str]) -> None:
    """Raise KilnError for an option that none of the goals reads."""
    for name in arguments:
        if set(goals) <= _OF_NO_MODEL:
            raise KilnError(f"option '{name}': the goal {goals[0]} has no options")
        readers = _READERS.get(name, ())
        if readers and set(readers).isdisjoint(goals):
            first, *later_readers = readers
            text = (
                f"goals {', '.join([first, *later_readers[:-1]])} and {later_readers[-1]}"
                if later_readers
                else f"goal {first}"
            )
            raise KilnError(f"option '{name}' is for the {text}")


def _device(text: str, goals: Sequence[str]) -> str | None:
    """The name or path of the device; None without one.

    A build that measures, or that chose a free device with any:TARGET, uses the device alone until it ends.
    """
    name = next(iter(_names(text)), None)
    if name is None:
        return name
    nothing_runs = GetOption("no_exec") or GetOption("clean")
    if name.startswith("any:"):
        from kiln.device.deploy import queue  # imports the transports, as above

        candidates = queue.candidates(name.removeprefix(queue.ANY))
        return candidates[0] if nothing_runs else queue.take(candidates)
    if not nothing_runs and not _MEASURE.isdisjoint(goals):
        from kiln.device.deploy import queue
        from kiln.device.deploy.registry import load_device

        queue.take([load_device(name).name])
    return name


def _check_joint(goals: Sequence[str], models: Sequence[str]) -> None:
    """Raise KilnError for `joint` of fewer than two models."""
    if "joint" in goals and len(models) < 2:
        raise KilnError("joint: at least two models expected: model=a,b")


def _traffic(text: str | None) -> str | None:
    """The path of the traffic file. An existing file is read first: a malformed file must not cost a run."""
    if text is None:
        return None
    if not text.endswith(".csv"):
        raise KilnError(f"option 'traffic': '{text}': a path that ends in .csv expected")
    if Path(text).exists():
        from kiln.runtime.traffic import read_counts  # imports NumPy with its package

        read_counts(Path(text))
    return _path(text)


def _program(
    path: str, goals: Sequence[str], device: str | None, lists: Mapping[str, Sequence[str]]
) -> LinkedProgram:
    path = _path(path)
    if device is None:
        raise KilnError(
            f"device is missing: program= needs device=NAME ({command_name()} devices lists them)"
        )
    if not Path(path).is_file():
        raise KilnError(f"program '{path}': no such file")
    for goal in goals:
        if goal == "rollback":
            raise KilnError(
                "rollback: a device with a gdb server keeps only the present program; "
                "flash the earlier bundle again"
            )
        if goal not in _OF_PROGRAM:
            raise KilnError(f"goal '{goal}' does not accept program=, allowed: {', '.join(_OF_PROGRAM)}")
    if "test" in goals and not lists["model"]:
        raise KilnError("test with program= needs model=NAME, the model with the golden vectors")
    return LinkedProgram(path, list(goals), next(iter(lists["model"]), None), lists["target"][0])


def _names(text: str) -> list[str]:
    return [_path(name) if name.endswith(_PATHS) else name for name in dict.fromkeys(listed_names(text))]


def _path(text: str) -> str:
    """`text`, with `./` before a leading `-`, so that no stage parses the path as an option."""
    return f"./{text}" if text.startswith("-") else text


def help_text() -> str:
    """The text of `scons -h`; targets, models and devices come from their YAML files."""
    targets = {summary.name: summary.description for summary in list_targets()}
    devices = {summary.name: summary.description for summary in list_devices()}
    models = {" | ".join([model.name, *model.aliases]): model.description for model in list_models()}
    sections = {
        "Goals": ALIASES,
        f"Commands ({command_name()} COMMAND -h lists their options)": COMMANDS,
        "Options": OPTIONS,
        "Targets": targets,
        "Models": models,
        "Devices": devices,
    }
    kiln = command_name()
    lines = [
        "Kiln builds a machine-learning model into plain C and object code for one device.",
        "",
        f"  {kiln} target=x86_64 model=efficientnet_lite0 run",
        f"  {kiln} target=x86_64,aarch64 model=resnet,path/to/my.tflite test -j2",
        f"  {kiln} model=resnet flash device=local   build for a device and bring it there",
        *(
            ["  ./kiln test                     Kiln's own tests (no target=, no model=)"]
            if "/" in kiln
            else []
        ),
    ]
    for title, entries in sections.items():
        lines += ["", f"{title}:", *_table(entries)]
    return "\n".join(lines) + "\n"


def _table(entries: Mapping[str, str]) -> list[str]:
    width = max(map(len, entries), default=0) + 2
    lines = []
    for name, text in entries.items():
        wrapped = textwrap.wrap(text, 108 - width) or [""]
        lines.append(f"  {name:<{width}}{wrapped[0]}".rstrip())
        lines += [f"  {'':<{width}}{line}" for line in wrapped[1:]]
    return lines
