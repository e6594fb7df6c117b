"""Results of the functions of `flow`: paths of the files that stages write, and a bundle's SCons nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.scons.session import session
from kiln.scons.stage import nodes
from kiln.stages.target import ReportStage


@dataclass(frozen=True)
class Graphs:
    """Paths of the files that all targets share.

    `source` is the model's file, `graph` the file that is imported: the same, or the ONNX file to which an
    archive of torch.export is converted. `buckets` is the model's buckets.json, `interface` its
    interface.json, `folders` the folder of each bucket's graph, `padding` the proof for buckets that pad.
    """

    source: Path
    graph: Path
    buckets: Path | None
    interface: Path
    folders: Sequence[Path]
    padding: Path | None = None


@dataclass(frozen=True)
class ModelCode:
    """Paths of a model's code for a target: folders of plan, emit-source, emit-objects and link."""

    plan: Path
    source: Path
    objects: Path
    link: Path


class BundleNodes(list[Any]):
    """A bundle's SCons nodes, manifest first, and by name the nodes that a program is built with.

    `include` is the folder of the headers, for CPPPATH; `library`, `header`, `manifest` and `archive` are
    nodes. `plan` is the path of its plan.json, `report` the stage that writes its report.
    """

    def __init__(self, folder: Path, archive: Path, plan: Path, report: ReportStage) -> None:
        super().__init__([*nodes(folder), *nodes(archive)])
        self.manifest, self.library, self.header, self.archive = self
        self.include = session().folder(str(folder / "include"))
        self.folder = session().folder(str(folder))
        self.plan = plan
        self.report = report
