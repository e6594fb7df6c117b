"""The options of SCons in a command line: which ones a build takes, and a clear error for the others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from optparse import SUPPRESS_HELP

from SCons.Script import SConsOptions

from kiln.config.check import nearest
from kiln.errors import KilnError
from kiln.scons.options import OPTIONS


def checked_scons_words(words: Sequence[str]) -> Sequence[str]:
    """`words` for SCons. Raises KilnError for an unknown option: SCons's own message has three lines.

    Also for one that SCons ignores, and for another SConstruct. `-q` is quiet, as with every goal; SCons's
    own `-q`, whose status answers a question, is `--question`.
    """
    parser = SConsOptions.Parser("")
    every = [option for options in (parser, *parser.option_groups) for option in options.option_list]
    names = {name: option for option in every for name in str(option).split("/")}
    for word, after in zip(words, [*words[1:], ""], strict=True):
        jobs = re.fullmatch(r"(?:-j|--jobs=?)(.*)", word)
        if jobs is not None and not re.fullmatch(r"-?[0-9]+", number := jobs[1] or after):
            raise KilnError(f"option -j: '{number}', allowed: a whole number of 1 or more")
        option = word.partition("=")[0] if word.startswith("--") else word[:2]
        if not option.startswith("-"):
            continue
        meant = option if option in names else next((name for name in names if name.startswith(option)), None)
        if meant is not None:
            _refuse(option, ignored=names[meant].help == SUPPRESS_HELP, file=names[meant].dest == "file")
            continue
        name = option.removeprefix("--")
        hint = f"; write {name}=VALUE" if name in OPTIONS else nearest(option, names)
        raise KilnError(f"unknown option '{option}'{hint} (kiln -h lists the arguments)")
    return ["-s" if word == "-q" else word for word in words]


def _refuse(option: str, ignored: bool, file: bool) -> None:
    """Raise KilnError for an option that SCons only knows for the sake of make, and for one with a file."""
    if ignored:
        hint = "; target=NAME or --target NAME chooses a target" if option == "-t" else ""
        raise KilnError(f"option '{option}' has no effect: leave it out{hint}")
    if file:
        raise KilnError(
            f"option '{option}': kiln reads its own SConstruct; for yours, with the tool kiln, run scons"
        )
