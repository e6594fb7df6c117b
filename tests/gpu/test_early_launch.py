"""Kernels that wait for the launches before them: in CUDA C, in PTX, and for which GPUs."""

from __future__ import annotations

import pytest
from kiln.config.target import Cuda
from kiln.errors import KilnError
from kiln.kernels.gpu import early_launch

_CUDA = """#include <cuda_fp16.h>
extern "C" __global__ void __launch_bounds__(32) first(float* __restrict__ x, int n);
extern "C" __global__ void __launch_bounds__(32) second(float* __restrict__ x);
extern "C" __global__ void __launch_bounds__(32) first(float* __restrict__ x, int n) {
  x[0] = 1;
}

extern "C" __global__ void __launch_bounds__(32) second(float* __restrict__ x) {
  x[0] = 2;
}
"""
_PTX = """.version 9.0
.target {arch}
.visible .entry one(
\t.param .u64 one_param_0
)
.reqntid 128
{{
\t.reg .b64 %rd<2>;
\tld.param.b64 %rd1, [one_param_0];
\tret;
}}
"""


def test_every_kernel_waits_before_anything_else() -> None:
    text = early_launch.in_cuda(_CUDA)
    assert text.count(f"{{\n  {early_launch.BEGIN}();\n  x[0]") == 2
    assert text.count("griddepcontrol.wait") == 1 and "__CUDA_ARCH__ >= 900" in text
    assert early_launch.in_cuda("") == ""
    with pytest.raises(KilnError, match="2 kernels, of which 1 wait"):
        early_launch.in_cuda(_CUDA.replace("x) {", "x)\n{"))


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_120"])
def test_ptx_waits_before_anything_else(arch: str) -> None:
    text = early_launch.in_ptx(_PTX.format(arch=arch), arch)
    launch_and_wait = "griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;"
    assert f"{{\n\t{launch_and_wait}\n\t.reg" in text and text.count("griddepcontrol") == 2


def test_ptx_of_older_gpus_stays() -> None:
    text = _PTX.format(arch="sm_87")
    assert early_launch.in_ptx(text, "sm_87") == text
    with pytest.raises(
        KilnError, match=r"PTX for sm_90a without a line that begins with '\.visible \.entry'"
    ):
        early_launch.in_ptx(".version 9.0\n.entry one() {}", "sm_90a")


def test_which_gpus() -> None:
    assert early_launch.archs_of(Cuda(archs=["sm_75", "sm_90", "sm_120"], ptx=True)) == [90, 120]
    assert early_launch.archs_of(Cuda(archs=["sm_75", "sm_87"], ptx=False)) == []
    assert early_launch.archs_of(Cuda(archs=["sm_90"], ptx=False, early_launch=False)) == []
