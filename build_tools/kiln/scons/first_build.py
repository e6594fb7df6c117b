"""Starts the servers of a build's stages before SCons reads the SConstruct.

The import of TVM takes as long as all that a build does before its first stage on a model's graph, and one
of two cores is idle in that time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from kiln.paths import listed_names
from kiln.scons.server_process import fork_servers

WORK = "build/.stages"  # folder of the files between the stages
STAGES_WITH_TVM = ("import", "lower")  # the first ones of a build
_HARMLESS = ("-s", "-j", "-Q")  # options of SCons with which it builds, and in this folder


def start_servers(words: Sequence[str]) -> None:
    """Fork the servers where `words`, of the command line, may build a model; import TVM for a first build.

    The process must have one thread.
    """
    options = dict(word.split("=", 1) for word in words if "=" in word and not word.startswith("-"))
    if "model" not in options:
        return
    servers = fork_servers()
    if servers is not None and _is_first(words, options):
        servers.import_modules(STAGES_WITH_TVM)


def _is_first(words: Sequence[str], options: dict[str, str]) -> bool:
    """Whether stages import TVM for certain: nothing of a model is built, and nothing else has its stages."""
    if any(word.startswith("-") and not word.startswith(_HARMLESS) for word in words):
        return False
    if "cluster" in options or options.get("cache", os.environ.get("KILN_CACHE") or "none") != "none":
        return False
    targets = listed_names(options.get("target", "" if {"device", "program"} & set(options) else "host"))
    models = [Path(name).stem for name in listed_names(options["model"])]
    with contextlib.suppress(OSError, ValueError):  # no name of a file: the build says so
        return any(not Path(WORK, target, model).exists() for target in targets for model in models)
    return False
