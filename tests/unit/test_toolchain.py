"""The C compiler's cache, and work-arounds for faults of its versions."""

from __future__ import annotations

import re
import resource
import shutil
from pathlib import Path

import pytest
from kiln import toolchain
from kiln.config import load_target
from kiln.emit.object_symbols import symbols
from kiln.errors import KilnError
from kiln.interpreter import module_command


def test_objects_belong_to_the_folder_whose_headers_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """zig finds headers below -Iinclude, but its cache does not know that they are others elsewhere."""
    source = tmp_path / "shared.c"
    source.write_text('#include "name.h"\nconst char name[] = NAME;\n')
    for name in ("first", "other"):
        folder = tmp_path / name
        (folder / "include").mkdir(parents=True)
        (folder / "include" / "name.h").write_text(f'#define NAME "{name}"\n')
        monkeypatch.chdir(folder)
        command = toolchain.compiler_command(load_target("x86_64"))
        toolchain.run([*command, "-c", "-Iinclude", str(source), "-o", "shared.o"], "C")
        assert name.encode() in (folder / "shared.o").read_bytes()


def test_a_call_leaves_no_object_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects, which contain the weights of each linked bundle, do not stay in ~/.cache."""
    monkeypatch.setenv("KILN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.c").write_text("int here(void) { return 1; }\n")
    command = toolchain.compiler_command(load_target("x86_64"))
    toolchain.run([*command, "-c", str(tmp_path / "a.c"), "-o", str(tmp_path / "a.o")], "C")
    assert (tmp_path / "a.o").is_file()
    assert not list((tmp_path / "cache").rglob("*.o"))


@pytest.mark.parametrize("name", ['my "own" net', "back\\slash"])
def test_a_folder_that_zig_cannot_read_is_named(tmp_path: Path, name: str) -> None:
    """zig's own error is of a file in its cache; spaces and other characters are read."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "a.c").write_text("int here(void) { return 1; }\n")
    command = [*toolchain.compiler_command(load_target("cortex_m4")), "-c", str(folder / "a.c")]
    with pytest.raises(KilnError) as caught:
        toolchain.run([*command, "-o", str(tmp_path / "a.o")], "compiling a.c")
    end = f"failed: {folder}/a.c: zig reads no folder whose name has a double quote or a backslash: rename it"
    assert str(caught.value).endswith(end)


def linked(folder: Path, name: str, *flags: str, source: str) -> Path:
    """The file that `toolchain.link` makes for a target from the C text `source`, in `folder`."""
    (folder / "a.c").write_text(source)
    target, out = load_target(name), folder / "made"
    arguments = [*flags, str(folder / "a.c"), "-o", str(out)]
    toolchain.link(target, [*toolchain.oldest_cpu_command(target), *arguments], "linking")
    return out


@pytest.mark.parametrize("flags", [("-shared", "-fPIC"), ()], ids=["library", "program"])
def test_libraries_of_zig_are_made_only_where_code_calls_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    """Without this the first build on a machine takes ten seconds more."""
    monkeypatch.setenv("KILN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ZIG_GLOBAL_CACHE_DIR", raising=False)
    linked(tmp_path, "x86_64", *flags, source="int main(int n) { return 10 / n; }")
    names = {path.name for path in (tmp_path / "cache/zig").rglob("*.a")}
    assert [name for name in names if "rt" in name] == []


@pytest.mark.parametrize("flags", [("-shared", "-fPIC"), ()], ids=["library", "program"])
def test_a_function_of_the_compiler_is_linked(tmp_path: Path, flags: tuple[str, ...]) -> None:
    source = "unsigned __int128 a = 5; int main(int n) { return (int)(a / (unsigned)n); }"
    program = linked(tmp_path, "x86_64", "-O2", *flags, source=source)
    found = [symbol.defined for symbol in symbols(program.read_bytes()) if symbol.name == "__udivti3"]
    assert found == [True]


def test_zig_starts_without_a_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build calls it some twenty times, and a new interpreter takes as long as a small file."""
    (program,) = toolchain.zig_command()
    assert Path(program).name == "zig"
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda _: None)
    assert toolchain.zig_command.__wrapped__() == tuple(module_command("ziglang"))


def test_how_a_silent_program_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal has its name, and a full disk is told, for which zig is aborted without a word."""
    monkeypatch.chdir(tmp_path)
    for program, message in (("kill -ABRT $$", "killed by SIGABRT"), ("exit 3", "exit status 3")):
        with pytest.raises(KilnError, match=f"linking: 'sh -c {re.escape(program)} …' failed: {message}$"):
            toolchain.run(["sh", "-c", program], "linking")
    usage, build = shutil.disk_usage(tmp_path), tmp_path / "build"
    build.mkdir()
    free: dict[Path, int] = {}
    monkeypatch.setattr(
        shutil, "disk_usage", lambda folder: usage._replace(free=free.get(Path(folder), 1 << 30))
    )
    for full in (build, tmp_path):  # `build` may be a disk of its own
        free[full] = 4096
        with pytest.raises(KilnError) as raised:
            toolchain.run(["sh", "-c", "kill -ABRT $$"], "linking")
        assert str(raised.value).endswith(
            f"killed by SIGABRT: No space left on device? {full} has 4096 bytes left"
        )


def test_a_limit_of_the_shell_for_files_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """zig is aborted where a file that it has mapped cannot grow, after warnings that are no reason."""
    infinite = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (400 << 10, infinite))
    with pytest.raises(KilnError) as raised:
        toolchain.run(["sh", "-c", "echo zig: warning: unused >&2; kill -ABRT $$"], "linking")
    assert str(raised.value).endswith(
        "failed: killed by SIGABRT: this shell allows files of 400KiB (ulimit -f)"
    )
