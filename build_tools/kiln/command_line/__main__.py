"""Entry point of the command `kiln`: reads the arguments, and runs SCons with Kiln's own SConstruct."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from kiln import limits, unforeseen
from kiln.command_line import listing
from kiln.command_line.answer import AnswerPart, CommandAnswer, Reply, error_of
from kiln.command_line.arguments import Command, model_of, parse, whole_parser
from kiln.command_line.checked_output import READER_HAS_ENDED, CheckedOutput, drop_output
from kiln.command_line.completion import completion
from kiln.config import load_model
from kiln.errors import INTERRUPTED, KilnError
from kiln.files import error_text
from kiln.paths import data_file
from kiln.scons.first_build import start_servers


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status.

    0: done. 1: `compare` found a tensor beyond its limit. 2: an error, of which one line was printed.
    READER_HAS_ENDED: the reader of stdout has ended. With --json, stdout has one JSON object and nothing
    else, also after an error.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    command, line = Command(json="--json" in words), ""
    try:
        _check_names(words)
        parsed = _parse(words)
        if isinstance(parsed, CommandAnswer):
            return _print(parsed)
        command = parsed
        if command.json:
            return _print(_answer(command))
        if command.question is None:
            return _scons(command.words)
        reply = _reply(command.question, sys.stdout)
        reply.show()
        sys.stdout.flush()  # a closed pipe is noticed here, not at the end of the process
        return int(reply.wrong)
    except BrokenPipeError:  # the reader of the output has ended: `kiln list models | head -1`
        return _reader_has_ended()
    except KilnError as error:
        line = f"kiln: error: {error}"
    except KeyboardInterrupt:
        line = INTERRUPTED
    except OSError as error:
        text = error_text(error)
        if isinstance(sys.stdout, CheckedOutput) and sys.stdout.has_failed_with(error):
            text = f"stdout: cannot write: {error.strerror or error}"
        line = f"kiln: error: {text}{limits.shell_hint()}"
    except Exception as error:
        name = "kiln" if command.question is None else f"kiln {command.question.command}"
        line = unforeseen.error_line(name, command.question, error)
    if command.json:
        try:
            return _print(CommandAnswer(command=_named(words), status=2, error=error_of(line)))
        except OSError:  # such as a full disk: the answer cannot be given where it is asked for
            drop_output()
    print(line, file=sys.stderr)
    return 2


def _parse(words: Sequence[str]) -> Command | CommandAnswer:
    """The command of the arguments; of `build -h --json`, the answer that has the help."""
    if "--json" not in words:
        return parse(words)
    help_text = io.StringIO()
    try:
        with contextlib.redirect_stdout(help_text):
            return parse(words)
    except SystemExit:  # argparse has printed the help
        return CommandAnswer(command=_named(words), messages=help_text.getvalue().splitlines())


def _named(words: Sequence[str]) -> str:
    """The name of the command in the arguments, for an answer; empty if there is none."""
    return next((word for word in words if "=" not in word and not word.startswith("-")), "")


def _reader_has_ended() -> int:
    """Let the process end without writing what is still in the buffer of stdout; returns the status."""
    drop_output()
    return READER_HAS_ENDED


def _check_names(words: Sequence[str]) -> None:
    """Raise KilnError if an argument or the current folder has bytes that are not UTF-8."""
    folder = ""
    with contextlib.suppress(OSError):  # the folder was removed
        folder = str(Path.cwd())
    for name in (*words, folder):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise KilnError(
                f"'{name}': not UTF-8, in which paths are stored in Kiln's files: rename it, or set a UTF-8 "
                "locale such as LC_ALL=C.UTF-8"
            ) from None


def _answer(command: Command) -> CommandAnswer:
    """Run a command whose answer is printed as JSON; its text, if it prints any, goes to stderr."""
    if command.question is None:
        from kiln.command_line.goals import answer_of_goals

        return answer_of_goals(command.words)
    reply = _reply(command.question, sys.stderr)
    return CommandAnswer(command=command.question.command, status=int(reply.wrong), results=[reply.part])


def _reply(question: Namespace, stream: TextIO) -> Reply:
    """The reply of a command; lines that it prints before go to `stream`, or nowhere with --quiet."""
    with contextlib.redirect_stdout(io.StringIO() if getattr(question, "quiet", False) else stream):
        return _QUESTIONS[question.command](question)


def _print(answer: CommandAnswer) -> int:
    """Print an answer; returns the exit status."""
    try:
        print(answer.model_dump_json(indent=1), flush=True)
    except BrokenPipeError:
        status = _reader_has_ended()
        return status if answer.error is None else answer.status
    return answer.status


def _list(arguments: Namespace) -> Reply:
    entries = listing.LISTS[arguments.kind]()
    part = AnswerPart(goal="list", data={"kind": arguments.kind, "entries": entries})
    text = listing.listing(entries) or listing.EMPTY[arguments.kind]
    return Reply(part, lambda: print(text))


def _completion(arguments: Namespace) -> Reply:
    script = completion(whole_parser(), arguments.shell)
    part = AnswerPart(goal="completion", data={"shell": arguments.shell, "script": script})
    return Reply(part, lambda: print(script))


def _schema(arguments: Namespace) -> Reply:
    from kiln.command_line.schemas import schema_of

    text = json.dumps(schema := schema_of(arguments.kind), indent=1)
    return Reply(AnswerPart(goal="schema", data=schema), lambda: print(text))


def _report(arguments: Namespace) -> Reply:
    from kiln.command_line.two_reports import compare_reports, show

    comparison = compare_reports(*map(Path, arguments.reports))
    part = AnswerPart(goal="report", model=comparison["model"], data=comparison)
    return Reply(part, lambda: show(comparison))


def _compare(arguments: Namespace) -> Reply:
    from kiln.command_line.compare.run import as_json, compare_model, report, save
    from kiln.command_line.compare.show import show
    from kiln.command_line.running import destination_of

    destination = destination_of(arguments.target, arguments.device)
    if arguments.float is not None:
        from kiln.command_line.compare.float_model import compare_with_float

        compared = compare_with_float(
            model_of(arguments),
            arguments.float,
            destination,
            _path(arguments.inputs),
            arguments.min_snr,
            **_options(arguments),
        )
    elif arguments.min_snr is not None:
        raise KilnError("compare: --min-snr is the limit of --float FILE.onnx, which is not given")
    else:
        compared = compare_model(
            model_of(arguments), destination, _path(arguments.inputs), **_options(arguments)
        )
    path, data = save(compared), as_json(compared)
    page = report(compared, destination, **_options(arguments))
    files = {"tensors": path} if page is None else {"tensors": path, "page": page}
    wrong = any(not row.difference.passed for row in (*compared.rows, *compared.outputs))
    part = _part(arguments, data["target"], files, data, model=data["model"])
    return Reply(part, lambda: show(compared, path, arguments.all, page), wrong)


def _quantise(arguments: Namespace) -> Reply:
    from kiln.command_line.quantise.improve import QuantiseOptions
    from kiln.command_line.quantise.run import Goal, as_json, quantise
    from kiln.command_line.quantise.show import show
    from kiln.command_line.timed_copies import Timing

    goal = Goal(arguments.min_snr, arguments.max_drop)
    data, out = _path(arguments.data), _path(arguments.out)
    options = QuantiseOptions(
        arguments.method,
        arguments.activations,
        arguments.equalise,
        arguments.correct_bias,
        arguments.all_integer,
        arguments.weight_bits,
    )
    timing = None
    if arguments.target or arguments.device:
        timing = Timing(arguments.target, arguments.device, arguments.byoc)
    elif arguments.byoc is not None:
        raise KilnError("quantise: --byoc is for the times of --target or --device, which is not given")
    result = quantise(model_of(arguments), data, out, options, goal, timing)
    part = _part(arguments, arguments.target, {"model": result.model}, as_json(result))
    return Reply(part, lambda: show(result))


def _evaluate(arguments: Namespace) -> Reply:
    from kiln.command_line.evaluate import as_json, evaluate, show
    from kiln.command_line.running import destination_of

    name = model_of(arguments)
    if arguments.data is None:
        raise KilnError("evaluate: data is missing: --data FOLDER, FILE.csv or FILE.npz")
    destination = destination_of(arguments.target, arguments.device)
    outputs = _path(arguments.outputs)
    result = evaluate(name, Path(arguments.data), destination, outputs, **_options(arguments))
    files = {} if outputs is None else {"outputs": outputs}
    part = _part(arguments, destination.target.name, files, as_json(result))
    return Reply(part, lambda: show(name, destination.target.name, result))


def _reduce(arguments: Namespace) -> Reply:
    from kiln.command_line.compare.reduce import reduce_model
    from kiln.command_line.running import destination_of

    destination = destination_of(arguments.target, arguments.device)
    inputs, out = _path(arguments.inputs), Path(arguments.out)
    reduced = reduce_model(model_of(arguments), destination, inputs, out, **_options(arguments))
    files = (
        {"model": reduced.model}
        if reduced.inputs is None
        else {"model": reduced.model, "inputs": reduced.inputs}
    )
    data = {"nodes": reduced.nodes, "of_nodes": reduced.of_nodes, "failure": reduced.failure}

    def show() -> None:
        with_inputs = "" if reduced.inputs is None else f", with the inputs {reduced.inputs}"
        print(f"{reduced.model}: {reduced.nodes} of {reduced.of_nodes} nodes{with_inputs}")
        print(f"fails with: {reduced.failure}")

    return Reply(_part(arguments, destination.target.name, files, data), show)


def _part(
    arguments: Namespace, target: str | None, files: Mapping[str, Path], data: Any, model: str | None = None
) -> AnswerPart:
    """The result of a question about one model."""
    return AnswerPart(
        goal=arguments.command,
        model=load_model(model_of(arguments)).name if model is None else model,
        target=target,
        device=getattr(arguments, "device", None),
        files={purpose: str(path) for purpose, path in files.items()},
        data=data,
    )


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _options(arguments: Namespace) -> dict[str, str]:
    """The options that a command passes on to the build."""
    given = {name: getattr(arguments, name, None) for name in ("byoc", "dims")}
    return {name: value for name, value in given.items() if value is not None}


def _lazily(module: str, function: str) -> Callable[[Namespace], Reply]:
    """A function that imports `module` of this package when it is called: a build does not need it."""

    def call(arguments: Namespace) -> Reply:
        reply: Reply = getattr(importlib.import_module(f"kiln.command_line.{module}"), function)(arguments)
        return reply

    return call


_QUESTIONS: Mapping[str, Callable[[Namespace], Reply]] = {
    "list": _list,
    "schema": _schema,
    "completion": _completion,
    "quantise": _quantise,
    "evaluate": _evaluate,
    "compare": _compare,
    "reduce": _reduce,
    "report": _report,
    "traffic": _lazily("traffic", "traffic"),
    "tune": _lazily("traffic", "costs"),
    "sign": _lazily("bundles", "signed"),
    "verify": _lazily("bundles", "verified"),
    "sbom": _lazily("bundles", "listed"),
    "publish": _lazily("bundles", "published"),
    "fetch": _lazily("bundles", "fetched"),
}


def _scons(words: Sequence[str]) -> int:
    """Run SCons in this process: its own main function ends with SystemExit."""
    from SCons.Script import Main
    from SCons.Script import main as scons_main

    start_servers(words)
    build = Main._exec_main

    def interrupted_in_one_line(*arguments: Any) -> None:
        try:
            build(*arguments)
        except KeyboardInterrupt:  # while SConstruct is read; SCons has words of its own for it, on stdout
            print(INTERRUPTED, file=sys.stderr)
            sys.exit(2)

    Main._exec_main = interrupted_in_one_line
    sys.argv = ["kiln", "-Q", "-f", str(data_file("SConstruct")), *words]
    sys.stdout = output = CheckedOutput(sys.stdout)
    try:
        scons_main()
    except SystemExit as end:
        lost = output.lost()
        if lost is None or end.code not in (None, 0):
            raise
        drop_output()
        raise KilnError(f"stdout: cannot write: {lost}") from None
    return 0


if __name__ == "__main__":
    sys.exit(main())
