"""Both forms of a command line, read by one parser, and translated to SCons's words.

    kiln build net.onnx --target aarch64 -j2      →  target=aarch64 model=net.onnx bundle -j2
    kiln target=aarch64 model=net.onnx test       unchanged

The goals and options are those of `kiln.scons.options`, so a new goal or option has both forms at once.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kiln.command_line.argument_parser import Parser
from kiln.command_line.completion import SHELLS
from kiln.command_line.listing import LISTS
from kiln.command_line.number_types import finite, positive, whole
from kiln.command_line.quantise.arguments import add_arguments
from kiln.command_line.scons_options import QUIET, checked_scons_words
from kiln.command_line.words import normalised
from kiln.config.check import choices, nearest
from kiln.errors import KilnError
from kiln.scons.options import ALIASES, COMMANDS, OPTIONS

_GOAL_OF_VERB = {"build": "bundle", **{goal: goal for goal in ALIASES if goal != "bundle"}}
_MODEL_COMMANDS = ("quantise", "evaluate", "compare", "reduce")
SCHEMAS = ("result", "target", "model", "device")  # that `kiln schema NAME` prints


@dataclass(frozen=True)
class Command:
    """A parsed command: words for SCons, or else a question, whose attribute `command` is its name.

    The other attributes of `question` are the options of that command in `_add_questions`. `json`: the answer
    is printed as JSON.
    """

    words: Sequence[str] = ()
    question: argparse.Namespace | None = None
    json: bool = False


def parse(arguments: Sequence[str]) -> Command:
    """The command of `arguments`, the words after the program's name. Raises KilnError for a wrong word."""
    _check_scons_flags()
    if "--json" in arguments:
        command = parse([word for word in arguments if word != "--json"])
        return replace(command, json=True)
    words = normalised(arguments, (*_GOAL_OF_VERB, *COMMANDS))
    if not words or words in (["-h"], ["--help"], ["help"]):
        return Command(["-h"])
    for goal in _MODEL_COMMANDS:
        if goal in words:  # also in SCons's form: model=net.onnx quantise data=calibration.npz
            options = [f"--{word}" if "=" in word and not word.startswith("-") else word for word in words]
            words = [goal, *(word for word in options if word != goal)]
    verb = words[0]
    if verb not in (*_GOAL_OF_VERB, *COMMANDS):
        if "=" in verb or verb.startswith("-") or verb in ALIASES:
            return Command(checked_scons_words(words))
        raise KilnError(f"unknown command '{verb}'{choices(verb, [*_GOAL_OF_VERB, *COMMANDS])}")
    if verb == "report" and _compares_two_reports(words[1:]):
        parser = Parser(prog="kiln report", description="two reports, side by side")
        parser.add_argument("reports", nargs="+", metavar="REPORT", help="report.html, or a bundle's folder")
        _add_output(parser)
        parsed = parser.parse_args(words[1:])
        if len(parsed.reports) != 2:
            raise KilnError(
                f"report: two reports are compared, {len(parsed.reports)} given; the report of one model: "
                "kiln report MODEL --target NAME"
            )
        return Command(question=argparse.Namespace(command="report", **vars(parsed)))
    if verb == "tune" and any(word.startswith("--costs") for word in words):
        return Command(
            question=argparse.Namespace(**vars(_costs_parser().parse_args(words[1:])), command="tune")
        )
    kinds = [word for word in words[1:] if word not in QUIET]
    if verb == "schema" and len(kinds) == 1 and not kinds[0].startswith("-"):
        if kinds[0] not in SCHEMAS:
            raise KilnError(f"unknown schema '{kinds[0]}'{choices(kinds[0], SCHEMAS)}")
        return Command(question=argparse.Namespace(command="schema", kind=kinds[0]))
    if verb in ALIASES and not any(
        word.startswith("--") or word == "-h" or _is_model_word(word) for word in words[1:]
    ):
        return Command(checked_scons_words(words))  # a goal of SCons, which is also a command
    parsed, unknown = whole_parser().parse_known_args(words)
    _add_left_over(verb, parsed, unknown)
    if verb in COMMANDS:
        return Command(question=parsed)
    return Command(_scons_words(verb, parsed))


def _check_scons_flags() -> None:
    """Raise KilnError for a wrong option in the variable that SCons reads before its arguments."""
    try:
        checked_scons_words(os.environ.get("SCONSFLAGS", "").split())
    except KilnError as error:
        raise KilnError(f"SCONSFLAGS in the environment: {error}") from None


def _compares_two_reports(words: Sequence[str]) -> bool:
    """Whether the words after `report` are two reports to compare; the goal `report` has target=NAME."""
    files = any(word.endswith(".html") or Path(word).is_dir() for word in words)
    names = [word for word in words if word not in QUIET]
    return files or (len(names) == 2 and not any("=" in word or word.startswith("-") for word in names))


def _add_left_over(verb: str, parsed: argparse.Namespace, unknown: Sequence[str]) -> None:
    """Add the words that argparse did not use to the models: a model may stand after options.

    Raises KilnError for an unknown option and for a word that is not a model.
    """
    if not unknown:
        return
    command = _add_commands(Parser(prog="kiln")).choices[verb]
    for word in unknown:
        if word.startswith("-"):
            option, options = word.partition("=")[0], list(command._option_string_actions)
            hint = _hint(option, options)
            raise KilnError(f"unknown option '{option}'{hint} ({command.prog} -h lists the arguments)")
        if verb not in _GOAL_OF_VERB or word in ALIASES:
            goals = f"; several goals: kiln target=… model=… {verb} {word}" if word in ALIASES else ""
            raise KilnError(f"unexpected argument '{word}'{goals} ({command.prog} -h lists the arguments)")
        parsed.models.append(word)


def _hint(option: str, options: Sequence[str]) -> str:
    """The options that may have been meant; of `-t`, which resembles none, all with that letter."""
    if len(option) > 2:
        return nearest(option, options)
    meant = [f"'{name}'" for name in options if name.startswith(f"-{option.lower()}")]
    listed = " or ".join([", ".join(meant[:-1]), meant[-1]] if len(meant) > 1 else meant)
    return f"; did you mean {listed}?" if meant else ""


def _is_model_word(word: str) -> bool:
    """Whether `word` can only be a model's name or file: not a goal, an option or an assignment."""
    return not word.startswith("-") and "=" not in word and word not in ALIASES


def _scons_words(verb: str, parsed: argparse.Namespace) -> list[str]:
    """SCons's words for a parsed goal."""
    options = {name: getattr(parsed, name) for name in OPTIONS}
    assigned = [word for word in parsed.models if "=" in word]
    models = [word for word in parsed.models if "=" not in word]
    if models:
        if options["model"] is not None:
            raise KilnError(f"the model is given twice: '{models[0]}' and --model {options['model']}")
        options["model"] = ",".join(models)
    words = [f"{name}={value}" for name, value in options.items() if value is not None]
    words += [*assigned, _GOAL_OF_VERB[verb]]
    if parsed.jobs is not None:
        words.append(f"-j{parsed.jobs}")
    return words + ["-n"] * parsed.dry_run + ["-s"] * parsed.quiet + ["-k"] * parsed.keep_going


def whole_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = Parser(prog="kiln", description="Builds models into plain C and object code for one device.")
    _add_commands(parser)
    return parser


def _add_commands(parser: argparse.ArgumentParser) -> Any:
    """Add all commands, goals and others; returns argparse's action, whose `choices` are their parsers."""
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for verb, goal in _GOAL_OF_VERB.items():
        command = commands.add_parser(verb, help=ALIASES[goal], description=ALIASES[goal])
        command.add_argument("models", nargs="*", metavar="MODEL", help=OPTIONS["model"])
        for name, text in OPTIONS.items():
            command.add_argument(f"--{name}", metavar=name.upper(), help=text)
        command.add_argument(
            "-j", "--jobs", type=positive, metavar="N",
            help="stages, and kernels that are compiled, at the same time; default: one for each core",
        )  # fmt: skip
        command.add_argument("-n", "--dry-run", action="store_true", help="print the stages and run none")
        command.add_argument("-k", "--keep-going", action="store_true", help="build the rest after an error")
        _add_output(command)
    _add_questions(commands)
    return commands


def _add_command(commands: Any, name: str) -> argparse.ArgumentParser:
    """Add a command that is not a goal of the build, with its help; returns its parser."""
    text = COMMANDS[name]
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    return parser


def _add_output(command: argparse.ArgumentParser) -> None:
    """Add --quiet, and --json, which `parse` reads in every form of a command: for help and completion."""
    command.add_argument("-q", "--quiet", action="store_true", help="print results and errors only")
    command.add_argument("--json", action="store_true", help="print one JSON object, see docs/json.md")


def _add_model(command: argparse.ArgumentParser, files: str) -> None:
    """Add the model, one of `files`, as an argument and as an option; `model_of` reads either."""
    text = f"the model: its name, or a path to a {files}"
    command.add_argument("name", nargs="?", metavar="MODEL", help=text)
    command.add_argument("--model", metavar="MODEL", help="the model, as an option")


def model_of(question: argparse.Namespace) -> str:
    """The model that a command was given. Raises KilnError for no model and for two."""
    names = [name for name in (question.name, question.model) if name is not None]
    if len(names) != 1:
        raise KilnError(f"{question.command}: one model is needed: kiln {question.command} net.onnx")
    return str(names[0])


def _add_questions(commands: Any) -> None:
    """Add the commands that are not goals of the build."""
    command = _add_command(commands, "quantise")
    _add_model(command, ".yaml, .onnx or .pt2")
    command.add_argument("--data", help="FILE.npz (an array for each input, labels) or a folder of images")
    add_arguments(command)
    command.add_argument("--out", metavar="FILE.onnx", help="default: NAME_int8.onnx")
    _add_destination(command, "measure times too, on this target; default: the device's, or no times")
    _add_output(command)
    command = _add_command(commands, "evaluate")
    _add_model(command, ".yaml, .onnx, .tflite or .pt2")
    command.add_argument("--data", help="a folder of images, image,class as .csv, or FILE.npz with labels")
    _add_destination(command)
    command.add_argument("--dims", help=OPTIONS["dims"])
    command.add_argument("--outputs", metavar="FILE.npz", help="write all outputs of the bundle")
    _add_output(command)
    command = _add_command(commands, "compare")
    _add_model(command, ".yaml, .onnx, .tflite or .pt2")
    _add_destination(command)
    command.add_argument("--dims", help=OPTIONS["dims"])
    command.add_argument("--inputs", metavar="FILE.npz", help="arrays by input; default: golden inputs")
    command.add_argument("--all", action="store_true", help="show every tensor")
    text = "compare with this float model, from which the model was quantised, in place of the reference"
    command.add_argument("--float", metavar="FILE.onnx", help=text)
    text = "with --float: least signal-to-noise ratio of a tensor; default: 20"
    command.add_argument("--min-snr", "--min_snr", type=finite, metavar="DB", help=text)
    _add_output(command)
    command = _add_command(commands, "reduce")
    _add_model(command, ".yaml, .onnx or .pt2")
    _add_destination(command)
    command.add_argument("--inputs", metavar="FILE.npz", help="arrays by input; default: golden inputs")
    command.add_argument("--out", metavar="FILE.onnx", default="reduced.onnx", help="default: reduced.onnx")
    _add_output(command)
    _add_bundle_commands(commands)
    command = _add_command(commands, "traffic")
    text = "a model's YAML with `buckets: auto`, then traffic files; or traffic files alone with --out"
    command.add_argument("files", nargs="+", metavar="FILE", help=text)
    command.add_argument("--out", metavar="FILE.csv", help="write the sum of the files, and build nothing")
    text = "measure times at a few sizes first, into the file that `costs` in dims names"
    command.add_argument("--costs", action="store_true", help=text)
    _add_destination(command)
    _add_output(command)
    command = _add_command(commands, "list")
    command.add_argument("kind", choices=tuple(LISTS))
    _add_output(command)
    command = _add_command(commands, "completion")
    command.add_argument("shell", choices=SHELLS)
    _add_output(command)


def _add_bundle_commands(commands: Any) -> None:
    """Add the commands for finished bundles."""
    command = _add_command(commands, "sign")
    command.add_argument(
        "bundle", metavar="BUNDLE", help="a bundle's folder, such as build/host/resnet, or an image: NAME.img"
    )
    command.add_argument(
        "--key", required=True, metavar="KEY", help="private Ed25519 key: FILE.pem, env:NAME or pkcs11:…"
    )
    text = "a number that never falls: devices refuse a bundle with a lower one than they have had"
    command.add_argument("--release", required=True, type=whole, metavar="N", help=text)
    _add_output(command)
    command = _add_command(commands, "verify")
    command.add_argument("bundle", metavar="BUNDLE", help="a bundle's folder, or an image: NAME.img")
    text = "public Ed25519 key: FILE.pem, env:NAME or pkcs11:…; several: any of them"
    command.add_argument("--key", required=True, action="append", metavar="KEY", help=text)
    command.add_argument("--least", type=whole, default=0, metavar="N", help="the least release allowed")
    _add_output(command)
    command = _add_command(commands, "sbom")
    command.add_argument("bundle", metavar="BUNDLE", help="a bundle's folder")
    _add_output(command)
    _add_repository_commands(commands)


def _add_repository_commands(commands: Any) -> None:
    """Add the commands for repositories of signed bundles."""
    command = _add_command(commands, "publish")
    command.add_argument("bundle", nargs="?", metavar="BUNDLE", help="a bundle's folder; without it: renew")
    command.add_argument(
        "--repository", required=True, metavar="FOLDER", help="a folder that a server serves"
    )
    command.add_argument("--key", required=True, metavar="KEY", help="the private key, as for sign")
    command.add_argument(
        "--replaces", metavar="KEY", help="the repository's private key until now, in whose place --key comes"
    )
    command.add_argument(
        "--days", type=whole, default=30, metavar="N", help="for which it is valid (default: 30)"
    )
    _add_output(command)
    command = _add_command(commands, "fetch")
    command.add_argument("model", metavar="MODEL", help="the name of a model")
    command.add_argument("--target", required=True, help="the name of a target")
    command.add_argument("--from", required=True, dest="url", metavar="URL", help="where the repository is")
    command.add_argument("--root", metavar="FILE", help="its 1.root.json, for the first fetch")
    command.add_argument("--into", default="bundles", metavar="FOLDER", help="default: bundles")
    _add_output(command)


def _add_destination(
    command: argparse.ArgumentParser, target: str = "a target; default: the device's, or host"
) -> None:
    """Add the options that name the target and the device on which programs run."""
    command.add_argument("--target", help=target)
    command.add_argument(
        "--device", help="where it runs: a device's name, a .yaml, or any:TARGET for a free one"
    )
    command.add_argument("--byoc", help=OPTIONS["byoc"])


def _costs_parser() -> argparse.ArgumentParser:
    """The parser of `kiln tune MODEL --costs FILE`."""
    command = Parser(prog="kiln tune", description="times of a model at several sizes of a dimension")
    _add_model(command, ".yaml")
    command.add_argument("--costs", required=True, metavar="FILE.csv", help="the file to write")
    command.add_argument("--dim", help="the dimension, if the model has several")
    _add_destination(command)
    _add_output(command)
    return command
