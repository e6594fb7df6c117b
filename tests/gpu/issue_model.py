"""Estimate the time of a bundle's GPU kernels from their machine code, on a machine without a GPU.

    python tests/gpu/issue_model.py build/.stages/cuda_sm90/resnet50 [OTHER…]
    python tests/gpu/issue_model.py --cases WORK [CASE…]

For each launch of the first bucket: blocks, instructions of its loop of products, and microseconds; with
the sums of OTHER in a second column. With --cases the cases (see pack.py; without any, CASES) are built below
WORK, and their rows in the table of docs/cuda.md are written; rows of other cases stay.

A loop is put through an in-order model of one warp on each scheduler: stall counts and scoreboards that ptxas
wrote into the instructions, and latencies of loads. cuobjdump and nvdisasm are those of Triton's wheel. Sums
are good to about 40 %, ratios are better; nothing here was fitted to a run.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "build_tools"))

from kiln.sources.triton_wheel import triton_folder  # noqa: E402

CLOCK = 1750  # cycles in a microsecond
GAP = 1.2  # microseconds between two launches of a graph
EARLY_GAP = 0.5  # the same, if the second one's blocks are on the GPU already and wait there
FIXED = 1050  # cycles of a block outside of its loop, of which LAUNCHED are not instructions
LAUNCHED = 450
SMALL, BANDWIDTH = 0.8, 2.5e6  # a kernel without a product: microseconds, and bytes in one
MULTIPROCESSORS, SHARED = 132, 227 << 10
TENSOR = 2048  # multiply-adds of 16 bits in a cycle of a multiprocessor by wgmma; half of it by mma
FILLED = 48  # bytes in a cycle from L2 to a multiprocessor
LATENCY = {"LDG": 270, "LDSM": 33, "LDS": 30, "LDC": 40, "S2": 25, "MUFU": 25, "HMMA": 33, "IMMA": 33}
# Operators that read of their largest operand, a table, no more than they write.
PICKING = ("take", "gather", "gather_elements", "gather_nd")
# Cases of the table, and the page with the marks around it.
CASES = [
    f"{model}{batch}:{precision}{backend}"
    for model in ("resnet50", "mobilenet_v2", "vit_tiny", "minilm_l6")
    for batch, precision in (("", "fp16"), ("", "bf16"), ("@8", "fp16"), ("@32", "fp16"))
    for backend in ("", ":triton")
]
PAGE = REPOSITORY / "docs" / "cuda.md"
BEGIN, END = "<!-- issue model -->\n", "<!-- end of issue model -->\n"
GAPS = f"with {GAP} us between launches", f"with {EARLY_GAP} us, launched early"
HEAD = ("case", "launches", "in kernels", *GAPS)
ASSUMPTIONS = (
    f"{CLOCK} MHz, {MULTIPROCESSORS} multiprocessors, {GAP} us between launches, {EARLY_GAP} us if early, "
    f"{FIXED} cycles beside a loop, {LAUNCHED} beside all code of a kernel without one, "
    f"{TENSOR} multiply-adds of 16 bits a cycle by wgmma and {TENSOR // 2} by mma, twice as many of 8 bits, "
    f"{FILLED} bytes a cycle from L2, "
    f"{LATENCY['LDG']} cycles of a load, other kernels {SMALL} us and {BANDWIDTH / 1e6} TB/s"
)


@dataclass(frozen=True)
class Instruction:
    """One instruction and its control bits; `sets`: the scoreboards of its result and of its operands."""

    text: str
    stall: int
    sets: tuple[int, int]
    waits: int

    @property
    def name(self) -> str:
        return re.sub(r"^@!?U?P[T0-9]+\s+", "", self.text).split()[0]


@dataclass(frozen=True)
class Kernel:
    """The code of a kernel, and the places of its labels."""

    code: list[Instruction]
    labels: dict[str, int]

    def product(self) -> list[Instruction]:
        """The longest loop with tensor-core instructions; all code if they are in none; empty without any.

        Where all code is the loop, each iteration also counts what comes before and after it.
        """
        found: list[Instruction] = []
        for at, one in enumerate(self.code):
            target = re.search(r"BRA(?:\.\S+)? .*?`\((\.L\S+)\)", one.text)
            begin = self.labels.get(target[1], at + 1) if target else at + 1
            body = self.code[begin : at + 1]
            if any("MMA" in each.name for each in body) and len(body) > len(found):
                found = body
        return found or (self.code if any("MMA" in each.name for each in self.code) else [])


def kernels(folder: Path) -> dict[str, Kernel]:
    """The kernels of sm_90 in all fat binaries of a folder, by symbol."""
    tools, kernel_of_name = triton_folder() / "triton" / "backends" / "nvidia" / "bin", {}
    for image in sorted(folder.glob("*.fatbin")):
        with tempfile.TemporaryDirectory() as work:
            subprocess.run(
                [tools / "cuobjdump", "-xelf", "all", image.resolve()],
                cwd=work,
                capture_output=True,
                check=True,
            )
            for cubin in sorted(Path(work).glob("*sm_90*.cubin")):
                listing = subprocess.run(
                    [tools / "nvdisasm", "-c", "-hex", cubin], capture_output=True, text=True, check=True
                )
                kernel_of_name.update(_parsed(listing.stdout))
    return kernel_of_name


def _parsed(listing: str) -> dict[str, Kernel]:
    """The kernels in nvdisasm's listing: an instruction is two lines, the second with its upper bits."""
    kernel_of_name: dict[str, Kernel] = {}
    kernel: Kernel | None = None
    lines = listing.splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        section, label = re.match(r"\.text\.(\S+):", line), re.match(r"(\.L\S*):", line)
        if section:
            kernel = kernel_of_name[section[1]] = Kernel([], {})
        elif label and kernel:
            kernel.labels[label[1]] = len(kernel.code)
        one = re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?);\s+/\* 0x[0-9a-f]{16} \*/", line)
        upper = re.search(r"/\* 0x([0-9a-f]{16}) \*/", after)
        if one and upper and kernel:
            bits = int(upper[1], 16) >> 41
            sets = bits >> 5 & 7, bits >> 8 & 7
            kernel.code.append(Instruction(one[1].strip(), bits & 15, sets, bits >> 11 & 63))
    return kernel_of_name


def multiplied(one: Instruction) -> int:
    """Multiply-adds of one instruction of a warp: of wgmma, which four warps issue together, a quarter."""
    wide = re.search(r"(HGMMA|IGMMA)\.64x(\d+)x(\d+)", one.name)
    if wide:
        return 16 * int(wide[2]) * int(wide[3])
    small = re.search(r"[HI]MMA\.(\d+)\.", one.name)
    sizes = {"16816": 16 * 8 * 16, "1688": 16 * 8 * 8, "16832": 16 * 8 * 32, "16864": 16 * 8 * 64}
    return sizes.get(small[1], 16 * 8 * 16) if small else 0


def _rate(name: str) -> int:
    """Multiply-adds in a cycle of a multiprocessor by instructions of this name; integers have 8 bits."""
    return (TENSOR if "GMMA" in name else TENSOR // 2) * (2 if name.startswith("I") else 1)


def cycles(body: list[Instruction]) -> float:
    """Cycles of one iteration of a loop, after the first few."""
    now, pipe, before = 0.0, 0.0, 0.0
    board = [0.0] * 6
    for _ in range(6):
        before = now
        for one in body:
            now = max([now, *(board[i] for i in range(6) if one.waits >> i & 1)])
            name, work = one.name, multiplied(one)
            if work:  # the four warps share the multiprocessor's rate
                now = max(now, pipe)
                pipe = now + 4 * work / _rate(name)
            if name.startswith("WARPGROUP.DEPBAR"):
                now = max(now, pipe)
            latency = next((n for word, n in LATENCY.items() if name.startswith(word)), 20)
            result, operands = one.sets
            if result != 7:
                board[result] = max(board[result], now + (40 if name.startswith("LDGSTS") else latency))
            if operands != 7:
                board[operands] = max(board[operands], now + 18)
            now += max(one.stall, 1) + (25 if name.startswith("BAR") else 0)
    return now - before


@dataclass(frozen=True)
class Row:
    """A launch: its label, blocks, loop in words, microseconds without the gap, and resources."""

    label: str
    blocks: int
    loop: str
    microseconds: float
    facts: str


def rows(stages: Path) -> list[Row]:
    """A row for each launch of the first bucket of a model's stages."""
    plan = json.loads((stages / "plan" / "plan.json").read_text(encoding="utf-8"))
    usage = json.loads((stages / "objects" / "usage.json").read_text(encoding="utf-8"))["kernels"]
    code = kernels(stages / "objects")
    dynamic = {k["symbol"]: k.get("external", {}).get("dynamic_bytes", 0) for k in plan["kernels"]}
    return [
        _row(step, code[step["kernel"]], usage[step["kernel"]]["sm_90"], dynamic[step["kernel"]])
        for step in plan["buckets"][0]["steps"]
    ]


def _row(step: dict[str, Any], kernel: Kernel, used: dict[str, int], dynamic: int) -> Row:
    body = kernel.product()
    complete = len(body) == len(kernel.code)
    blocks, threads = math.prod(step["launch"]["grid"]), math.prod(step["launch"]["block"])
    shared = used["shared_bytes"] + (dynamic or 0)
    facts = f"{used['registers']} registers, {used['stack_bytes']} B stack, {shared} B shared"
    sizes = sorted(arg.get("bytes", 0) for arg in step["args"])
    if step["label"].split("+")[0] in PICKING:
        sizes[-1] = sizes[-2]
    moved = sum(sizes)
    work = sum(map(multiplied, body)) * threads // 32
    label = step["label"]
    if not work or not step["macs"]:
        return Row(label, blocks, "", SMALL + moved / BANDWIDTH, facts)
    count = Counter(re.sub(r"\..*", "", one.name) for one in body)
    kinds = ("HGMMA", "HMMA", "IGMMA", "IMMA", "LDGSTS", "LDG", "LDSM", "STS", "BRA")
    steps = 1 if complete else math.ceil(step["macs"] / (blocks * work))
    loop = cycles(body)
    together = max(
        1,
        min(
            SHARED // max(shared + 1024, 1), 2048 // threads, 65536 // (max(used["registers"], 16) * threads)
        ),
    )
    on_one = math.ceil(blocks / MULTIPROCESSORS)
    beside, rounds = min(on_one, together), math.ceil(on_one / together)
    rate = max(_rate(one.name) for one in body if multiplied(one))
    # Blocks on one multiprocessor hide each other's waits until they use up its rate or its share of L2.
    least = max(beside * work / rate, beside * _copied(body) * threads / FILLED)
    total = rounds * steps * max(loop * max(1.0, beside * 0.55), least) + (LAUNCHED if complete else FIXED)
    words = f"{steps} x {loop:.0f} cycles: " + " ".join(
        f"{kind} {count[kind]}" for kind in kinds if count[kind]
    )
    return Row(label, blocks, words, total / CLOCK, facts)


def _copied(body: list[Instruction]) -> int:
    """Bytes that a thread loads from global memory in one iteration."""
    names = [one.name for one in body if one.name.startswith(("LDG.", "LDGSTS"))]
    return sum(16 if ".128" in name else 8 if ".64" in name else 2 if ".U16" in name else 4 for name in names)


@dataclass(frozen=True)
class Sums:
    """Launches of a run, and microseconds: in kernels, and with gaps between launches, also if early."""

    launches: int
    busy: float
    gaps: float
    early: float

    @classmethod
    def of(cls, found: list[Row]) -> Sums:
        """The sums of some launches."""
        busy = sum(row.microseconds for row in found)
        return cls(len(found), busy, *(busy + len(found) * gap for gap in (GAP, EARLY_GAP)))

    @property
    def cells(self) -> list[str]:
        """Cells of the table."""
        return [str(self.launches), *(f"{value:.0f} us" for value in (self.busy, self.gaps, self.early))]


def write_table(cases: list[str], work: Path) -> None:
    """Build the cases and write their rows of the table, one after the other; rows of other cases stay."""
    from pack import FILED, build  # not above: it imports NumPy and ONNX

    for case in cases:
        bundle = build(case, work)
        cells = Sums.of(rows(bundle.parents[1] / ".stages" / FILED / bundle.name)).cells
        before, tail = PAGE.read_text(encoding="utf-8").split(BEGIN)
        table, after = tail.split(END)
        PAGE.write_text(before + BEGIN + with_row(table, case, cells) + END + after, encoding="utf-8")


def with_row(table: str, case: str, cells: list[str]) -> str:
    """The lines of a table with the row of `case`, in place of its old one, in the order of CASES."""
    lines = {line.split("|")[1].strip(): line for line in table.splitlines()[2:]}
    lines[case] = f"| {' | '.join([case, *cells])} |"
    ordered = [*(name for name in CASES if name in lines), *(name for name in lines if name not in CASES)]
    head = [f"| {' | '.join(HEAD)} |", f"| --- {'| ---: ' * (len(HEAD) - 1)}|"]
    return "".join(f"{line}\n" for line in [*head, *(lines[name] for name in ordered)])


def main(folders: list[str]) -> None:
    """Print the table of each folder, then the sums."""
    print(f"Assumed: {ASSUMPTIONS}")
    sums = []
    for folder in folders:
        table = Counter[tuple[str, int, str, str, float]]()
        new_rows = rows(Path(folder))
        for row in new_rows:
            table[row.label[:60], row.blocks, row.loop, row.facts, round(row.microseconds, 2)] += 1
        print(f"\n{folder}\ncount\tus each\tblocks\tlabel\tloop\tresources")
        for (label, blocks, loop, facts, each), number in sorted(
            table.items(), key=lambda item: -item[0][4] * item[1]
        ):
            print(f"{number}\t{each}\t{blocks}\t{label}\t{loop}\t{facts}")
        count, busy, gaps, early = Sums.of(new_rows).cells
        sums.append(
            f"{folder}: {count} launches, {busy} in kernels, {gaps} with gaps, {early} launched early"
        )
    print("\n" + "\n".join(sums))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--cases"]:
        write_table(sys.argv[3:] or CASES, Path(sys.argv[2]).resolve())
    else:
        main(sys.argv[1:])
