"""README's two commands on machines that have nothing but Python.

./kiln test tests/system: some 20 minutes and 10 GB of disk for each system. It needs root, mmdebstrap, and
a network with PyPI and the archives of Debian and Ubuntu.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .clean_root import ROOT, USER, CannotMakeError, Suite, System, debian, newest_ubuntu, plain_processor

# The newest release first; an archive may not have it yet.
UBUNTU = ["resolute", "questing", "noble"]
# Of each kind of thing that a test can lack one that needs it: C libraries and emulators of other machines,
# sanitizers of two compilers, valgrind, cmake and pkg-config, a board, adb, a GPU's stand-in, this processor.
ESSENTIALS = (
    "tests/device/test_models_golden.py tests/unit/setup/test_packages.py "
    "tests/unit/runtime_c/test_runtime_c.py tests/conformance/test_scons_bundle.py "
    "tests/device/test_flash_gdb.py tests/device/test_flash_adb.py "
    "tests/gpu/test_cuda_tensor.py tests/conformance/test_kernels_dynamic_attention.py "
    "tests/conformance/test_kernels_int8.py -n0 -q "
    "-k 'not test_models_golden or ((armv7 or host) and resnet and not resnet50)'"
)

pytestmark = pytest.mark.heavy


def _system(suite: Suite, folder: Path) -> System:
    try:
        return System.make(suite, folder)
    except CannotMakeError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def bookworm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    try:
        suite = debian("bookworm")
    except CannotMakeError as error:
        pytest.skip(str(error))
    yield _system(suite, tmp_path_factory.mktemp("system") / "bookworm")


@pytest.fixture(scope="module")
def ubuntu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    try:
        suite = newest_ubuntu(UBUNTU)
    except CannotMakeError as error:
        pytest.skip(str(error))
    yield _system(suite, tmp_path_factory.mktemp("system") / suite.name)


def commands() -> list[str]:
    """The commands of README's first section, without their comments."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("## Two commands")[1].split("##")[0]
    return [line.split("#")[0].strip() for line in text.splitlines() if line.startswith("    ./kiln ")][:2]


def passed(said: str) -> int:
    """The number of tests that passed; fails if a test was skipped because something is not installed."""
    skipped = [line for line in said.splitlines() if line.startswith("SKIPPED") and "not installed" in line]
    assert not skipped
    (count,) = re.findall(r"^(\d+) passed", said, re.MULTILINE)
    return int(count)


def test_debian_12_as_a_user_without_sudo(bookworm: System) -> None:
    first, second = commands()
    bookworm.check(first, USER)
    done = bookworm.run(second, USER)
    line = done.stderr.splitlines()[-1]
    assert done.returncode == 2
    assert (
        line.startswith("kiln: error: the tests need ")
        and "; install with: as root: apt-get install " in line
    )
    # What the line says is enough, but for the sanitizers of a clang that was not there yet.
    bookworm.check(f"apt-get update -q && {line.partition('as root: ')[2]} -y -q")
    done = bookworm.run(f"{second} --version", USER)
    if done.returncode:
        bookworm.check(f"{done.stderr.splitlines()[-1].partition('as root: ')[2]} -y -q")
    assert passed(bookworm.check(f"{second} {ESSENTIALS}", USER)) > 100


def test_the_newest_ubuntu_as_root(ubuntu: System) -> None:
    _, second = commands()
    assert passed(ubuntu.check(f"{second} {ESSENTIALS}")) > 100


def test_a_processor_is_masked() -> None:
    cpu_info = "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_vnni avx_vnni amx_tile fma\n"
    assert plain_processor(cpu_info) == "processor\t: 0\nflags\t\t: fpu avx2 fma\n"
