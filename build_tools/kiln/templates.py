"""Text files from jinja2 templates, with the same rules everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2


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
        **{"autoescape": False, **options},
    )
