"""Files by which a user's own build finds a bundle: versions that find_package may ask for."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from kiln import __version__
from kiln.config.systems import Format
from kiln.emit import consumers

ASKED = """
foreach(asked 0 0.1 0.1.0 0.2 1.0)
    set(PACKAGE_FIND_VERSION ${asked})
    string(REGEX MATCH "^[0-9]+" PACKAGE_FIND_VERSION_MAJOR ${asked})
    include(cmake/netConfigVersion.cmake)
    message("${asked} ${PACKAGE_VERSION_COMPATIBLE} ${PACKAGE_VERSION_EXACT}")
endforeach()
set(PACKAGE_FIND_VERSION_RANGE TRUE)
set(PACKAGE_FIND_VERSION_MIN 0.0.5)
foreach(most "0.1.0;INCLUDE" "0.1.0;EXCLUDE" "0.9;EXCLUDE" "0.0.9;INCLUDE")
    list(GET most 0 PACKAGE_FIND_VERSION_MAX)
    list(GET most 1 PACKAGE_FIND_VERSION_RANGE_MAX)
    include(cmake/netConfigVersion.cmake)
    message("...${PACKAGE_FIND_VERSION_MAX} ${PACKAGE_FIND_VERSION_RANGE_MAX} ${PACKAGE_VERSION_COMPATIBLE}")
endforeach()
message("version ${PACKAGE_VERSION}")
"""


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_versions_that_cmake_may_ask_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "__version__", "0.1.0")
    consumers.write(tmp_path, "net", "x86_64", "", "none")
    (tmp_path / "asked.cmake").write_text(ASKED)
    done = subprocess.run(["cmake", "-P", "asked.cmake"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "0 TRUE FALSE", "0.1 TRUE TRUE", "0.1.0 TRUE TRUE", "0.2 FALSE FALSE", "1.0 FALSE FALSE",
        "...0.1.0 INCLUDE TRUE", "...0.1.0 EXCLUDE FALSE", "...0.9 EXCLUDE TRUE", "...0.0.9 INCLUDE FALSE",
        "version 0.1.0",
    ]  # fmt: skip


def test_pkg_config_names_the_version(tmp_path: Path) -> None:
    consumers.write(tmp_path, "net", "x86_64", "", "none")
    assert f"Version: {__version__}\n" in (tmp_path / "pkgconfig/net.pc").read_text()


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="pkg-config is not installed")
@pytest.mark.parametrize("file_format", ["elf", "macho"])
def test_pkg_config_in_a_folder_with_spaces(tmp_path: Path, file_format: Format) -> None:
    """Linkers of Apple do not know -l:FILE; for others a shell reads every flag as one word."""
    folder = tmp_path / "a b"
    folder.mkdir()
    consumers.write(folder, "net", "x86_64", "", "pthread", file_format)
    shown = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "net"],
        env={**os.environ, "PKG_CONFIG_PATH": str(folder / "pkgconfig")},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert ("-l:" in shown) == (file_format == "elf")
    if file_format == "elf":
        include, place, library, threads = shlex.split(shown)
        assert (library, threads) == ("-l:libnet.a", "-pthread")
        for flag, named in ((include, "include"), (place, "lib")):
            assert Path(flag[2:]).parts[-3:] == ("pkgconfig", "..", named) and "a b" in flag


LISTED = """
cmake_minimum_required(VERSION 3.16)
project(listed NONE)
find_package(net CONFIG REQUIRED)
foreach(property TYPE IMPORTED_LOCATION IMPORTED_IMPLIB)
    get_target_property(value net::shared ${property})
    message("${value}")
endforeach()
"""


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
@pytest.mark.parametrize(
    ("file", "imports"), [("libnet.so", ""), ("libnet.dylib", ""), ("net.dll", "net.lib")]
)
def test_cmake_finds_the_shared_library(tmp_path: Path, file: str, imports: str) -> None:
    """A DLL is linked by its import library."""
    bundle = tmp_path / "net"
    (bundle / "lib").mkdir(parents=True)
    (bundle / "lib" / file).touch()
    consumers.write(bundle, "net", "board", "", "none", "coff" if imports else "elf")
    (tmp_path / "CMakeLists.txt").write_text(LISTED)
    command = ["cmake", "-S", tmp_path, "-B", tmp_path / "out", f"-DCMAKE_PREFIX_PATH={bundle}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    library = f"{bundle}/lib/{imports}" if imports else "value-NOTFOUND"
    assert done.stderr.splitlines() == ["SHARED_LIBRARY", f"{bundle}/lib/{file}", library]
