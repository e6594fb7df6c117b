"""Bundles for Android: files as its linker takes them, and runs here with glibc in place of bionic."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from c_programs import CORE, TESTS, Builder
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from kiln.config import load_target
from kiln.device.check.runners import runner_for
from kiln.device.link import link, link_flags
from kiln.emit.sysroot import program_flags
from kiln.errors import KilnError
from kiln.paths import data_dir
from kiln.toolchain import compiler_command

from .building import Project, write_small_network

pytestmark = pytest.mark.heavy
PAGE = 16384
ANDROID = data_dir("runtime_c") / "android"
NAMES = {
    f"{library}.so": set(
        re.findall(r"^(?:FUNCTION|VARIABLE)\((\w+)\)$", (ANDROID / f"{library}.c").read_text(), re.M)
    )
    for library in ("libc", "libm")
}
POLICIES = ("threads_pthread", "platform_posix", "crc_sliced")


@pytest.fixture(scope="module", params=["android_arm64", "android_x86_64"])
def target(request: pytest.FixtureRequest) -> str:
    """The name of a target for Android."""
    return str(request.param)


@pytest.fixture(scope="module")
def project(target: str, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a bundle of a small network, whose golden vectors passed."""
    project_of_target = Project(tmp_path_factory.mktemp(target))
    write_small_network(project_of_target.folder / "net.onnx")
    printed = project_of_target.make(f"target={target}", "model=net.onnx", "test")
    assert "glibc in place of bionic" in printed and "FAILED" not in printed
    return project_of_target


def _checked(path: Path) -> dict[str, list[str]]:
    """Check a program or library for Android's linker; its entries in the dynamic section that are text."""
    with path.open("rb") as stream:
        elf: Any = ELFFile(stream)
        loads = [one for one in elf.iter_segments() if one["p_type"] == "PT_LOAD"]
        assert loads and all(one["p_align"] == PAGE for one in loads)
        for one in loads:
            assert one["p_offset"] % PAGE == one["p_vaddr"] % PAGE
            assert not (one["p_flags"] & 1 and one["p_flags"] & 2), "writable code"
        pages = [
            range(one["p_vaddr"] // PAGE, (one["p_vaddr"] + one["p_memsz"] - 1) // PAGE + 1) for one in loads
        ]
        assert all(a.stop <= b.start for a, b in itertools.pairwise(pages)), "a page of two segments"
        dynamic = elf.get_section_by_name(".dynamic")
        tags = [tag.entry.d_tag for tag in dynamic.iter_tags()]
        assert "DT_TEXTREL" not in tags and "DT_RELR" not in tags and "DT_GNU_HASH" in tags
        assert not [s for s in elf.iter_sections() if isinstance(s, GNUVerNeedSection)], "versions of names"
        assert not [one for one in elf.iter_segments() if one["p_type"] == "PT_TLS"]
        needed = [tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"]
        allowed = set().union(*(NAMES[name] for name in needed if name in NAMES))
        undefined = {
            one.name
            for one in elf.get_section_by_name(".dynsym").iter_symbols()
            if one["st_shndx"] == "SHN_UNDEF" and one.name
        }
        interpreter = [s.get_interp_name() for s in elf.iter_segments() if s["p_type"] == "PT_INTERP"]
        sonames = [tag.soname for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_SONAME"]
        return {
            "needed": needed, "foreign": sorted(undefined - allowed), "interpreter": interpreter,
            "soname": sonames,
        }  # fmt: skip


def test_the_library_is_as_the_linker_takes_it(project: Project, target: str) -> None:
    facts = _checked(project.bundle(target, "net").shared_library)
    assert set(facts["needed"]) <= {"libc.so", "libm.so"} and facts["soname"] == ["libnet.so"]
    assert facts["foreign"] == [] and facts["interpreter"] == []


def test_a_program_with_the_shared_library(project: Project, target: str, tmp_path: Path) -> None:
    """The program that a device gets needs the library next to it, and no other functions of its own."""
    bundle, chosen = project.bundle(target, "net"), load_target(target)
    program = bundle.link_program(chosen, tmp_path, "time_runs", shared=True)
    facts = _checked(program)
    assert facts["interpreter"] == ["/system/bin/linker64"] and "libnet.so" in facts["needed"]
    exported = {"net", *(name for name in facts["foreign"] if name.startswith(("net_", "kiln_")))}
    assert set(facts["foreign"]) <= exported


def test_threads_and_files(target: str, tmp_path: Path) -> None:
    """The runtime's own tests of its policy files, compiled with the project's declarations."""
    chosen = load_target(target)
    builder = Builder(compiler_command(chosen), ("-O2", "-fPIC"), tmp_path / "objects")
    cpu = chosen.system.processors[chosen.arch].removesuffix(".c")
    for name in ("threads_pthread", "platform_posix"):
        test = TESTS[name]
        names = (*CORE, "test_model", *POLICIES, cpu, test.main)
        program = link(
            chosen,
            [],
            link_flags(chosen, "pthread"),
            tmp_path / name,
            libraries=[builder.object(one) for one in names],
        )
        done = runner_for(chosen).run(program, test.arguments, send={}, fetch={}, timeout=300)
        assert done.status == 0 and ", 0 failures" in done.stdout, done.stdout + done.stderr


def test_a_name_that_android_lacks_is_an_error_of_the_linker(target: str, tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text("int memfd_create(int);\nint main(void) { return memfd_create(0); }\n")
    chosen = load_target(target)
    assert program_flags(chosen)
    with pytest.raises(KilnError, match="memfd_create"):
        link(chosen, [tmp_path / "main.c"], link_flags(chosen, "none"), tmp_path / "lacks")
