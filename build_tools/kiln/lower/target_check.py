"""Check a target's triple, CPU and features against LLVM.

LLVM itself ignores unknown names, with only a warning.
"""

from __future__ import annotations

from tvm.target import Target as TvmTarget
from tvm.target import codegen

from kiln.config import Target, cpu_features
from kiln.config.check import nearest
from kiln.errors import KilnError
from kiln.frontend.quiet import quiet_stderr
from kiln.lower.instructions import FROM_HALF, FROM_INTEGER, FROM_LONG, PRODUCT, ROOTS, TO_HALF, instructions
from kiln.lower.schema import VariantFeatures

# By value of a key of `vector`, with `isa` before it where both matter: LLVM's features whose instructions
# kernels then use. Of each row, one.
_UNITS: dict[str | tuple[str, str], tuple[tuple[str, ...], ...]] = {
    "sse4": (("ssse3",),), "avx2": (("avx2",),), "avx512": (("avx512f",), ("avx512bw",)),
    "neon": (("neon",),), "sve": (("sve",),), "rvv": (("v", "zve32x"),), "simd128": (("simd128",),),
    "mve": (("mve",),), "dsp": (("dsp",),),
    "sdot": (("dotprod",),), "i8mm": (("dotprod",), ("i8mm",)),
    ("sve", "sdot"): (),  # SVE has dot products of its own
    "vnni": (("avx512vnni", "avxvnni"), ("avx512vl", "avxvnni")), ("avx512", "vnni"): (("avx512vnni",),),
    "amx": (("avx512vnni",), ("amx-int8",)),
}  # fmt: skip
# By architecture: LLVM's features with fused multiply-add. Every 64-bit Arm core has it.
_FMA = {
    "x86_64": ("fma", "fma4"), "armv7": ("vfp4", "vfp4d16", "vfp4sp", "vfp4d16sp"), "arm_m": ("vfp4d16sp",),
    "riscv32": ("f",), "riscv64": ("f",), "wasm32": ("relaxed-simd",),
}  # fmt: skip
# By architecture: LLVM's features that every processor with an operating system has, and its programs use.
_EVERYWHERE = {"riscv64": ("m", "a", "f", "d", "c")}
# By architecture of 32-bit Arm: LLVM's feature of its profile, and the profile's name.
_PROFILES = {"armv7": ("aclass", "A"), "arm_m": ("mclass", "M")}


def check(target: Target) -> None:
    """Raise KilnError for a CPU or feature that LLVM does not support for the target's architecture.

    Raises KilnError, too, for a variant that lacks a feature of the target or equals another variant, and
    for a vector unit that the CPU lacks.
    """
    features: dict[str, list[str]] = {}
    for name in target.variant_names:
        variant = target.for_variant(name)
        where = f"target '{target.name}'" + (f", variant '{name}'" if features else "")
        _check_known(variant, where)
        _check_profile(variant, where)
        _check_everywhere(variant, where)
        features[name] = cpu_features_of(variant)
        lacking = [feature for feature in features[target.base] if feature not in features[name]]
        if lacking:
            raise KilnError(
                f"target '{target.name}': variant '{name}' lacks {', '.join(lacking)}, which the target's "
                f"own 'cpu' and 'features' imply: a variant has all features of '{target.base}', and more"
            )
        equal_variant = next((o for o, has in features.items() if o != name and has == features[name]), None)
        if equal_variant is not None:
            raise KilnError(
                f"target '{target.name}': variants '{equal_variant}' and '{name}' have the same features, as "
                "far as kiln_open can detect them: leave one out"
            )
    for name in target.variant_names:
        where = f"target '{target.name}'" + ("" if name == target.base else f", variant '{name}'")
        _check_unit(target.for_variant(name), where)


def features_by_variant(target: Target) -> list[VariantFeatures]:
    """Name and CPU features (see `cpu_features_of`) of every variant, the target's own first."""
    return [
        VariantFeatures(name=name, features=cpu_features_of(target.for_variant(name)))
        for name in target.variant_names
    ]


def _check_known(target: Target, where: str) -> None:
    """Raise KilnError, which begins with `where`, for a CPU or feature that LLVM does not know."""
    with quiet_stderr():
        plain = TvmTarget({"kind": "llvm", "mtriple": target.triple})
        cpus = sorted(str(name) for name in codegen.llvm_get_cpu_archlist(plain))
        is_known = target.cpu in cpus
        unknown = [
            feature[1:]
            for feature in target.features
            if feature[1:] not in codegen.llvm_get_cpu_features(
                TvmTarget({"kind": "llvm", "mtriple": target.triple, "mattr": [f"+{feature[1:]}"]})
            )
        ]  # fmt: skip
    if not is_known:
        raise KilnError(
            f"{where}: LLVM knows no CPU '{target.cpu}' for {target.arch} (key 'cpu')"
            f"{nearest(target.cpu, cpus)}"
        )
    if unknown:
        raise KilnError(f"{where}: LLVM knows no feature '{unknown[0]}' for {target.arch} (key 'features')")


def _check_profile(target: Target, where: str) -> None:
    """Raise KilnError, which begins with `where`, for a CPU of another profile of 32-bit Arm.

    LLVM compiles for one, with instructions that the architecture of the triple lacks.
    """
    own = _PROFILES.get(target.arch)
    others = {"aclass", "mclass", "rclass"} & _closure(target)
    if own is not None and others - {own[0]}:
        raise KilnError(
            f"{where}: CPU '{target.cpu}' is not of Arm's {own[1]} profile, as those of arch {target.arch} "
            "are (key 'cpu')"
        )


def _check_everywhere(target: Target, where: str) -> None:
    """Raise KilnError, which begins with `where`, for a CPU that lacks a feature of `_EVERYWHERE`."""
    if target.deployment == "freestanding":
        return
    has = _closure(target)
    lacking = [feature for feature in _EVERYWHERE.get(target.arch, ()) if feature not in has]
    if lacking:
        raise KilnError(
            f"{where}: CPU '{target.cpu}' with features {target.features} lacks {', '.join(lacking)}, which "
            f"every processor of arch {target.arch} with an operating system has: add them to 'features'"
        )


def _check_unit(target: Target, where: str) -> None:
    """Raise KilnError, which begins with `where`, for a vector unit whose instructions the CPU lacks.

    LLVM ends the process at an intrinsic that it cannot select. Kernels on a GPU use none of the unit.
    """
    if target.cuda is not None:
        return
    has = _closure(target)
    for key in ("isa", "dot"):
        value = getattr(target.vector, key)
        for row in _UNITS.get((target.vector.isa, value), _UNITS.get(value, ())):
            if not has.intersection(row):
                raise KilnError(
                    f"{where}: '{value}' needs LLVM's feature {' or '.join(row)}, which CPU '{target.cpu}' "
                    f"with features {target.features} lacks (key 'vector.{key}'): choose another unit, "
                    "CPU or features"
                )
    fused = _FMA.get(target.arch)
    if target.vector.fma and fused is not None and has.isdisjoint(fused):
        raise KilnError(
            f"{where}: CPU '{target.cpu}' with features {target.features} has no fused multiply-add, LLVM's "
            f"feature {fused[0]} (key 'vector.fma'): false expected"
        )


def has_floats(target: Target) -> bool:
    """Whether the target's cores have instructions for float32."""
    return PRODUCT in instructions(target)


def converts_half(target: Target) -> bool:
    """Whether the target's cores have instructions that convert float16 to float32 and back."""
    return {FROM_HALF, TO_HALF} <= instructions(target)


def without_root(target: Target) -> frozenset[str]:
    """The float types without a square-root instruction."""
    return frozenset(dtype for dtype, root in ROOTS.items() if root not in instructions(target))


def lacks_conversions_of_longs(target: Target) -> bool:
    """Whether the target's cores convert integers of 32 bits to floats, but none of 64."""
    return FROM_INTEGER in instructions(target) and FROM_LONG not in instructions(target)


def divides_in_software(target: Target) -> bool:
    """Whether the target's cores have neither division nor products of 64 bits, as in Armv6-M."""
    return target.arch == "arm_m" and "hwdiv" not in _closure(target)


def _closure(target: Target) -> frozenset[str]:
    """LLVM's features that `cpu` and `features` of the target imply."""
    words = {"kind": "llvm", "mtriple": target.triple, "mcpu": target.cpu, "mattr": target.features}
    with quiet_stderr():
        return frozenset(map(str, codegen.llvm_get_cpu_features(TvmTarget(words))))


def _length_of(target: Target) -> list[str]:
    """The name in cpu_features.BITS of the least length of SVE's registers, which LLVM has no feature for."""
    return [f"sve{target.vector.bits}"] if target.vector.isa == "sve" else []


def cpu_features_of(target: Target) -> list[str]:
    """The CPU features that kiln_open checks at run time, by their names in config/cpu_features.py.

    Empty for kernels on a GPU, for freestanding targets, and for architectures that cannot be queried. Raises
    KilnError for a feature that cannot be detected at run time.
    """
    if target.cuda is not None or target.deployment == "freestanding" or target.arch not in cpu_features.BITS:
        return []
    try:
        features = [*_closure(target), *_length_of(target)]
        if target.vector.dot != "amx":  # LLVM uses tile registers only for intrinsics
            features = [name for name in features if not name.startswith("amx-")]
        return cpu_features.required_features(target.arch, features)
    except KilnError as error:
        raise KilnError(f"target '{target.name}': {error}") from None
