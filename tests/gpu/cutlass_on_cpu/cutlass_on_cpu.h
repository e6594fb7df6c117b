// cutlass_on_cpu.h: compiles CUTLASS's kernels for this processor, with cuda_on_cpu.h. CUDA's own
// headers give the types; what CUTLASS writes in PTX is written again in the headers next to this
// one, which are found before CUTLASS's.
#pragma once

#include <algorithm>

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#undef __device__
#undef __forceinline__
#undef __global__
#undef __launch_bounds__
#undef __shared__
#define KILN_CUDA_HEADERS
#include "cuda_on_cpu.h"
#undef __device__
#define __device__

using std::max;
using std::min;

// Named in templates that no kernel here uses.
static kiln_index gridDim, blockDim;
static unsigned __byte_perm(unsigned, unsigned, unsigned) {
    abort();
}
static int __dp4a(int, int, int) {
    abort();
}
static half2 __hfma2(half2, half2, half2) {
    abort();
}

#include "cutlass/cutlass.h"

// CUTLASS's own give 0 where the code is not for a GPU.
namespace cutlass {
static int kiln_warp() {
    return (int)(threadIdx.x / 32);
}
namespace arch {
static int LaneId() {
    return (int)(threadIdx.x % 32);
}
} // namespace arch
} // namespace cutlass
#define canonical_warp_idx_sync kiln_warp
