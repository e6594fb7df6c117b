"""Packages of a bundle for firmware projects: Zephyr, CMSIS-Pack, Arduino, ESP-IDF and PlatformIO.

Each is a zip archive of the templates in firmware_files/<kind>, a README, the headers, the static library,
the licence of the model, and an example that runs the model once. The library is compiled for one core; where
the format has a way to require that core and its FPU, the package requires them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from kiln import templates
from kiln.config import Target
from kiln.config.sizes import ceil_div
from kiln.device.bundle import Bundle
from kiln.device.packages import version
from kiln.device.packages.archive import zip_archive
from kiln.emit.joint_example import example_lines
from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.manifest import read_manifest

_TEMPLATES = Path(__file__).resolve().parent / "firmware_files"
# Cores whose FPU computes float32 alone, as boards.txt of Arduino's cores call it (build.fpu).
_SINGLE = {"cortex-m4": "fpv4-sp-d16", "cortex-m33": "fpv5-sp-d16", "cortex-m35p": "fpv5-sp-d16"}
# Cores that run the same code, by the architecture in a triple.
_ALIKE = {"thumbv6m": ("cortex-m0", "cortex-m0plus", "cortex-m1")}
# Names of ESP-IDF for chips, by the letters of the instruction set that a target is compiled for.
_ESPRESSIF = {"imac": ["esp32c5", "esp32c6", "esp32c61", "esp32h2"], "imafc": ["esp32p4"]}

_MOST_CSUB, _MOST_ARDUINO = 32, 63  # characters: of Csub in PACK.xsd, of a library's name in Arduino's schema


def make(kind: str, bundle: Bundle, target: Target, out: Path, models: Sequence[Bundle] = ()) -> None:
    """Write a package of a bundle to `out`; of a joint library, `models` are the bundles of its models.

    Raises KilnError if the bundle's parameters are not linked into its library.
    """
    if bundle.params.is_file():
        raise KilnError(
            f"option 'package': the parameters of {bundle.name} are in a file of their own, for which a "
            f"{kind} package has no place; build with embedded ones (params.storage of the "
            "model, params_storage of the target)"
        )
    facts = _facts(bundle, target, models or [bundle])
    files = _rendered(kind, facts)
    files["README.md"] = _readme(kind, facts, files)
    files |= {f"{_KINDS[kind].headers}{p.name}": p.read_bytes() for p in sorted(bundle.include.glob("*.h"))}
    files[f"{_library_folder(kind, target)}{bundle.library.name}"] = bundle.library.read_bytes()
    licences = "".join(
        f"Model {model_bundle.name}: {_licence(model_bundle)}\n" for model_bundle in models or [bundle]
    )
    files["LICENSE.txt"] = licences.encode()
    atomic_write(out, zip_archive(files, f"kiln_{bundle.name}/" if _KINDS[kind].in_folder else ""))


def check(kind: str, target: Target) -> None:
    """Raise KilnError if there is no package of this kind for the target."""
    if not _KINDS[kind].exists(target):
        raise KilnError(
            f"option 'package': '{kind}' is for {_KINDS[kind].where}; target '{target.name}' is for "
            f"{target.cpu}, {target.triple}"
        )


def _rendered(kind: str, facts: Mapping[str, Any]) -> dict[str, bytes]:
    """The templates of a kind, by path in the package; NAME in a path is the model's name."""
    environment = templates.environment(_TEMPLATES / kind)
    return {
        name.removesuffix(".j2").replace("NAME", facts["name"]): environment.get_template(name)
        .render(facts)
        .encode()
        for name in environment.list_templates()
    }


def _readme(kind: str, facts: Mapping[str, Any], files: Iterable[str]) -> bytes:
    """README.md of a package whose example is among `files`: how to add it, and how to call the model."""
    environment = templates.environment(_TEMPLATES)
    environment.filters["dirname"] = lambda path: str(PurePosixPath(path).parent)
    more = {
        "kind": kind,
        "header_file": f"{_KINDS[kind].headers}{facts['name']}.h",
        "example_file": next(name for name in files if name.endswith(("main.c", ".ino"))),
    }
    return environment.get_template("README.md.j2").render(facts, **more).encode()


def _licence(bundle: Bundle) -> str:
    """The licence of a bundle's model on one line."""
    return _line(read_manifest(bundle.folder).get("licence") or "not stated")


def spdx(text: str) -> str | None:
    """The SPDX expression that a licence's text is or begins with; None where it is none.

    PlatformIO's registry accepts no other text as a licence.
    """
    for candidate in (text, re.split(r" \(|,", text)[0]):
        try:
            return canonicalize_license_expression(candidate)
        except InvalidLicenseExpression:
            continue
    return None


def _facts(bundle: Bundle, target: Target, models: Sequence[Bundle]) -> dict[str, Any]:
    """Values for the templates; `models`: the bundles of the library's models."""
    manifests = {model_bundle.name: read_manifest(model_bundle.folder) for model_bundle in models}
    texts = [manifest.get("description") or f"The model {name}" for name, manifest in manifests.items()]
    licences = [_licence(model_bundle) for model_bundle in models]
    expressions = [spdx(licence) for licence in licences]
    # A joint library has a page if all of its models have the same.
    homepages = {manifest.get("homepage") for manifest in manifests.values()}
    header = (bundle.include / f"{bundle.name}.h").read_text(encoding="utf-8")
    example = example_of(header)
    stack = max((manifest.get("linked") or {}).get("stack_bytes") or 0 for manifest in manifests.values())
    return {
        "name": bundle.name,
        "csub": shortened(bundle.name, _MOST_CSUB),
        "arduino_name": shortened(f"Kiln_{bundle.name}", _MOST_ARDUINO),
        "version": version(),
        "description": _line("; ".join(texts)),
        "licence": "; ".join(dict.fromkeys(licences)),
        "spdx": None if None in expressions else " AND ".join(dict.fromkeys(filter(None, expressions))),
        "homepage": next(iter(homepages)) if len(homepages) == 1 else None,
        # The depth below the run function, twice, and as much for the rest of the program.
        "stack_bytes": max(4096, 2 * ceil_div(stack, 1024) * 1024 + 2048),
        "example": example,
        "example_cpp": re.sub(r"static _Alignas\(([^)]*)\)", r"alignas(\1) static", example),
        **facts_of_target(target),
    }


def facts_of_target(target: Target) -> dict[str, Any]:
    """Values for the templates that depend on the target alone."""
    return {
        "cpu": target.cpu,
        "hard_float": _hard_float(target),
        "zephyr_arch": {"arm_m": "arm"}.get(target.arch, "riscv"),
        "zephyr_needs": _zephyr_needs(target),
        "cores": list(_cores(target)) if target.arch == "arm_m" else [],
        "cmsis_needs": [_cmsis_needs(target, core) for core in _cores(target)],
        "espressif": _ESPRESSIF.get(_riscv_letters(target), []),
    }


def example_of(header: str) -> str:
    """The example program in a generated header's comment, its `main` renamed to `run_model`."""
    text = "\n".join(example_lines(header)) + "\n"
    return text.replace("int main(void)", "static int run_model(void)")


def shortened(name: str, most: int) -> str:
    """`name` in at most `most` characters: where it is longer, its beginning and 8 digits of its SHA-256."""
    if len(name) <= most:
        return name
    return f"{name[: most - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _line(text: object) -> str:
    """`text` on one line."""
    return " ".join(str(text).split())


def _hard_float(target: Target) -> bool:
    """Whether floats are passed in registers of an FPU, on which all code of a program must agree."""
    return target.triple.endswith("hf") or (target.arch == "riscv32" and "f" in _riscv_letters(target))


def _riscv_letters(target: Target) -> str:
    """The extensions that a RISC-V target is compiled for, in the order of an ISA string, such as imac."""
    features = {feature[1:] for feature in target.features if feature.startswith("+")}
    return "i" + "".join(letter for letter in "mafdc" if letter in features)


def _cores(target: Target) -> tuple[str, ...]:
    """The cores that run code for an Arm target, by LLVM's names; its own first."""
    alike = _ALIKE.get(target.triple.partition("-")[0], ())
    return target.cpu, *(core for core in alike if core != target.cpu)


def _fpu(target: Target) -> str:
    """The FPU of a target with hardware floats, as compilers call it."""
    return _SINGLE.get(target.cpu, "fpv5-sp-d16" if "-fp64" in target.features else "fpv5-d16")


def _has_choice_of_dsp(target: Target) -> bool:
    """Whether chips with this core may lack the DSP instructions that the code has."""
    return target.triple.startswith("thumbv8") and target.vector.isa in ("dsp", "mve")


def _zephyr_needs(target: Target) -> list[str]:
    """Kconfig symbols without which the code does not run, or does not link."""
    if target.arch == "riscv32":
        return ["RISCV", "!64BIT", "FPU" if _hard_float(target) else "!FPU"]
    cores = [f"CPU_{core.replace('-', '_').upper()}" for core in _cores(target)]
    needs = [f"({' || '.join(cores)})" if len(cores) > 1 else cores[0]]
    needs.append("FP_HARDABI" if _hard_float(target) else "!FP_HARDABI")
    needs += ["ARMV8_M_DSP"] if _has_choice_of_dsp(target) else []
    if target.vector.isa == "mve":
        needs.append("ARMV8_1_M_MVEF" if _hard_float(target) else "ARMV8_1_M_MVEI")
    return needs


def _cmsis_needs(target: Target, core: str) -> dict[str, str]:
    """Attributes of a CMSIS-Pack's condition: the core, and its optional features."""
    needs = {"Dcore": "Cortex-M" + core.removeprefix("cortex-m").upper().replace("PLUS", "+")}
    if not _hard_float(target):
        needs["Dfpu"] = "NO_FPU"
    else:
        needs["Dfpu"] = "SP_FPU" if "-sp-" in _fpu(target) else "DP_FPU"
    if _has_choice_of_dsp(target):
        needs["Ddsp"] = "DSP"
    if target.vector.isa == "mve":
        needs["Dmve"] = "FP_MVE" if _hard_float(target) else "MVE"
    return needs


def _library_folder(kind: str, target: Target) -> str:
    """Folder of the library: Arduino's builder looks for it by the board's core and FPU."""
    if kind != "arduino":
        return "lib/"
    return f"src/{target.cpu}/" + (f"{_fpu(target)}-hard/" if _hard_float(target) else "")


def _known_arm(target: Target) -> bool:
    return target.arch == "arm_m" and target.cpu.startswith("cortex-m")


def _any_target(target: Target) -> bool:
    return target.arch != "arm_m" or _known_arm(target)


@dataclass(frozen=True)
class PackageKind:
    """A kind of package: the targets it exists for, the same in words, and its form.

    `headers`: folder of the headers. `in_folder`: all files are in one folder of the archive.
    """

    exists: Callable[[Target], bool]
    where: str
    headers: str = "include/"
    in_folder: bool = True


# By names of kiln.config.systems.
_KINDS = {
    "zephyr": PackageKind(_any_target, "cores by name, cpu: cortex-m…, and RISC-V"),
    "cmsis-pack": PackageKind(_known_arm, "Cortex-M", in_folder=False),
    "arduino": PackageKind(_known_arm, "Cortex-M", "src/"),
    "esp-idf": PackageKind(
        lambda target: target.arch == "riscv32" and _riscv_letters(target) in _ESPRESSIF,
        f"RISC-V with the extensions {' or '.join(_ESPRESSIF)}",
    ),
    "platformio": PackageKind(_any_target, "cores by name, cpu: cortex-m…, and RISC-V"),
}
