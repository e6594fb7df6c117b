"""Reads dynamic dimensions from archives of PyTorch models, and makes the archive of a Python function.

Both happens before SCons plans the build, as the buckets depend on the dimensions.
"""

from __future__ import annotations

from pathlib import Path

from SCons.Script import GetOption

from kiln.config.model import Model
from kiln.config.source import FileSource, PythonSource
from kiln.errors import KilnError
from kiln.scons.session import session
from kiln.sources.torch_archive import TRACED
from kiln.sources.torch_model import Shapes, with_sizes
from kiln.stages.model import TraceStage


def resolve(model: Model, archives: dict[str, str], shapes: dict[str, Shapes]) -> Model:
    """The model, with the shapes and dimensions of its archive where its configuration has none.

    A Python function is called in every build, and replaced by the archive that it makes; `archives` gets the
    function's name, by model. `shapes` gets, by a model that is a part of its program, the shapes of the
    program's inputs. Models of other formats are returned unchanged, and so are archives in a package, whose
    YAML must declare the dimensions.
    """
    if isinstance(model.source, PythonSource):
        archives[model.name] = model.source.function
        model = model.model_copy(update={"source": _traced(model.name, model.source.function)})
    if model.format != "pt2" or not isinstance(model.source, FileSource):
        return model
    path = Path(model.source.path)
    if not path.is_file():  # the stage `fetch` reports it
        return model
    called = Path(
        archives.get(model.name)
        or (path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    )
    model, shapes_of_archive = with_sizes(model, path, called)
    if model.cut is not None:
        shapes[model.name] = shapes_of_archive
    return model


def _traced(name: str, function: str) -> FileSource:
    """The archive of a Python function. Raises KilnError where the function or the export fails."""
    path = Path(session().work, "models", name, TRACED).absolute()
    if not (GetOption("clean") or GetOption("help")):
        print(f"kiln: {name}: trace {function}", flush=True)
        status, _, output = session().server.run("trace", TraceStage(function=function, out=path).words())
        if status != 0:
            lines = [line for line in output.splitlines() if line.startswith("kiln: error: ")]
            crash = f"{function}: trace ended with status {status}: {' '.join(output.split())[-300:]}"
            raise KilnError(lines[-1].removeprefix("kiln: error: ") if lines else crash)
    return FileSource(kind="file", path=str(path))
