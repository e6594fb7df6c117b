"""Text files from jinja2 templates, with the same rules everywhere."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from jinja2.bccache import Bucket

from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.paths import cache_dir


class _CompiledTemplates(jinja2.BytecodeCache):
    """Templates as jinja2 has compiled them, which takes longer than to fill them in, in the user's cache.

    jinja2 compiles a template again where the source, its own version or Python's differs.
    """

    def load_bytecode(self, bucket: Bucket) -> None:
        """See jinja2.BytecodeCache."""
        with (
            contextlib.suppress(OSError, ValueError, EOFError, TypeError),
            self._file(bucket).open("rb") as file,
        ):
            bucket.load_bytecode(file)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """See jinja2.BytecodeCache; without an effect where the file cannot be written."""
        with contextlib.suppress(OSError, KilnError):
            file = self._file(bucket)
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(file, bucket.bytecode_to_string())

    def _file(self, bucket: Bucket) -> Path:
        return cache_dir() / "templates" / bucket.key


def rendered(folder: Path, name: str, values: Mapping[str, Any]) -> str:
    """The text of the template `name` in `folder` with `values`, by name; see `environment`."""
    return environment(folder).get_template(name).render(values)


def environment(folder: Path, **options: Any) -> jinja2.Environment:
    """The templates in `folder`: an undefined name is an error, and control lines leave no blank lines.

    Nothing is escaped, unless `options` (of jinja2.Environment) enable it.
    """
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        bytecode_cache=_CompiledTemplates(),
        **{"autoescape": False, **options},
    )
