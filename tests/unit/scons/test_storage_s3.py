"""A cache in S3: bundles go through moto's server, which speaks S3's protocol, with the package s3fs.

Neither is a package that Kiln is developed with: the test installs both into a folder of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.scons_project import RESNET, StandInProject

pytestmark = pytest.mark.heavy
PACKAGES = ("moto[server]==5.2.5", "s3fs==2026.9.0")

SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
BUCKET = "import s3fs; s3fs.S3FileSystem().mkdir('builds')"
DAMAGE = """
import s3fs
files = s3fs.S3FileSystem()
found = sorted(files.find("builds/kiln/blobs"))
files.pipe_file(found[0], b"other")
files.rm_file(found[1])
print(len(found))
"""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which s3://builds is a bucket of a server on this machine."""
    packages = tmp_path_factory.mktemp("packages")
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(packages)]
    subprocess.run([*install, *PACKAGES], check=True, capture_output=True, timeout=900)
    given = {
        "PYTHONPATH": str(packages),
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], env={**os.environ, **given}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        given["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{int(server.stdout.readline())}"
        python(BUCKET, given)
        yield given
        server.kill()


def python(program: str, environment: dict[str, str]) -> str:
    """The output of a Python program, which must succeed."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_bundle_comes_back_whole_from_s3(s3: dict[str, str], tmp_path: Path) -> None:
    """Also where an object was changed or removed: then the stages that made it run again."""
    project = StandInProject(tmp_path)
    words = (*RESNET, "cache=s3://builds/kiln")
    assert len(project.build(*words, **s3)) == 16
    bundle = project.bundle_digest("aarch64/resnet")

    def rebuilt() -> set[str]:
        shutil.rmtree(project.folder / "build")
        ran = {stage.split()[0] for stage in project.build(*words, **s3)}
        assert project.bundle_digest("aarch64/resnet") == bundle
        return ran

    never_kept = {"fetch", "device-schema"}
    assert rebuilt() == never_kept
    assert int(python(DAMAGE, s3)) > 10
    assert rebuilt() > never_kept
    assert rebuilt() == never_kept  # both objects were stored again


def test_a_bucket_that_does_not_exist_is_named_and_the_build_goes_on(
    s3: dict[str, str], tmp_path: Path
) -> None:
    project = StandInProject(tmp_path)
    done = project.scons(*RESNET, "cache=s3://bilds/kiln", **s3)
    assert done.returncode == 0 and len(project.ran()) == 16
    printed = [line for line in (done.stdout + done.stderr).splitlines() if "s3://bilds/kiln" in line]
    assert printed and all(len(line) < 400 for line in printed)
    assert "Traceback" not in done.stderr
