"""Completion scripts of shells, made by shtab: commands, options, and the values that options take."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from kiln.command_line.completion_words import with_words
from kiln.config import list_devices, list_models, list_targets

SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """A completion script of `parser` for `shell`, for both forms of a command line; changes the parser.

    Targets and devices are those that are known here and now. A value that is not one of a few words may be
    the path of a file, as most are.
    """
    import shtab

    from kiln.scons.options import ALIASES, OPTIONS  # imports SCons: for this command only

    names = {
        "target": tuple(entry.name for entry in list_targets()),
        "device": tuple(entry.name for entry in list_devices()),
    }
    for action in _actions(parser):
        if action.nargs == 0 or action.choices is not None or action.type is not None:
            continue
        if names.get(action.dest):
            action.choices = names[action.dest]
        else:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    known = {**names, "model": tuple(entry.name for entry in list_models())}
    return with_words(shtab.complete(parser, shell), shell, tuple(OPTIONS), tuple(ALIASES), known)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
