// mma_sm80.h: the instructions of these GPUs that Kiln's kernels use.
#pragma once
#include "cutlass/arch/kiln_mma.h"
namespace cutlass {
namespace arch {
template <>
struct Mma<gemm::GemmShape<16, 8, 16>, 32, bfloat16_t, layout::RowMajor, bfloat16_t,
           layout::ColumnMajor, float, layout::RowMajor, OpMultiplyAdd> : kiln_mma<bfloat16_t, 16> {
    using ArchTag = arch::Sm80;
};
// Only 10 bits of the operands' mantissas are multiplied: the other 13 bits are cut off, not
// rounded.
template <>
struct Mma<gemm::GemmShape<16, 8, 8>, 32, tfloat32_t, layout::RowMajor, tfloat32_t,
           layout::ColumnMajor, float, layout::RowMajor, OpMultiplyAdd> : kiln_mma<tfloat32_t, 8> {
    using ArchTag = arch::Sm80;
};
} // namespace arch
} // namespace cutlass
