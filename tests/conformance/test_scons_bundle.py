"""A real bundle: its files, programs that use it, and the same bytes for the same input."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from elftools.elf.elffile import ELFFile
from kiln.config import load_target
from kiln.device.bundle import open_bundle
from kiln.device.check.host_cpu import obstacle
from kiln.runtime import load
from kiln.trust.record import record
from scons_real import contents, copy_tree, scons, unpack

CONSUMER = Path(__file__).parent / "consumer"
DEVICE = Path(__file__).resolve().parents[2] / "build_tools/kiln/trust/device"
EXPECTED = {
    "include/resnet.h", "include/kiln.h", "include/kiln_image.h",
    "include/dlpack.h", "lib/libresnet.a", "lib/libresnet.so",
    "src/resnet_plan.c", "manifest.json", "golden/golden.json", "golden/tolerance.json", "report.html",
    "cmake/resnetConfig.cmake", "cmake/resnetConfigVersion.cmake", "pkgconfig/resnet.pc",
}  # fmt: skip


@pytest.fixture(scope="module")
def bundle(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle, unpacked from its archive into another folder: a bundle can be moved."""
    build_folder = tmp_path_factory.mktemp("elsewhere")
    unpack(built / "x86_64/resnet.tar.gz", build_folder)
    return build_folder / "resnet"


@pytest.mark.parametrize("target", ["x86_64", "aarch64"])
def test_manifest_and_archive_hold_what_the_folder_holds(built: Path, target: str, tmp_path: Path) -> None:
    files = contents(built / target / "resnet")
    assert set(files) >= EXPECTED
    manifest = json.loads(files.pop("manifest.json"))
    assert {entry["name"]: entry["sha256"] for entry in manifest["files"]} == {
        name: hashlib.sha256(content).hexdigest() for name, content in files.items()
    }
    assert manifest["target"]["name"] == target and manifest["buckets"][0]["arena_bytes"] > 0
    assert manifest["source_sha256"].startswith("3c002613d1b2475e")
    with tarfile.open(built / target / "resnet.tar.gz") as archive:
        assert {(entry.mtime, entry.uid, entry.gid, entry.uname) for entry in archive} == {(0, 0, 0, "")}
    unpack(built / target / "resnet.tar.gz", tmp_path)
    assert contents(tmp_path / "resnet") == contents(built / target / "resnet")


@pytest.mark.heavy  # in the gate, tests/unit/tir/test_abi.py compares kernels made twice
@pytest.mark.parametrize(
    ("targets", "empty"), [(["x86_64"], False), (["x86_64", "aarch64"], True)], ids=["kept", "empty"]
)
def test_two_builds_in_two_folders_are_the_same_bytes(
    built: Path, tmp_path: Path, targets: list[str], empty: bool
) -> None:
    """The second in a deeper folder and in parallel; `empty`: the compiler has no C libraries yet."""
    second_tree = copy_tree(tmp_path / "some where else" / "deeper")
    cache = str(tmp_path / "zig")
    more = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache} if empty else {}
    scons(second_tree, f"target={','.join(targets)}", "model=resnet", "-j2", "cache=none", **more)
    for target in targets:
        ours, theirs = contents(built / target), contents(second_tree / "build" / target)
        assert set(ours) == set(theirs)
        assert [name for name in ours if ours[name] != theirs[name]] == []


# In the gate `built` itself comes out of the cache that other tests fill, and tests/unit/scons/test_cache.py
# tells which stages run.
@pytest.mark.heavy
def test_a_build_out_of_the_cache_of_another_folder_is_the_same_bytes(built: Path, tmp_path: Path) -> None:
    second_tree = copy_tree(tmp_path / "elsewhere")
    printed = scons(second_tree, "target=x86_64,aarch64", "model=resnet")
    ran = [
        line for line in printed.splitlines() if line.startswith("kiln: ") and "from the cache" not in line
    ]
    assert sorted(ran) == [
        "kiln: YAML files of devices: device-schema",
        "kiln: YAML files of models and targets: schema",
        "kiln: resnet: fetch",
    ]
    for target in ("x86_64", "aarch64"):
        assert contents(second_tree / "build" / target) == contents(built / target)


def test_every_variant_that_this_cpu_has_reads_the_parameters_that_all_share(built: Path) -> None:
    bundle, target = open_bundle(built / "x86_64/resnet"), load_target("x86_64")
    names = [name for name in bundle.variants(target) if obstacle(target.for_variant(name)) is None]
    if not names:
        pytest.skip("this CPU has none of the variants of x86_64")
    for variant in names:
        network = load(bundle.folder, variant=variant)
        for vector in bundle.vectors():
            for outputs, want in zip([network(*vector.inputs)], vector.outputs, strict=True):
                assert abs(outputs.astype("i4") - want.astype("i4")).max() <= 1, (variant, vector.name)


def test_no_path_of_this_machine_is_in_a_bundle(built: Path) -> None:
    project = str(built.parent).encode()
    for target in ("x86_64", "aarch64"):
        files = contents(built / target / "resnet")
        assert [
            name for name, content in files.items() if project in content or b"/site-packages" in content
        ] == []


def test_the_shared_library_exports_the_model_and_the_runtime_only(built: Path) -> None:
    for target in ("x86_64", "aarch64"):
        library = built / target / "resnet/lib/libresnet.so"
        listed = subprocess.run(
            ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
        )
        names = {line.split()[2] for line in listed.stdout.splitlines()}
        assert {"resnet", "resnet_run", "kiln_open"} <= names
        assert [name for name in names if not name.startswith(("kiln_", "resnet"))] == []
        assert [name for name in names if "conv2d" in name] == []
        headers = "".join(path.read_text() for path in (built / target / "resnet/include").iterdir())
        assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", headers)] == []
        needed = subprocess.run(
            ["nm", "-D", "-u", library], capture_output=True, text=True, check=True
        ).stdout
        assert "dlopen" not in needed  # a library of its own before glibc 2.34
        assert dynamic_entries(library, "soname") == ["libresnet.so"]


def dynamic_entries(path: Path, name: str) -> list[str]:
    """The texts of the dynamic entries DT_NAME of an ELF file: `soname`, or `needed`."""
    with path.open("rb") as stream:
        entries = list(ELFFile(stream).get_section_by_name(".dynamic").iter_tags(f"DT_{name.upper()}"))
    return [getattr(entry, name) for entry in entries]


def expected(bundle: Path) -> tuple[Path, list[int]]:
    """A golden input, and the reference's outputs for it."""
    vector = json.loads((bundle / "golden/golden.json").read_text())["vectors"][-1]
    outputs = (bundle / "golden" / vector["outputs"][0]["file"]).read_bytes()
    return bundle / "golden" / vector["inputs"][0]["file"], [
        int.from_bytes([byte], "little", signed=True) for byte in outputs
    ]


def check(program: Path, bundle: Path, **environment: str) -> None:
    """The program's outputs are the reference's, up to one level. Skips where this CPU cannot run it."""
    reason = obstacle(load_target("x86_64"))
    if reason is not None:
        pytest.skip(f"x86_64: {reason}")
    given, want = expected(bundle)
    done = subprocess.run(
        [program, given], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    got = [int(line) for line in done.stdout.split()]
    assert len(got) == len(want) and max(abs(a - b) for a, b in zip(got, want, strict=True)) <= 1


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_cmake_finds_a_bundle(bundle: Path, tmp_path: Path) -> None:
    for command in (
        ["cmake", "-S", CONSUMER, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={bundle}"],
        ["cmake", "--build", tmp_path],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    for program in ("from_c", "from_cxx", "from_shared"):
        check(tmp_path / program, bundle)
    # By its SONAME: a program that needed it by the path at the link would not find it elsewhere.
    assert "libresnet.so" in dynamic_entries(tmp_path / "from_shared", "needed")


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="pkg-config is not installed")
@pytest.mark.parametrize(("compiler", "source"), [("gcc", "main.c"), ("g++", "main.cpp")])
def test_pkg_config_finds_a_bundle(bundle: Path, tmp_path: Path, compiler: str, source: str) -> None:
    command = ["pkg-config", "--cflags", "--libs", "resnet"]
    environment = {**os.environ, "PKG_CONFIG_PATH": str(bundle / "pkgconfig")}
    flags = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    at_least = ["pkg-config", "--exists", "resnet >= 0.1"]
    assert subprocess.run(at_least, env=environment).returncode == 0
    program = tmp_path / "program"
    done = subprocess.run(
        [compiler, "-Wall", "-Wextra", "-Wpedantic", "-Werror", CONSUMER / source, *flags, "-o", program],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check(program, bundle)


def test_a_signed_library_replaces_the_model_of_a_program(bundle: Path, tmp_path: Path) -> None:
    """Two slots, and power that fails at each stage of writing one: the other one runs then."""
    reason = obstacle(load_target("x86_64"))
    if reason is not None:
        pytest.skip(f"x86_64: {reason}")
    key = Ed25519PrivateKey.generate()
    verifier = [DEVICE / name for name in ("kiln_verify.c", "monocypher.c", "monocypher-ed25519.c")]
    program = tmp_path / "field_swap"
    done = subprocess.run(
        ["gcc", "-O1", f"-I{bundle / 'include'}", f"-I{DEVICE}", CONSUMER / "field_swap.c", *verifier,
         bundle / "lib/libresnet.a", "-pthread", "-lm", "-ldl", "-o", program],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    library = (bundle / "lib/libresnet.so").read_bytes()
    model = json.loads((bundle / "manifest.json").read_text())["model_hash"]
    public = key.public_key().public_bytes_raw().hex()

    def slot(name: str, content: bytes, signature: bytes) -> list[str]:
        paths = [tmp_path / f"{name}.so", tmp_path / f"{name}.sig"]
        for path, data in zip(paths, (content, signature), strict=True):
            path.write_bytes(data)
        return [str(path) for path in paths]

    def boot(*slots: str) -> list[str]:
        ran = subprocess.run([program, public, *slots], capture_output=True, text=True, timeout=60)
        assert ran.returncode in (0, 1), ran.stdout
        return ran.stdout.splitlines()

    third, fourth = (record(library, model, release, key) for release in (3, 4))
    old = slot("a", library, third)
    assert boot(*old) == ["release 3"]
    # The library is written before its record. The rest of an interrupted write is what was there before.
    refused = "KILN_LOAD_REFUSED"
    for cut in (0, 1, 4096, len(library) // 2, len(library) - 1):
        half = library[:cut] + b"\xff" * (len(library) - cut)
        for content in (half, library[:cut] or b"\0"):
            for signature in (b"", third[:90], third, fourth):
                lines = boot(*old, *slot("b", content, signature))
                assert lines[0].startswith(refused) and lines[1:] == ["release 3"]
    assert boot(*old, *slot("b", library, fourth[:-1])) == [f"{refused} 2", "release 3"]
    new = slot("b", library, fourth)
    assert boot(*old, *new) == ["release 4"]
    assert boot(*new, *old) == [f"{refused} 6", "release 4"]  # not an older one after it
    forged = record(library, model, 9, Ed25519PrivateKey.generate())
    assert boot(*slot("b", library, forged)) == [f"{refused} 3"]


@pytest.mark.heavy
def test_workers_build_the_same_bundle(built: Path, tmp_path: Path) -> None:
    """Each stage in a folder of its own, with files that came through a cache."""
    tree = copy_tree(tmp_path / "tree")
    printed = scons(tree, "target=x86_64", "model=resnet", "cluster=local:2", "cache=none")
    assert "kiln: cluster tcp://127.0.0.1:" in printed
    for name, content in contents(built / "x86_64/resnet").items():
        assert (tree / "build/x86_64/resnet" / name).read_bytes() == content, name
    assert (tree / "build/x86_64/resnet.tar.gz").read_bytes() == (built / "x86_64/resnet.tar.gz").read_bytes()
