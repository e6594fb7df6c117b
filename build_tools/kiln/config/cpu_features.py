"""CPU features that a bundle's code may need: LLVM's names, and the bits of kiln_cpu_features.

kiln_open checks a feature if LLVM may use its instructions for ordinary code, or if Kiln's kernels call its
intrinsics. It does not check features that every processor of the architecture has, features that are used
only through intrinsics which Kiln does not call (AES, random numbers, …), features that only an
operating system uses, and LLVM's tuning flags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kiln.errors import KilnError

# For LLVM on AVX-512. Kernels have the vectors that pay; of loops over short rows LLVM makes more by gathers
# and scatters, which take longer than the elements alone: rows of 7 and 9 joined, 7 times as long on Zen 4.
WITHOUT_GATHERS = ["+prefer-no-gather", "+prefer-no-scatter"]

# By architecture: the names of the bits, in the order of the tables in runtime_c/platform/cpu_*.c.
BITS = {
    "x86_64": (
        "sse3", "ssse3", "fma", "cx16", "sse4.1", "sse4.2", "movbe", "popcnt", "avx", "f16c", "bmi", "avx2",
        "bmi2", "avx512f", "avx512dq", "avx512ifma", "avx512cd", "avx512bw", "avx512vl", "avx512vbmi",
        "avx512vbmi2", "gfni", "avx512vnni", "avx512bitalg", "avx512vpopcntdq", "avx512fp16", "avxvnni",
        "avx512bf16", "cmpccxadd", "avxifma", "avxvnniint8", "avxneconvert", "avxvnniint16", "apx", "sahf",
        "lzcnt", "sse4a", "xop", "fma4", "tbm", "avx10.2", "amx-tile", "amx-int8",
    ),
    "aarch64": (
        "fp-armv8", "neon", "lse", "fullfp16", "rdm", "jsconv", "complxnum", "rcpc", "sha3", "dotprod", "sve",
        "fp16fml", "lse2", "rcpc-immo", "flagm", "sve2", "sve-bitperm", "sve-sha3", "altnzcv", "fptoint",
        "i8mm", "bf16", "sme", "cssc", "sve2p1", "sme2", "sme2p1", "mops", "hbc", "sve-b16b16", "rcpc3",
        "lut", "faminmax", "sve256", "sve512",
    ),
    "armv7": (
        "v7", "v8", "dsp", "neon", "vfp3", "vfp4", "hwdiv-arm", "hwdiv", "d32", "fullfp16", "dotprod",
        "fp16fml", "bf16", "i8mm",
    ),
    "riscv64": (
        "v", "zba", "zbb", "zbs", "zbc", "zbkb", "zvbb", "zvbc", "zvkb", "zfh", "zfhmin", "zvfh", "zvfhmin",
        "zfa", "zacas", "zicond", "zcb", "zvl256b", "zvl512b", "zvl1024b",
    ),
}  # fmt: skip

# Bits that stand for several of LLVM's features: a regular expression of the features' names.
_SAME = {
    "x86_64": {"apx": "ccmp|cf|egpr|ndd|nf|ppx|push2pop2|zu"},
    "aarch64": {},
    "armv7": {
        "vfp3": "vfp3d16|vfp3d16sp|vfp3sp",
        "vfp4": "vfp4d16|vfp4d16sp|vfp4sp",
        "v8": "fp-armv8|fp-armv8d16|fp-armv8d16sp|fp-armv8sp|acquire-release",
    },
    "riscv64": {},
}

# Features of LLVM's CPUs that are not checked: a regular expression of their names.
_NOT_ASKED = {
    "x86_64": (
        # every x86-64 processor has them
        "64bit|64bit-mode|cmov|cx8|fxsr|mmx|nopl|sse|sse2|x87|"
        # only by intrinsics that Kiln does not use, or by an operating system, or hints
        "adx|aes|amx-(?!tile$|int8$).*|avx10.1|avx512vp2intersect|branch-hint|cldemote|clflushopt|clwb|clzero|crc32|enqcmd|"
        "ermsb|fsgsbase|fsrm|hreset|invpcid|kl|lwp|movdir64b|movdiri|movrs|mwaitx|pclmul|pconfig|pku|prefetchi|"
        "prfchw|ptwrite|rdpid|rdpru|rdrnd|rdseed|serialize|sha|sha512|shstk|sm3|sm4|tsxldtrk|uintr|usermsr|"
        "vaes|vpclmulqdq|waitpkg|wbnoinvd|widekl|xsave|xsavec|xsaveopt|xsaves|"
        # tuning
        "allow-.*|branchfusion|macrofusion|false-deps-.*|fast-.*|faster-.*|idiv[lq]-.*|lea-.*|no-bypass-.*|"
        "pad-short-functions|prefer-.*|sbb-dep-breaking|slow-.*|tuning-.*|use-.*|vzeroupper"
    ),
    "aarch64": (
        # versions of the architecture: their features are listed one by one
        r"v[89](\.\d)?[ar]|"
        # only by intrinsics that Kiln does not use
        "aes|chk|crc|fp8|fp8dot2|fp8dot4|fp8fma|ls64|predres|rand|sb|sha2|sm4|sme-.*|specres2|sve-aes|sve-sm4|"
        # only by an operating system, or hints that other processors ignore
        "am|amvs|brbe|bti|ccdp|ccidx|ccpp|clrbhb|CONTEXTIDREL2|dit|ecv|el2vmsa|el3|ete|fgt|fpac|hcx|lor|mec|"
        "mpam|mte|nmi|nv|pan|pan-rwv|pauth|perfmon|ras|rme|sel2|spe|spe-eef|specrestrict|ssbs|tlb-rmi|"
        "tracev8.4|trbe|uaops|vh|wfxt|xs|"
        # tuning, the names of CPUs among them
        r"(ampere|apple-|c1-|cortex-|exynos|neoverse|thunder|oryon-).*|a\d+\w*|carmel|falkor|kryo|saphira|"
        "olympus|tsv110|fujitsu-monaka|addr-lsl-.*|aggressive-.*|alternate-.*|alu-lsl-fast|arith-.*|avoid-.*|"
        "balance-fp-ops|cmp-bcc-fusion|disable-.*|enable-.*|force-.*|fuse-.*|ldp-aligned-only|"
        "max-interleave-.*|no-sve-fp-ld1r|no-zcz-fpr64|predictable-.*|slow-.*|store-pair-suppress|"
        "stp-aligned-only|strict-align|use-.*|zc[mz]-.*"
    ),
    "armv7": (
        # versions of the architecture below 8, and what each of them has
        r"arm(v\d).*|v4t|v5te?|v6\w*|v7clrex|v8(m|\.).*|v9a|[arm]class|thumb-mode|thumb2|noarm|db|8msecext|"
        "vfp2|vfp2sp|fp16|fp64|fpregs|fpregs16|fpregs64|mp|trustzone|virtualization|"
        # only by intrinsics that Kiln does not use, or by an operating system
        "aes|crc|crypto|dfb|fpao|pacbti|perfmon|ras|sb|sha2|"
        # of microcontrollers, which run no Linux
        "lob|mve.*|"
        # tuning, the names of CPUs among them
        r"a\d+\w*|[mr]\d+\w*|cortex-.*|exynos|krait|kryo|swift|avoid-.*|branch-.*|cheap-.*|disable-.*|dont-.*|"
        "expand-.*|fix-.*|fuse-.*|loop-align|muxed-units|neon-fpmovs|neonfp|no-.*|nonpipelined-vfp|prefer-.*|"
        "prof-unpr|ret-addr-stack|slow.*|splat-.*|strict-align|use-.*|vldn-align|vmlx-.*|wide-stride-vfp|zcz"
    ),
    "riscv64": (
        # RV64GC, which Kiln's own programs need, and what it or a feature with a bit implies
        "64bit|[imafdcb]|za(64|128)rs|zaamo|zalrsc|zca|zcd|zicsr|zifencei|zmmul|zicntr|zihpm|zicclsm|zve(32|64)[xfd]|"
        "zvl(32|64|128)b|"
        # profiles: their features are listed one by one
        r"rv[abm]\d+[us]?(32|64)|"
        # only by intrinsics that Kiln does not use, or by an operating system, or hints
        "zawrs|zama16b|zbkc|zbkx|zcmop|zic64b|zicbo[mpz]|zicca.*|ziccif|ziccrse|zihint.*|zimop|zk.*|zvk[gnst].*|"
        "h|sha|sh[cgtv].*|sm.*|ss.*|su.*|sv.*|experimental-.*|"
        # tuning, the names of CPUs among them
        "andes45|sifive7|mips-p8700|ventana-veyron|.*-fusion|disable-.*|dlen-factor-2|log-vrgather|no-.*|"
        "optimized-.*|prefer-.*|short-forward-branch-.*|single-element-.*|unaligned-.*|use-postra-scheduler|"
        "vl-dependent-latency|vxrm-pipeline-flush"
    ),
}


def required_features(arch: str, features: Iterable[str]) -> list[str]:
    """The names in BITS, in order, that a processor must have to run code with all of LLVM's `features`.

    Raises KilnError for a feature that kiln_open cannot check.
    """
    needed = set()
    for feature in features:
        name = _bit_name(arch, feature)
        if name is None and not re.fullmatch(_NOT_ASKED[arch], feature):
            raise KilnError(
                f"feature '{feature}': kiln_open cannot ask a processor of arch {arch} for it; "
                "leave it out of 'features', or choose another 'cpu'"
            )
        needed.add(name)
    return [name for name in BITS[arch] if name in needed]


def mask(arch: str, names: Iterable[str]) -> int:
    """Bit mask of kiln_cpu_features for `names`, which are in BITS."""
    return sum(1 << BITS[arch].index(name) for name in set(names))


def _bit_name(arch: str, feature: str) -> str | None:
    """The name in BITS for one of LLVM's features; None if it has no bit."""
    if feature in BITS[arch]:
        return feature
    return next((name for name, same in _SAME[arch].items() if re.fullmatch(same, feature)), None)
