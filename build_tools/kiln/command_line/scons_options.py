"""The options of SCons in a command line: which ones a build takes, and a clear error for the others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from optparse import SUPPRESS_HELP
from typing import NoReturn

from SCons.Script import SConsOptions

from kiln.config.check import nearest
from kiln.errors import KilnError
from kiln.scons.options import OPTIONS

# What options change that Kiln decides itself: the files of the build, its folder, how SCons runs.
_DECIDED = ("file", "repository", "site_dir", "directory", "hash_format", "stack_size")


QUIET = ("-q", "--quiet", "-s", "--silent")  # the last two are SCons's own


def checked_scons_words(words: Sequence[str]) -> Sequence[str]:
    """`words` for SCons. Raises KilnError for an unknown option or value: SCons itself prints three lines.

    Also for one that SCons ignores, and for what Kiln decides itself, such as the SConstruct. `-q` is quiet,
    as with every goal; SCons's own `-q`, whose status answers a question, is `--question`.
    """
    parser = SConsOptions.Parser("")
    parser.error = _wrong_value
    every = [option for options in (parser, *parser.option_groups) for option in options.option_list]
    names = {name: option for option in every for name in str(option).split("/")}
    prints = False
    for word, after in zip(words, [*words[1:], ""], strict=False):
        jobs = re.fullmatch(r"(?:-j|--jobs=?)(.*)", word)
        if jobs is not None and not re.fullmatch(r"-?[0-9]+", number := jobs[1] or after):
            raise KilnError(f"option -j: '{number}', allowed: a whole number of 1 or more")
        option = word.partition("=")[0] if word.startswith("--") else word[:2]
        if not option.startswith("-"):
            continue
        meant = option if option in names else next((name for name in names if name.startswith(option)), None)
        if meant is not None:
            _refuse(option, names[meant].help == SUPPRESS_HELP, names[meant].dest)
            prints = prints or names[meant].dest is None  # and ends: SCons's version, its own help
            continue
        name = option.removeprefix("--")
        hint = f"; write {name}=VALUE" if name in OPTIONS else nearest(option, names)
        raise KilnError(f"unknown option '{option}'{hint} (kiln -h lists the arguments)")
    if not prints:
        parser.parse_args(list(words))
    return ["-s" if word in QUIET else word for word in words]


def _refuse(option: str, ignored: bool, changed: str | None) -> None:
    """Raise KilnError for an option that SCons only knows for the sake of make, and for what Kiln decides.

    `changed`: what the option changes, by SCons's name.
    """
    if ignored:
        hint = "; target=NAME or --target NAME chooses a target" if option == "-t" else ""
        raise KilnError(f"option '{option}' has no effect: leave it out{hint}")
    if changed == "directory":
        raise KilnError(
            f"option '{option}': kiln builds in the folder in which it is started: cd there first"
        )
    if changed in _DECIDED:
        raise KilnError(
            f"option '{option}': kiln reads its own SConstruct; for yours, with the tool kiln, run scons"
        )


def _wrong_value(message: str) -> NoReturn:
    """Raise KilnError in place of SCons's usage and error."""
    raise KilnError(f"{message} (kiln -h lists the arguments)")
