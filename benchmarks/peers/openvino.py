"""OpenVINO: latency hint, one stream, float32 (it would choose bfloat16 by itself where the CPU has it)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import Array, Interface, Run, StreamRun

DISTRIBUTIONS = ("openvino",)
SOURCES = ("onnx", "tflite")
ISAS = {"avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2"}}  # by instruction set, the environment that holds it to that
# The part of OpenVINO that asks the processor itself, whatever the environment says: it computes float32
# products that nothing is fused with. On a Zen 5 of 4.23 GHz, where AVX2 allows 135 GFLOP/s, they run at 158.
NEVER_HELD = "mlas"


def convert(source: Path, interface: Interface, folder: Path) -> Path:
    """Reads both formats as they are."""
    return source


def load(file: Path, interface: Interface, inputs: Sequence[Array], threads: int) -> Run:
    """A compiled model and one request, whose inputs are shared and not copied."""
    request = _request(file, threads)
    feed = list(inputs)

    def run() -> list[Any]:
        request.infer(feed, share_inputs=True)
        return [request.get_output_tensor(i).data for i in range(len(interface["outputs"]))]

    steps = request.get_compiled_model().get_runtime_model().get_ops()
    kernels = {str(step.get_rt_info()["primitiveType"].value) for step in steps}
    setattr(run, "held", not any(NEVER_HELD in kernel for kernel in kernels))  # noqa: B010
    return run


def load_stream(file: Path, interface: Interface, threads: int) -> StreamRun:
    """A request for inputs of any size: the model is compiled with dynamic shapes."""
    request = _request(file, threads)

    def run(inputs: Sequence[Array], _dims: Any) -> list[Any]:
        request.infer(list(inputs), share_inputs=True)
        return [request.get_output_tensor(i).data for i in range(len(interface["outputs"]))]

    return run


def _request(file: Path, threads: int) -> Any:
    import openvino

    core = openvino.Core()
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_CPU_PINNING": False,  # the worker is pinned from outside, as every contender is
    }
    return core.compile_model(core.read_model(str(file)), "CPU", settings).create_infer_request()
