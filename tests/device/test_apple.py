"""Bundles for macOS and iOS, which no machine here can run: their files, read as Apple's tools read them."""

from __future__ import annotations

import plistlib
import re
import struct
import zipfile
from pathlib import Path

import pytest
from kiln.config import load_target
from kiln.config.cpu_features import BITS
from kiln.device.bundle import Bundle
from kiln.device.packages import xcframework
from kiln.emit.archive_members import members
from kiln.emit.macho import BUILD_VERSION, IOS, IOS_SIMULATOR, MACOS, MAGIC, commands
from kiln.emit.object_symbols import symbols
from kiln.errors import KilnError
from kiln.files import read_json
from kiln.paths import data_dir
from kiln.toolchain import compiler_command
from kiln.toolchain import run as run_tool

from .building import Project, write_small_network

SIGNATURE, LIBRARY_ID, LIBRARY = 0x1D, 0x0D, 0x0C  # load commands
# All that a bundle needs of libSystem; bzero is what clang makes of memset to 0.
LIBSYSTEM = {
    "__error", "bzero", "clock_gettime", "close", "fstat", "getpid", "memcpy", "memset", "mmap", "munmap",
    "open", "pthread_cond_broadcast", "pthread_cond_destroy", "pthread_cond_init",
    "pthread_cond_wait", "pthread_create", "pthread_join", "pthread_mutex_destroy",
    "pthread_mutex_init", "pthread_mutex_lock", "pthread_mutex_unlock", "read", "sched_yield",
    "strlen", "sysconf", "sysctlbyname",
    "__bzero", "fstat$INODE64",  # the names on x86-64
}  # fmt: skip
PLATFORMS = {
    "macos_arm64": (MACOS, 12),
    "macos_x86_64": (MACOS, 12),
    "ios_arm64": (IOS, 15),
    "ios_simulator_arm64": (IOS_SIMULATOR, 15),
}


def _built_for(content: bytes) -> list[tuple[int, int]]:
    """Platform and least version of each LC_BUILD_VERSION."""
    versions = [at for kind, at in commands(content) if kind == BUILD_VERSION]
    return [
        (platform, version >> 16)
        for platform, version in (struct.unpack_from("<II", content, at + 8) for at in versions)
    ]


def _checked(library: Path, target: str) -> None:
    """Every object of a static library is for the platform, and all that it needs exists there."""
    archive, defined, needed = library.read_bytes(), set[str](), set[str]()
    assert archive[8:11] == b"#1/"  # BSD's form, which Apple's linker takes
    for name, begin, size in members(archive):
        content = archive[begin : begin + size]
        assert content.startswith(MAGIC) and begin % 8 == 0, name
        # An object of data alone, from assembly, may say nothing.
        assert _built_for(content) == [PLATFORMS[target]] or name.endswith("_params.o"), name
        for symbol in symbols(content):
            (defined if symbol.defined else needed).add(symbol.name)
    assert {"net", "net_run", "kiln_open"} <= defined
    assert needed - defined <= LIBSYSTEM


@pytest.mark.parametrize("target", ["macos_arm64", pytest.param("macos_x86_64", marks=pytest.mark.heavy)])
@pytest.mark.heavy
def test_macos(target: str, tmp_path: Path) -> None:
    project = Project(tmp_path)
    write_small_network(tmp_path / "net.onnx")
    project.make(f"target={target}", "model=net.onnx")
    folder = project.build / target / "net"
    _checked(folder / "lib/libnet.a", target)
    content = (folder / "lib/libnet.dylib").read_bytes()
    assert _built_for(content) == [PLATFORMS[target]]
    command_offsets = dict(commands(content))
    assert (SIGNATURE in command_offsets) is (target == "macos_arm64")  # Intel's Macs ask for none
    assert b"@rpath/libnet.dylib\0" in content[command_offsets[LIBRARY_ID] :]
    assert b"/usr/lib/libSystem.B.dylib\0" in content[command_offsets[LIBRARY] :]
    exported = {one.name for one in symbols(content) if one.defined}
    assert {"net", "net_run", "kiln_open"} <= exported
    assert not [name for name in exported if name.startswith("kilnk_")]
    sizes = read_json(folder / "manifest.json")["linked"]["sections"]
    assert sizes["text"] > 2000 and sizes["rodata"] > 500 and sizes["bss"] > 0
    linked = read_json(folder / "manifest.json")["linked"]
    assert all(kernel["bytes"] > 0 for kernel in linked["kernels"]) and linked["code"]["runtime"] > 1000
    assert sum(kernel["bytes"] for kernel in linked["kernels"]) <= linked["code"]["kernels"] <= sizes["text"]

    done = project.scons(f"target={target}", "model=net.onnx", "test")
    assert done.returncode == 2 and done.stderr == (
        f"kiln: error: target '{target}' cannot run here: its programs are for macOS, and this machine "
        "runs Linux; they are built and linked, not run\n"
    )


@pytest.mark.heavy
@pytest.mark.parametrize("storage", ["embedded", "file"])
def test_a_swift_package(storage: str, tmp_path: Path) -> None:
    project = Project(tmp_path, variants=True)
    write_small_network(tmp_path / "net.onnx")
    (tmp_path / "models/net.yaml").write_text(
        f"source: {{kind: file, path: {tmp_path / 'net.onnx'}}}\nformat: onnx\n"
        f"params: {{storage: {storage}}}\n"
    )
    names = [name for name in PLATFORMS if name != "macos_x86_64"]  # a package has one macOS
    project.make(f"target={','.join(names)}", "model=net", "package")
    archives = [project.build / name / "net.xcframework.zip" for name in names]
    assert len({path.read_bytes() for path in archives}) == 1
    with zipfile.ZipFile(archives[0]) as archive:
        archive.extractall(tmp_path / "package")
    folder = tmp_path / "package/Kiln_net"
    framework = folder / "CKiln_net.xcframework"
    about = plistlib.loads((framework / "Info.plist").read_bytes())
    assert about["CFBundlePackageType"] == "XFWK" and len(about["AvailableLibraries"]) == 3
    for entry in about["AvailableLibraries"]:
        slice_folder = framework / entry["LibraryIdentifier"]
        simulator = entry.get("SupportedPlatformVariant") == "simulator"
        name = {"macos": "macos_arm64"}.get(
            entry["SupportedPlatform"], "ios_simulator_arm64" if simulator else "ios_arm64"
        )
        _checked(slice_folder / entry["LibraryPath"], name)
        headers = slice_folder / entry["HeadersPath"]
        (tmp_path / "use.c").write_text(
            "@import CKiln_net;\nsize_t f(void) { return net_input_bytes(0) + net_output_bytes(0) + "
            "net_arena_bytes() + net_state_bytes() + net_model()->inputs_count; }\n"
        )
        flags = ["-x", "objective-c", "-fmodules", "-std=c11", "-Wall", "-Werror", f"-I{headers}"]
        modules = [f"-fmodules-cache-path={tmp_path / name}"]
        command = [*compiler_command(load_target(name)), *flags, *modules]
        words = ["-c", str(tmp_path / "use.c"), "-o", str(tmp_path / f"{name}.o")]
        run_tool([*command, *words], f"the module on {name}")
        assert (folder / "params" / entry["LibraryIdentifier"] / "params.bin").is_file() == (
            storage == "file"
        )
    swift = (folder / "Sources/Kiln_net/Kiln_net.swift").read_text()
    assert 'Tensor(net_model().pointee.inputs + 0, "x", dims: [1, 3, 11, 13]' in swift
    assert swift.count("{") == swift.count("}") and swift.count("(") == swift.count(")")
    manifest = (folder / "Package.swift").read_text()
    assert 'path: "CKiln_net.xcframework"' in manifest


def test_two_targets_of_one_platform(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    for name in ("include", "lib"):
        (folder / name).mkdir(parents=True)
    (folder / "lib/libnet.a").write_bytes(b"!<arch>\n")
    (folder / "manifest.json").write_text('{"name": "m", "inputs": [], "outputs": []}')
    target = load_target("ios_arm64")
    second_target = target.model_copy(update={"name": "ios_other"})
    with pytest.raises(KilnError, match="targets 'ios_arm64' and 'ios_other' are both for iOS"):
        xcframework.make(
            [(Bundle(folder, "net"), target), (Bundle(folder, "net"), second_target)], tmp_path / "x"
        )


def test_features_of_processors_have_the_same_order() -> None:
    text = (data_dir("runtime_c") / "platform/cpu_arm_darwin.c").read_text(encoding="utf-8")
    assert (
        tuple(re.findall(r'^\s+\{"([a-z0-9-]+)", (?:"\w*"|NULL)\},$', text, re.MULTILINE)) == BITS["aarch64"]
    )


@pytest.mark.parametrize("target", ["macos_arm64", "windows_x86_64"])
def test_parameters_in_a_section_of_their_own(target: str, tmp_path: Path) -> None:
    project = Project(tmp_path)
    write_small_network(tmp_path / "net.onnx")
    (tmp_path / "models/net.yaml").write_text(
        f"source: {{kind: file, path: {tmp_path / 'net.onnx'}}}\nformat: onnx\nparams: {{storage: section}}\n"
    )
    done = project.scons(f"target={target}", "model=net")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"params.storage: 'section' on target '{target}'" in done.stderr
