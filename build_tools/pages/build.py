"""Build the site from docs/: `./kiln docs` writes build/site, which needs no server and no network.

1. Install requirements.txt, with hashes, into build/pages/venv, once.
2. Fetch the scripts of scripts.json from npm's registry, once; it has the SHA-512 of their packages.
3. Run mkdocs, which fails at broken links and warnings.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / "build/pages"
SITE = ROOT / "build/site"
LIMIT = 600  # seconds for a download


class BuildError(Exception):
    """The site cannot be built; the message is one line."""


def main() -> int:
    """Build the site; returns 0, or 2 after printing an error."""
    try:
        _environment()
        _scripts()
        _mkdocs()
    except BuildError as error:
        print(f"kiln: error: docs: {error}", file=sys.stderr)
        return 2
    print(f"{SITE.relative_to(ROOT)}/index.html")
    return 0


def _environment() -> None:
    """Make build/pages/venv, unless it has been made from the same requirements."""
    wanted, mark = HERE / "requirements.txt", WORK / "venv/requirements.txt"
    if mark.is_file() and mark.read_bytes() == wanted.read_bytes():
        return
    if sys.version_info < (3, 11):
        raise BuildError(f"mkdocs-material needs Python 3.11 or newer, this is {sys.version.split()[0]}")
    shutil.rmtree(WORK / "venv", ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(WORK / "venv")])
    pip = [str(WORK / "venv/bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    _run([*pip, "--require-hashes", "--only-binary", ":all:", "-r", str(wanted)])
    shutil.copyfile(wanted, mark)


def _scripts() -> None:
    """Fetch the scripts of the pages and their licences, unless they are there."""
    for script in json.loads((HERE / "scripts.json").read_text(encoding="utf-8")):
        files = [WORK / "assets" / script[kind] for kind in ("file", "licence_file")]
        mark = WORK / f"{script['file']}.integrity"
        if mark.is_file() and mark.read_text() == script["integrity"] and all(f.is_file() for f in files):
            continue
        try:
            with urllib.request.urlopen(script["registry"], timeout=LIMIT) as answer:
                content = answer.read()
        except OSError as error:
            raise BuildError(f"{script['registry']}: cannot be fetched: {error}") from None
        found = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
        if found != script["integrity"]:
            raise BuildError(f"{script['registry']}: {found}, expected: {script['integrity']}")
        files[0].parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for file, member in zip(files, (script["member"], script["licence_member"]), strict=True):
                source = archive.extractfile(member)
                assert source is not None
                file.write_bytes(source.read())
        mark.write_text(script["integrity"])


def _mkdocs() -> None:
    """Build the pages; raises BuildError after printing the warnings and errors of mkdocs."""
    words = ["-m", "mkdocs", "build", "--strict", "--clean", "-f", str(ROOT / "mkdocs.yml")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(WORK / "venv/bin/python"), *words], check=False, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        lines = done.stderr.splitlines()
        print("\n".join([line for line in lines if not line.startswith("INFO")][-40:]), file=sys.stderr)
        raise BuildError("mkdocs failed, the lines above say why")


def _run(command: list[str]) -> None:
    if subprocess.run(command, check=False, stdout=sys.stderr).returncode:
        raise BuildError(f"{' '.join(command)} failed, the lines above say why")


if __name__ == "__main__":
    sys.exit(main())
