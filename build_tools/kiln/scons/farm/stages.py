"""Stages of a build that run on a cluster: the choice, their inputs there, and their outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kiln.config import Target
from kiln.config.model import StageLimits
from kiln.errors import KilnError
from kiln.files import read_json
from kiln.scons import cache, digest
from kiln.scons.farm import cluster
from kiln.scons.stage_node import StageNode
from kiln.scons.storage import DamagedError, StorageError
from kiln.scons.storage.requests import for_each
from kiln.stage import Scratch


def resources(stage: StageNode, farm: cluster.Cluster, limits: StageLimits | None) -> dict[str, float] | None:
    """The resources of a worker for a stage; None for a stage that runs on this machine.

    A cached stage runs on any worker. A stage that measures or tests runs on a worker with its device, or
    with a GPU for a target with a GPU, if there is such a worker. `limits`: the limits of the model; a stated
    memory is required where workers report theirs. Raises KilnError where no worker has as much.
    """
    if stage.markers:
        return None
    if stage.stage.spec.cached:
        is_stated = limits is not None and "memory" in limits.model_fields_set
        memory, limit = limits.memory if limits is not None and is_stated else 0, farm.offers("memory")
        if memory and limit:
            if memory > limit:
                raise KilnError(
                    f"{stage.subject}: {stage.name}: 'limits.memory' is {memory} bytes; "
                    f"no worker has more than {limit:.0f}"
                )
            return {"memory": float(memory)}
        return {}
    if not stage.stage.spec.on_device or getattr(stage.stage, "traffic", None) is not None:
        return None  # a traffic file is on this machine
    device, target = getattr(stage.stage, "device", None), getattr(stage.stage, "target", None)
    if device is not None:
        resource = f"device:{read_json(device)['name']}"
    elif target is not None and _has_gpu(target):
        resource = "cuda"
    else:
        return None
    return {resource: 1.0} if farm.offers(resource) else None


@dataclass(frozen=True)
class WorkerRun:
    """The cluster where a stage runs, the cache for its files, and its requirements of a worker."""

    farm: cluster.Cluster
    stage_cache: cache.StageCache
    resources: Mapping[str, float]

    def run(
        self,
        stage: StageNode,
        entry: cache.Entry | None,
        environment: Mapping[str, str],
        seconds: float | None,
        alive: Callable[[], object],
        stopped: Callable[[], bool],
    ) -> tuple[int | None, list[str], list[str]]:
        """Run a stage on a worker; returns its exit status, the lines of stdout, and the lines of stderr.

        The status is None for a stage that exceeded `seconds`. With status 0, the outputs are in place, and
        in the cache, as `entry` if that is not None. `alive` and `stopped`: see Cluster.run.
        """
        storage = self.stage_cache.storage
        try:
            task = _task(stage, self.stage_cache, environment, seconds)
            done = self.farm.run(stage.name, task, self.resources, alive, stopped)
            if done.get("late"):
                return None, [], []
            if done["status"] == 0:
                if missing := set(stage.outputs) - {file["name"] for file in done["files"]}:
                    raise KilnError(f"{stage.subject}: {stage.name}: ended without writing {min(missing)}")
                cache.place_outputs(storage, stage, done["files"])
                if entry is not None:
                    entry.record(done["files"])
        except StorageError as error:
            raise KilnError(f"the cache cannot be used: {error}") from None
        except DamagedError:
            text = f"worker {done['worker']}: not all outputs have reached the cache {storage.shown}"
            raise KilnError(text) from None
        return done["status"], done["stdout"], done["stderr"]


def _task(
    stage: StageNode, worker_cache: cache.StageCache, environment: Mapping[str, str], seconds: float | None
) -> dict[str, Any]:
    """The argument of `worker.run`. Stores all files that the stage reads in the cache."""
    files = cache.files_of(stage)
    target = getattr(stage.stage, "target", None)
    text = target.read_text(encoding="utf-8") if target is not None else None
    inputs = [value for field, values in stage.stage.values() for value in values if isinstance(value, Path)]
    outputs = [
        name for name in stage.outputs if stage.folder is None or Path(stage.folder) not in Path(name).parents
    ]
    scratch = [
        str(path)
        for field, values in stage.stage.values()
        if isinstance(field.kind, Scratch)
        for path in values
    ]
    return {
        "stage": stage.name,
        "words": stage.stage.words(),
        "files": for_each(worker_cache.put, files),
        "outside": sorted({str(path) for path in (*files, *inputs) if path.is_absolute()}),
        "outputs": [*outputs, *([stage.folder] if stage.folder else [])],
        "scratch": scratch if stage.stage.spec.cached else [],
        "environment": dict(environment),
        "seconds": seconds,
        "compiler": None if text is None else [text, digest.of_compiler(text)],
        "folder": str(Path.cwd()),
        "project": cluster.project(),
    }


def _has_gpu(target: Path) -> bool:
    return Target.model_validate_json(target.read_text(encoding="utf-8")).cuda is not None
