"""In place of docker where there is none: runs the steps of a Dockerfile in folders of the test.

    docker_steps.py PLACE build …     in the folder of the Dockerfile; without what installs software
    docker_steps.py PLACE run …       the image's program
    docker_steps.py PLACE image …     the bytes of the image's files

A stage's files are in PLACE/<its name>; its working folder is the root of it. An absolute path of a command
is one below that root where the Dockerfile copies it into the last stage.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

INSTALLS = ("apt-get ", "python3 -m venv ", "/opt/kiln/bin/pip ")


def build(place: Path) -> None:
    lines = Path("Dockerfile").read_text(encoding="utf-8").replace("\\\n", "").splitlines()
    steps = [(word, arguments) for word, _, arguments in (line.partition(" ") for line in lines) if word]
    copied = [
        arguments.split()[1] for word, arguments in steps if word == "COPY" and arguments.startswith("--from")
    ]
    stage = place
    for word, arguments in steps:
        if word == "FROM":
            stage = place / (arguments.partition(" AS ")[2] or "image")
            stage.mkdir()
        elif word == "RUN" and not arguments.startswith(INSTALLS):
            for path in copied:
                arguments = arguments.replace(f" {path}", f" {stage / path.strip('/')}")
            subprocess.run(["bash", "-ec", arguments], cwd=stage, check=True, stdout=sys.stderr)
        elif word == "COPY":
            *where, source, target = arguments.split()
            root = place / where[0].partition("=")[2] if where else Path()
            name = target.strip("/.") or source
            copy = shutil.copytree if (root / source.strip("/")).is_dir() else shutil.copy
            copy(root / source.strip("/"), stage / name)
        elif word == "ENTRYPOINT":
            (place / "entry").write_text(arguments.strip('[]"').strip("/"), encoding="utf-8")


if __name__ == "__main__":
    place, command = Path(sys.argv[1]), sys.argv[2]
    if command == "build":
        build(place)
    elif command == "run":
        program = place / "image" / (place / "entry").read_text(encoding="utf-8")
        os.execv(program, [str(program)])
    else:
        print(sum(path.stat().st_size for path in (place / "image").rglob("*") if path.is_file()))
