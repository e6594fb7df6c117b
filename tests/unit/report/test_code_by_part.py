"""The parts of a program's code: of the library, and of the compiler's own."""

from __future__ import annotations

from types import SimpleNamespace

from kiln.emit.size_schema import CodeByPart
from kiln.report import measure
from kiln.report.elf import ElfProgram, Sections, functions_of
from plans import plan_of

OPS = [{"name": "add", "attrs": {}}]
KERNELS = [{"symbol": name, "ops": OPS, "flops": 1} for name in ("tiny_a", "tiny_b")]
PLAN = plan_of(name="tiny", kernels=KERNELS)


def test_code_is_told_apart() -> None:
    sections = Sections(0, 0, 0, 0)
    functions = {
        "main": 9,
        "memcpy": 50,
        "tiny_a": 100,
        "tiny_a.cold": 7,
        "tiny_b": 30,
        "tiny_step": 20,
        "tiny_a_task": 6,
        "kiln_run": 11,
        "check_axis": 5,
        "kiln_parallel": 8,
        "kiln_map_params": 4,
        "__aeabi_uidivmod": 3,
    }
    members = {
        "tiny_a": "tiny_kernels.o",
        "tiny_a.cold": "tiny_kernels.o",
        "tiny_b": "tiny_kernels.o",
        "tiny_step": "tiny_plan.o",
        "tiny_a_task": "tiny_plan.o",
        "kiln_run": "kiln_session.o",
        "check_axis": "kiln_check.o",
        "kiln_parallel": "kiln_threads_none.o",
        "kiln_map_params": "kiln_platform_posix.o",
        "never_linked": "kiln_text.o",
    }
    base = ElfProgram(sections, {"main": 4, "memcpy": 50})
    code, kernels = measure.code_by_part(PLAN, ElfProgram(sections, functions), base, members)
    assert code == CodeByPart(kernels=137, plan=26, runtime=16, threads=8, platform=4, other=3)
    assert kernels == {"tiny_a": 107, "tiny_b": 30}
    # Cores that compute floats convert 64-bit integers by functions, too: no floats in software.
    for name, floats in (("__aeabi_d2lz", None), ("__floatundidf", None), ("__aeabi_dadd", 3)):
        functions[name] = 1
        found = measure.code_by_part(PLAN, ElfProgram(sections, functions), base, members)
        assert found[0].floats == floats
    # The library's own functions behind those that are called, in the same files, are of floats, too.
    zig = {"compiler_rt.addf3.__aeabi_fadd": 8, "compiler_rt.addf3.add_f32": 416, "compiler_rt.shift.left": 9}
    code, _ = measure.code_by_part(PLAN, ElfProgram(sections, {**base.functions, **zig}), base, members)
    assert (code.floats, code.other) == (424, 9)


def test_a_function_with_several_names_is_counted_once() -> None:
    """zig's library has a local name for each function that it exports."""
    table = [("__aeabi_fmul", 8, 360), ("compiler_rt.mulf3.__aeabi_fmul", 8, 360), ("memset", 9, 16)]
    symbols = [
        type("Symbol", (dict,), {"name": name})(st_info={"type": "STT_FUNC"}, st_value=at, st_size=size)
        for name, at, size in table
    ]
    section = SimpleNamespace(iter_symbols=lambda: iter(symbols))
    elf = SimpleNamespace(get_section_by_name=lambda name: section)
    assert functions_of(elf) == {"compiler_rt.mulf3.__aeabi_fmul": 360, "memset": 16}
