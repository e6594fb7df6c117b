"""LLVM's triple of a target: architecture, vendor, system and ABI.

LLVM takes any word as a system or an ABI: for one that it does not know, it writes ELF files by the rules of
no system. So the words are checked here.
"""

from __future__ import annotations

import re

from kiln.config.systems import SYSTEMS, System

# By architecture: how its triples begin.
_BEGINNINGS = {
    "x86_64": ("x86_64-",), "aarch64": ("aarch64-",),
    "armv7": ("armv7-", "armv7a-", "armv7l-", "armv7ve-", "thumbv7-", "thumbv7a-"),
    "arm_m": ("thumbv6m-", "thumbv7m-", "thumbv7em-", "thumbv8m.base-", "thumbv8m.main-", "thumbv8.1m.main-"),
    "riscv32": ("riscv32-",), "riscv64": ("riscv64-",),
    "wasm32": ("wasm32-",),
}  # fmt: skip
BARE = ("arm_m", "riscv32")  # supported without an operating system only
_EABI = ("armv7", "arm_m")  # their ABIs say how floats are passed


def triple_fault(triple: str, arch: str, deployment: str) -> str | None:
    """The fault of a target's triple, as part of a sentence; None for a good triple."""
    beginnings = _BEGINNINGS[arch]
    if not triple.startswith(beginnings):
        allowed = " or ".join(f"{word}…" for word in beginnings)
        other_arch = next((name for name, words in _BEGINNINGS.items() if triple.startswith(words)), None)
        hint = f", or arch: {other_arch}" if other_arch else ""
        return f"'{triple}' is not a triple of arch {arch}: {allowed} expected{hint}"
    _, _, after_arch = triple.partition("-")
    forms = _known(arch, deployment)
    if any(re.fullmatch(form, after_arch) for form, _ in forms):
        return None
    words = " or ".join(beginnings[0] + example for _, example in forms)
    return f"'{triple}' names no system and ABI that Kiln knows: {words} expected"


def _known(arch: str, deployment: str) -> list[tuple[str, str]]:
    """The text that may follow the architecture in a triple: regular expressions, each with an example."""
    systems = [system for system in reversed(SYSTEMS) if system.serves(arch)]
    vendor, eabi = r"[a-z0-9_]+-", arch in _EABI
    forms = [(vendor + _form(system, eabi), f"unknown-{_example(system, eabi)}") for system in systems]
    if deployment == "freestanding" or arch in BARE:
        form, example = ("none-eabi(hf)?", "none-eabi") if eabi else ("(none-)?elf|none", "unknown-none-elf")
        forms.insert(0, (f"({vendor})?({form})", example))
    return forms


def _form(system: System, eabi: bool) -> str:
    return system.form + ("eabi(hf)?" if eabi and system.eabi else "")


def _example(system: System, eabi: bool) -> str:
    return system.example + ("eabihf" if eabi and system.eabi else "")
