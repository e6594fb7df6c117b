"""docs/guides/docker.md: Buildah builds the page's image from a minimal Debian, and its program runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from device.guides import follow_guide
from kiln import packages
from scons_real import ROOT

pytestmark = pytest.mark.heavy
# Of this machine: its network may have a certificate of its own, which packages are fetched with.
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# In place of docker: build, run and inspect by Buildah, which needs no server. The image has one program.
DOCKER = """#!/bin/sh
set -eu
buildah() { command buildah --root {place}/store --runroot {place}/run --storage-driver vfs "$@"; }
case $1 in
build)
    buildah bud --isolation chroot --pull-never -t classify . >&2 ;;
run) exec "$(buildah mount "$(buildah from --pull-never classify)")/classify" ;;
image) cd "$(buildah mount "$(buildah from --pull-never classify)")"
    [ "$(find . -type f -size +0)" = ./classify ] && stat -c %s classify ;;
debian) c=$(buildah from scratch); buildah add "$c" {place}/debian.tar / >&2
    buildah add "$c" {certificates} /host-ca.crt >&2
    buildah config --env PIP_CERT=/host-ca.crt --env SSL_CERT_FILE=/host-ca.crt "$c"
    buildah commit "$c" docker.io/library/debian:bookworm-slim >&2; buildah rm "$c" >&2 ;;
esac
"""


def test_docker(tmp_path: Path) -> None:
    for program in ("buildah", "mmdebstrap"):
        if shutil.which(program) is None:
            pytest.skip(packages.missing_program(program))
    programs, guide = tmp_path / "programs", tmp_path / "guide"
    programs.mkdir()
    guide.mkdir()
    docker = programs / "docker"
    text = DOCKER.replace("{place}", str(tmp_path)).replace("{certificates}", CERTIFICATES)
    docker.write_text(text, encoding="utf-8")
    docker.chmod(0o755)
    debian = [str(tmp_path / "debian.tar"), "http://deb.debian.org/debian"]
    subprocess.run(["mmdebstrap", "-q", "--variant=minbase", "bookworm", *debian], check=True)
    subprocess.run([str(docker), "debian"], check=True)
    said = follow_guide("docker.md", guide, {"path/to/kiln": str(ROOT)}, path=str(programs))
    assert int(said[-1]) < 2_000_000
