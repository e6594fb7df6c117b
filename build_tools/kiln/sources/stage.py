"""Fetch a model's file, check it, and put it in its place."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from kiln.errors import KilnError
from kiln.files import read_json
from kiln.sources.fetch import fetch


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare this program's flags."""
    parser.add_argument("--config", type=Path, required=True, help="the model's fetch slice, with its source")
    parser.add_argument("--out", type=Path, required=True, help="the model file to write")


def run(args: argparse.Namespace) -> None:
    """Fetch the source and copy it to --out."""
    config = read_json(args.config)
    place(fetch(config["source"]), args.out)


def place(source: Path, out: Path) -> None:
    """Copy a file so that `out` is the whole file or is not there. Raises KilnError when it cannot be written."""
    temporary: str | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{out.name}.", dir=out.parent)
        os.close(handle)
        shutil.copyfile(source, temporary)
        os.chmod(temporary, 0o644)
        os.replace(temporary, out)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise KilnError(f"{out}: cannot write: {error.strerror}") from error
