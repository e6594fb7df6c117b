// mma_sm75.h: mma.m16n8k8 of float16 with float32 sums, by what the PTX ISA says of which thread of
// the warp holds which elements (9.7.14, "Matrix Fragments for mma.m16n8k8").
#pragma once
#include "cutlass/arch/mma.h"
#include "cutlass/layout/matrix.h"
#include "cutlass/numeric_types.h"
namespace cutlass {
namespace arch {
template <>
struct Mma<gemm::GemmShape<16, 8, 8>, 32, half_t, layout::RowMajor, half_t, layout::ColumnMajor,
           float, layout::RowMajor, OpMultiplyAdd> {
    using Shape = gemm::GemmShape<16, 8, 8>;
    using ElementA = half_t;
    using LayoutA = layout::RowMajor;
    using FragmentA = Array<half_t, 4>;
    using ElementB = half_t;
    using LayoutB = layout::ColumnMajor;
    using FragmentB = Array<half_t, 2>;
    using ElementC = float;
    using LayoutC = layout::RowMajor;
    using FragmentC = Array<float, 4>;
    using Operator = OpMultiplyAdd;
    using ArchTag = arch::Sm75;

    // Rows of c: lane / 4, then 8 below; columns: lane % 4 * 2, and the next. A lane holds of a the
    // elements at its rows, of b those in its column lane / 4, of both two neighbours of the depth.
    void operator()(FragmentC &d, FragmentA const &a, FragmentB const &b,
                    FragmentC const &c) const {
        unsigned const lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
        uint64_t mine_a;
        uint32_t mine_b;
        memcpy(&mine_a, &a, sizeof mine_a);
        memcpy(&mine_b, &b, sizeof mine_b);
        FragmentC sums = c;
        for (unsigned pair = 0; pair < 4; pair++) {
            uint64_t const of_rows = kiln_exchange(mine_a, row * 4 + pair, true);
            FragmentA rows;
            memcpy(&rows, &of_rows, sizeof of_rows);
            for (unsigned j = 0; j < 2; j++) {
                uint32_t const of_column = kiln_exchange(mine_b, (column + j) * 4 + pair, true);
                FragmentB depth;
                memcpy(&depth, &of_column, sizeof of_column);
                for (unsigned i = 0; i < 2; i++)
                    sums[2 * i + j] += float(rows[2 * i]) * float(depth[0]) +
                                       float(rows[2 * i + 1]) * float(depth[1]);
            }
        }
        d = sums;
    }
};
} // namespace arch
} // namespace cutlass
