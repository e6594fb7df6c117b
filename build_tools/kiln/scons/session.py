"""State that all declarations of one SCons run share: one private environment, one journal, one console."""

from __future__ import annotations

import atexit
import functools
import os
from pathlib import Path
from typing import Any

import SCons.Environment
from SCons.Script import GetOption, SetOption

from kiln import forks
from kiln.config.model import StageLimits
from kiln.scons import cache, jobs
from kiln.scons.console import Console
from kiln.scons.content import Content
from kiln.scons.farm import cluster
from kiln.scons.first_build import STAGES_WITH_TVM, WORK
from kiln.scons.jobs import Places
from kiln.scons.journal import Journal
from kiln.scons.options import BUNDLES
from kiln.scons.server import StageServer
from kiln.scons.written import Written

BUILD = "build"
_EXTRA_STAGES = 4  # stages more than workers, so that no worker waits for the files of its next stage


class Session:
    """The state of one SCons run, created on first use, when SCons reads the SConstruct.

    The environment is Kiln's own, so that no setting of a user's environment changes how a bundle is built.
    """

    def __init__(self) -> None:
        self.work = WORK
        # Finished bundles, each in TARGET/MODEL.
        self.bundles = os.environ.get(BUNDLES, BUILD)
        self.builds_copies = BUNDLES in os.environ  # of models, or of parts of them, for a command
        self.env: Any = SCons.Environment.Environment(tools=[], SCANNERS=[])
        content = Content(Path(self.work, "signatures.json"), BUILD)
        self.env.Decider(content.changed)
        SetOption("max_drift", -1)  # else SCons compares files older than two days by whole seconds only
        self.written = Written(Path(self.work, "outputs.json"), content)
        atexit.register(content.save)
        atexit.register(self.written.save)  # runs first, and computes signatures
        self.declared: dict[str, list[Any]] = {}
        self.console = Console()
        self.server = StageServer()
        self.cache = cache.cache_of_build()
        # For stages that run on this machine; SCons starts more where a cluster runs stages.
        self.local_places = Places(GetOption("num_jobs"), jobs.jobs_option() or forks.jobs())
        self.cluster = self._cluster()
        self.parallel = GetOption("num_jobs") > 1
        self.limits: dict[str, StageLimits] = {}  # by name of the model

    def _cluster(self) -> cluster.Cluster | None:
        """The cluster that runs stages, if one is configured and something is built."""
        if _builds_nothing():
            return None
        chosen_cluster = cluster.cluster_of_build(self.cache.storage.text if self.cache is not None else None)
        if chosen_cluster is not None:
            if self.cache is None:
                self.cache = cache.StageCache(chosen_cluster.storage)
            SetOption("num_jobs", chosen_cluster.width + _EXTRA_STAGES)  # -j is stronger
            self.console.line(f"kiln: {chosen_cluster.description()}", progress=True)
        return chosen_cluster

    def prepare(self, folder: Path) -> None:
        """Let the server of the stages import their modules, if nothing of a model is in its `folder` yet."""
        if not _builds_nothing() and self.cache is None and self.cluster is None and not folder.exists():
            self.server.prepare(STAGES_WITH_TVM)

    def file(self, path: str) -> Any:
        """The file as an SCons node, `path` taken literally.

        SCons's own Environment.File would run the text between `${` and `}` in a file name as Python.
        """
        return self.env.fs.File(path)

    def folder(self, path: str) -> Any:
        """The folder as an SCons node, `path` taken literally."""
        return self.env.fs.Dir(path)

    @functools.cached_property
    def journal(self) -> Journal:
        """The journal of the build folder; the first access waits for other builds in that folder."""
        journal = Journal(Path(self.work))
        self.written.forget(journal.interrupted)
        return journal


def _builds_nothing() -> bool:
    """Whether an option of SCons requests something other than a build."""
    return any(GetOption(option) for option in ("help", "no_exec", "clean", "question"))


_current: list[Session] = []


def session() -> Session:
    """The session of this SCons run, created by the first call."""
    if not _current:
        _current.append(Session())
        if not (GetOption("help") or GetOption("no_exec")):
            _current[0].journal  # noqa: B018  (recovers from a killed build before any file is looked at)
    return _current[0]
