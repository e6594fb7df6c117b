"""emit-source: the plan as C, the model's header, and the parameters ready to link or to load."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path

import jinja2

from kiln import templates
from kiln.config.systems import LINUX, NONE, System
from kiln.emit import c_text
from kiln.emit.cuda_conversions import KERNEL as CONVERSION
from kiln.emit.params_image import HEADER_BYTES, params_image
from kiln.emit.plan_view import plan_view
from kiln.errors import KilnError
from kiln.files import atomic_write
from kiln.kernels.gpu import early_launch
from kiln.paths import data_dir
from kiln.plan.schema import Plan, read_plan
from kiln.runtime.structs import ABI
from kiln.stages.target import SourceStage

# Needs dlopen, a library of its own before glibc 2.34: in the static library, for programs that call it.
LOADER = "platform/load_linux.c"
_CORE = (
    "session.c", "check.c", "compatible.c", "dynamic.c", "memory.c", "content.c", "counts.c", "indices.c",
    "params.c", "regions.c", "state.c", "text.c", "trace.c", "traffic.c", "image.c",
)  # fmt: skip
# Names of the example in a model's header.
_EXAMPLE = re.compile(r"session|config|state|regions|arena(_\w+)?|(in|out)put_\d+")
_TEMPLATES = {"{}.h": "model.h.j2", "{}_plan.c": "plan.c.j2", "{}_params.S": "params.S.j2"}


def run(args: SourceStage) -> None:
    """Write the four files of `emit`. Raises KilnError naming the invalid entry of plan.json."""
    plan = args.plan / "plan.json" if args.plan.is_dir() else args.plan
    raw = plan.parent / "params.raw"
    try:
        payload = raw.read_bytes()
    except OSError as error:
        raise KilnError(f"{raw}: cannot read: {error.strerror}") from error
    for name, content in emit(read_plan(plan), payload).items():
        atomic_write(args.out / name, content)


def emit(plan: Plan, payload: bytes) -> dict[str, bytes | str]:
    """Generate <model>.h, <model>_plan.c, <model>_params.S and params.bin, always all four: name → content.

    Where the parameters are split over regions, params.bin is the first part, and each other part is a file.
    The .S file embeds the parameters with .incbin from an include folder; with storage `file` it is empty.
    Raises KilnError naming the entry of plan.json that is invalid.
    """
    view = plan_view(plan, len(payload))
    jinja = environment()
    ends = list(itertools.accumulate(stored_part.bytes for stored_part in view.params.parts)) or [
        len(payload)
    ]
    image, *others = (
        params_image(payload[begin:end], bytes.fromhex(view.hash))
        for begin, end in zip([0, *ends], ends, strict=False)
    )
    facts = {
        "m": view,
        "own": "my_" if _EXAMPLE.fullmatch(view.name) else "",
        "abi": ABI,
        "header_bytes": HEADER_BYTES,
        "early_archs": early_launch.archs_of(view.cuda),
        "converts": CONVERSION if any(port.dtype == "float32" for port in view.inputs) else "",
    }
    files: dict[str, bytes | str] = {
        file.format(view.name): jinja.get_template(template).render(facts)
        for file, template in _TEMPLATES.items()
    }
    part_files = {
        f"params_{stored_part.name}.bin": content
        for stored_part, content in zip(view.params.parts[1:], others, strict=True)
    }
    return {**files, "params.bin": image, **part_files}


@functools.cache
def environment() -> jinja2.Environment:
    """The templates, which a process that emits several models compiles once."""
    environment = templates.environment(Path(__file__).resolve().parent / "templates")
    environment.filters.update(c=c_text.string, comment=c_text.comment, size=c_text.size, real=c_text.real)
    return environment


def runtime_sources(
    threads: str, deployment: str, arch: str | None = None, gpu: bool = False, system: System | None = None
) -> list[Path]:
    """C files of the runtime: the core, and one file for each policy.

    `threads`: none or pthread. `deployment`: hosted or freestanding. `arch`: the target's architecture;
    kiln_open then checks the processor's features if they can be read; None: no check. `gpu`: add the
    functions that run models on an NVIDIA GPU. `system`: the target's; None: Linux where there is one. Raises
    KilnError for any other value.
    """
    folder = data_dir("runtime_c")
    policies = {"none": "platform/threads_none.c", "pthread": "platform/threads_pthread.c"}
    if threads not in policies:
        raise KilnError(f"threads: '{threads}', allowed: {', '.join(policies)}")
    allowed = ("hosted", "freestanding")
    if deployment not in allowed:
        raise KilnError(f"deployment: '{deployment}', allowed: {', '.join(allowed)}")
    chosen = system or (LINUX if deployment == "hosted" else NONE)
    files = [chosen.files, "crc_sliced.c"] if chosen.files else ["crc_small.c"]
    processor = chosen.processors.get(arch or "", "cpu_none.c")
    platform = [policies[threads], *(f"platform/{name}" for name in (processor, *files))]
    if chosen is LINUX:
        platform.append(LOADER)
    cuda = ["cuda/gpu_cuda.c", "cuda/cuda_convert.c"] if gpu else []
    return [folder / name for name in (*(f"core/{name}" for name in _CORE), *platform, *cuda)]
