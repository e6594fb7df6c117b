// mma_sm75.h: the instruction of these GPUs that Kiln's kernels use.
#pragma once
#include "cutlass/arch/kiln_mma.h"
namespace cutlass {
namespace arch {
template <>
struct Mma<gemm::GemmShape<16, 8, 8>, 32, half_t, layout::RowMajor, half_t, layout::ColumnMajor,
           float, layout::RowMajor, OpMultiplyAdd> : kiln_mma<half_t, 8> {
    using ArchTag = arch::Sm75;
};
} // namespace arch
} // namespace cutlass
