"""The results of builds of the models: build/zoo/results.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from kiln.files import atomic_write


@dataclass(frozen=True)
class Result:
    """One model in one form.

    `state`: ok, refused, wrong, crashed, slow (over the limit) or "not exported" (PyTorch's exporter cannot).
    `why`: the line that says so. `build`, `lower`: wall time of the build, and of its stage `lower`, in
    seconds. `arena`: bytes. `speed`: ONNX Runtime's time over Kiln's, one thread: the geometric mean over the
    sizes of the golden vectors; `lowest`: the least of them.
    """

    state: str
    why: str = ""
    build: float | None = None
    lower: float | None = None
    arena: int | None = None
    speed: float | None = None
    lowest: float | None = None


class Record:
    """Results by model and form, stored after each addition."""

    def __init__(self, path: Path, models: dict[str, dict[str, Result]], groups: dict[str, str]) -> None:
        self.path, self.models, self.groups = path, models, groups

    @staticmethod
    def load(path: Path) -> Record:
        """The stored results; none if there is no file."""
        if not path.exists():
            return Record(path, {}, {})
        stored = json.loads(path.read_text(encoding="utf-8"))
        models = {
            name: {form: Result(**result) for form, result in forms.items()}
            for name, forms in stored["models"].items()
        }
        return Record(path, models, stored["groups"])

    def result(self, name: str, form: str) -> Result | None:
        """The result of a model in a form."""
        return self.models.get(name, {}).get(form)

    def add(self, name: str, group: str, form: str, result: Result) -> None:
        """Store a result in place of an earlier one."""
        self.groups[name] = group
        self.models.setdefault(name, {})[form] = result
        models = {
            name: {form: asdict(result) for form, result in forms.items()}
            for name, forms in self.models.items()
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(self.path, json.dumps({"groups": self.groups, "models": models}, indent=1) + "\n")
