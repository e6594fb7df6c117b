"""Images: a model at any address, refused images, and power failures while an image is exchanged."""

from __future__ import annotations

import json
import platform
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from kiln.config import Target, canonical_json, load_target, target_config
from kiln.config.images import check_images
from kiln.device import bare
from kiln.device.check.runners import runner_for
from kiln.device.link import PROGRAMS, link, link_flags
from kiln.emit import image as image_stage
from kiln.emit.compile import c_flags, compile_file
from kiln.emit.image_file import HEADER_BYTES, ImageHeader, image_bytes, read_header
from kiln.errors import KilnError
from kiln.paths import data_dir
from kiln.stages.target import ImageStage
from kiln.trust.image import sign_image, verify_image
from kiln.trust.keys import public_key_of

from .building import Project
from .tiny import KERNELS, W, assemble, base_target, plan_for

VERIFIER = Path(image_stage.__file__).resolve().parents[1] / "trust" / "device"
TARGETS = ["x86_64", "cortex_m4"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="a program in C runs on this machine"),
]
Change = Callable[[ImageHeader, bytes], tuple[ImageHeader, bytes]]


def made(
    folder: Path, target: Target, change: Callable[[dict[str, Any]], None] | None = None,
    kernels: str = KERNELS,
) -> Path:  # fmt: skip
    """The image of the model tiny, whose plan `change` alters first."""
    content = plan_for(target)
    if change is not None:
        change(content)
    assemble(folder, target, content, W.tobytes(), kernels)
    for name in ("plan", "kernels"):
        (folder / name).mkdir()
    (folder / "plan/plan.json").write_text(json.dumps(content))
    (folder / "plan/params.raw").write_bytes(W.tobytes())
    (folder / "target.json").write_text(canonical_json(target_config(target)))
    kernel = folder / "objects/tiny_kernels.c"
    compile_file([*c_flags(target), "-fPIC"], kernel, folder / "kernels/tiny_kernels.o")
    (folder / "objects/tiny.h").write_bytes((folder / "include/tiny.h").read_bytes())
    image_stage.run(
        ImageStage(
            target=folder / "target.json",
            plan=folder / "plan",
            source=folder / "objects",
            objects=folder / "kernels",
            out=folder / "tiny.img",
            facts=folder / "image.json",
        )
    )
    return folder / "tiny.img"


def renamed(plan: dict[str, Any]) -> None:
    plan["inputs"][0]["name"] = "z"


def build_program(folder: Path, target: Target, bundle: Path) -> Path:
    """image_swap.c for a target, with the library of the bundle."""
    include = [VERIFIER, bundle / "include", PROGRAMS]
    sources = [Path(__file__).with_name("image_swap.c"), VERIFIER / "kiln_verify.c"]
    sources += [VERIFIER / "monocypher.c", VERIFIER / "monocypher-ed25519.c"]
    threads = target.deployment != "freestanding"
    # As Bundle.link_program has them: for other flags zig makes its library of functions again.
    flags = ["-Os", "-g", *link_flags(target, "pthread" if threads else "none", entry=None)]
    if threads:
        sources.append(PROGRAMS / "image_place.c")
        flags.append("-DTHREADS")
    else:
        parts = bare.parts(target, folder)
        sources += [PROGRAMS / "bare/image_place.c", *parts.sources]
        include += parts.include
        flags += parts.flags
    library = bundle / "lib/libtiny.a"
    return link(target, sources, flags, folder / "image_swap", include=include, libraries=[library])


@pytest.fixture(scope="module", params=TARGETS)
def machine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Target, Path, Path, Path]:
    """A target, its program, and the folder with the key and the images of versions 1, 2 and 3."""
    target = base_target(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    image = made(folder / "tiny", target)
    key = Ed25519PrivateKey.generate()
    form, no = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, no))
    for version in (1, 2, 3):
        (folder / f"{version}.img").write_bytes(image.read_bytes())
        sign_image(folder / f"{version}.img", str(folder / "key.pem"), version)
    return target, build_program(folder / "program", target, folder / "tiny"), folder, image


def called(machine: tuple[Target, Path, Path, Path], *arguments: str, files: dict[str, Path]) -> list[str]:
    """Standard output of the program, in lines."""
    target, program, folder, _ = machine
    key = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    public = key.public_key().public_bytes_raw().hex()
    done = runner_for(target).run(program, [public, *arguments], send=files, fetch={}, timeout=120)
    assert done.status == 0, done.stderr or done.stdout
    return done.stdout.splitlines()


def rewritten(content: bytes, change: Change) -> bytes:
    """An image with a changed header or body, whose checksums are right again."""
    header = read_header(content, "image")
    header, body = change(header, content[HEADER_BYTES : header.bytes_count])
    return image_bytes(replace(header, crc=zlib.crc32(body)), body)


def resigned(folder: Path, content: bytes) -> bytes:
    """The image signed as version 2 by the right key."""
    path = folder / "again.img"
    path.write_bytes(content)
    sign_image(path, str(folder / "key.pem"), 2)
    return path.read_bytes()


def tampered(folder: Path, content: bytes) -> dict[str, tuple[int, bytes, str]]:
    """By name: the skew of the address, the image, and the beginning of the line that refuses it."""
    header = read_header(content, "image")
    size = header.bytes_count

    def flipped(at: int, to: int = 1) -> bytes:
        return content[:at] + bytes([content[at] ^ to]) + content[at + 1 :]

    def again(**fields: Any) -> bytes:
        return resigned(folder, rewritten(content, lambda h, b: (replace(h, **fields), b)))

    unsigned = rewritten(content, lambda h, b: (h, b))
    forged = rewritten(content, lambda h, b: (h, bytes([b[0] ^ 1]) + b[1:]))
    pointers = struct.pack("<I", header.tables_bytes)
    wild = header.relocations - HEADER_BYTES
    other = Ed25519PrivateKey.generate()
    form, no = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "other.pem").write_bytes(other.private_bytes(serialization.Encoding.PEM, form, no))
    foreign = folder / "foreign.img"
    foreign.write_bytes(content)
    sign_image(foreign, str(folder / "other.pem"), 2)
    return {
        "good": (0, content, "KILN_OK"),
        "elsewhere": (header.align, content, "KILN_OK"),
        "skewed": (16, content, "KILN_IMAGE_ALIGNMENT image: address is 16 bytes past a multiple"),
        "short": (0, content[:-1], f"KILN_IMAGE_TRUNCATED image: {len(content)} bytes needed"),
        "head": (0, content[:100], "KILN_IMAGE_TRUNCATED image: 256 bytes needed, 100 given"),
        "other file": (0, b"#!/bin/sh\n" * 100, "KILN_IMAGE_NOT_IMAGE"),
        "format": (0, flipped(8, 2), "KILN_IMAGE_FORMAT image: format version 3, allowed 1"),
        "flipped header": (0, flipped(32), "KILN_IMAGE_CORRUPT"),
        "flipped code": (0, flipped(HEADER_BYTES + 5), "KILN_IMAGE_CORRUPT"),
        "flipped pointer": (0, flipped(size - 1), "KILN_IMAGE_CORRUPT"),
        "abi": (0, again(abi=12), "KILN_WRONG_ABI image: model of runtime interface 12"),
        "machine": (0, again(machine=21), "KILN_IMAGE_MACHINE image: for machine 21"),
        "features": (0, again(cpu_features=1 << 63), "KILN_CPU image: lacks"),
        "old": (0, rewritten(content, lambda h, b: (replace(h, version=0), b)), "KILN_IMAGE_OLD"),
        "unsigned": (0, unsigned, "KILN_LOAD_REFUSED image: refused by the program's check (2)"),
        "other key": (0, foreign.read_bytes(), "KILN_LOAD_REFUSED image: refused by the program's check (3)"),
        "forged": (0, forged[:size] + content[size:], "KILN_LOAD_REFUSED image: refused by the"),
        "wild pointer": (
            0,
            resigned(folder, rewritten(content, lambda h, b: (h, b[:wild] + pointers + b[wild + 4 :]))),
            "KILN_IMAGE_CORRUPT",
        ),
    }  # fmt: skip


def test_what_is_refused(machine: tuple[Target, Path, Path, Path], tmp_path: Path) -> None:
    """Each cause has one status; on a microcontroller some of them suffice."""
    target, _, folder, _ = machine
    cases = tampered(folder, (folder / "2.img").read_bytes())
    if target.deployment == "freestanding":
        cases = {name: cases[name] for name in ("good", "skewed", "flipped code", "features", "other key")}
    else:
        renamed_model = made(tmp_path / "other", target, renamed)
        interface = "KILN_OTHER_NAME x: missing at this place"
        cases["interface"] = (0, resigned(folder, renamed_model.read_bytes()), interface)
    words, files = [], {}
    for number, (skew, content, _) in enumerate(cases.values()):
        name = f"{number}.img"
        (tmp_path / name).write_bytes(content)
        files[name] = tmp_path / name
        words += [str(skew), name]
    lines = called(machine, "open", *words, files=files)
    wanted = {name: expected for name, (_, _, expected) in cases.items()}
    line_of_case = dict(zip(cases, lines, strict=True))
    assert {n: line_of_case[n][: len(wanted[n])] for n in wanted} == wanted


def test_power_fails_while_a_model_is_exchanged(machine: tuple[Target, Path, Path, Path]) -> None:
    """After every word that this machine writes; every 509 bytes on the microcontroller."""
    target, _, folder, _ = machine
    step = "509" if target.deployment == "freestanding" else "4"
    files = {f"{version}.img": folder / f"{version}.img" for version in (1, 2, 3)}
    assert called(machine, "swap", step, *files, files=files) == ["1 1"]


def test_a_model_is_exchanged_while_another_runs(machine: tuple[Target, Path, Path, Path]) -> None:
    target, _, folder, _ = machine
    if target.deployment == "freestanding":
        pytest.skip("one thread")
    files = {f"{version}.img": folder / f"{version}.img" for version in (1, 2)}
    assert called(machine, "load", *files, files=files) == ["40 20000 20000"]


def test_signing_and_verifying(machine: tuple[Target, Path, Path, Path], tmp_path: Path) -> None:
    _, _, folder, image = machine
    public = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), None).public_key()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "key.pub").write_bytes(public.public_bytes(serialization.Encoding.PEM, form))
    key = public_key_of(str(tmp_path / "key.pub"))
    verified = verify_image(folder / "2.img", [key], 2)
    assert (verified.model, verified.release) == ("tiny", 2)
    copy = tmp_path / "copy.img"
    content = (folder / "2.img").read_bytes()
    for changed, least, text in (
        (image.read_bytes(), 0, "not signed"),
        (content, 3, "version 2, at least 3 is required"),
        (content[:300] + b"\xff" + content[301:], 0, "damaged"),
        (content[:-1], 0, "bytes, "),
        (content[:-1] + bytes([content[-1] ^ 1]), 0, "the signature is wrong"),
        (rewritten(content, lambda h, b: (h, b[:-1] + b"\1"))[:-176] + content[-176:], 0, "changed since it"),
        (b"KILNPAR1" + content[8:], 0, "not an image"),
    ):
        copy.write_bytes(changed)
        with pytest.raises(KilnError, match=text):
            verify_image(copy, [key], least)
    copy.write_bytes((folder / "2.img").read_bytes())
    with pytest.raises(KilnError, match=r"release 1: .* was signed as release 2"):
        sign_image(copy, str(folder / "key.pem"), 1)
    assert copy.read_bytes() == (folder / "2.img").read_bytes()
    with pytest.raises(KilnError, match="cannot read"):
        sign_image(tmp_path / "absent.img", str(folder / "key.pem"), 1)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("cuda_sm90", "code of a GPU cannot be part of an image; a running program loads lib<model>.so"),
        ("windows_x86_64", "has coff objects, elf expected: for this system a new model is a new bundle"),
    ],
)
def test_targets_without_images_are_refused(target: str, message: str) -> None:
    with pytest.raises(KilnError, match=f"image: target '{target}'.* {message}"):
        check_images(load_target(target))


def test_external_libraries_are_refused(tmp_path: Path) -> None:
    """Code of a library has addresses and variables of its own."""
    external = {"backend": "openblas", "key": "0", "source": "void tiny_scale(void);", "opens": None}

    def other(plan: dict[str, Any]) -> None:
        plan["kernels"][0]["external"] = external

    with pytest.raises(KilnError, match=r"image: code of the library openblas .*byoc=none"):
        made(tmp_path, base_target("x86_64"), other)


@pytest.mark.heavy
def test_code_that_cannot_move_is_refused(tmp_path: Path) -> None:
    """Variables, and constants that code finds by a fixed address."""
    target = base_target("x86_64")
    variable = "static int calls;\n" + KERNELS.replace(
        "    for (int i = 0; i < 6; i++)\n        workspace",
        "    calls++;\n    for (int i = 0; i < 6; i++)\n        workspace",
        1,
    )
    with pytest.raises(KilnError, match=r"section \.bss"):
        made(tmp_path / "variable", target, kernels=variable)
    table = "static const float *const which[] = {0, 0};\n#define USED which[*(volatile int *)workspace]\n"
    table += KERNELS.replace("workspace[i] = t[i] + 1.0f", "workspace[i] = t[i] + (USED == t)", 1)
    table = table.replace("{0, 0}", "{(const float *)(const void *)&tiny_scale, 0}").replace(
        "static const float",
        "void tiny_scale(const float *, const float *, float *, int, int);\nstatic const float",
    )
    with pytest.raises(KilnError, match=r"refers to .* by a fixed address"):
        made(tmp_path / "table", target, kernels=table)


@pytest.mark.heavy
@pytest.mark.parametrize(("target", "model"), [("cortex_m4", "resnet"), ("riscv32_imafc", "resnet")])
def test_a_real_model(tmp_path: Path, target: str, model: str) -> None:
    project = Project(tmp_path)
    done = project.scons(f"target={target}", f"model={data_dir('models') / model}.yaml", "image", "test")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("205 of 205 checks") == 3
    assert "in a copy in RAM" in done.stdout
