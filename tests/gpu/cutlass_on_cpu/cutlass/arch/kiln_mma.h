// kiln_mma.h: mma.m16n8k8 and mma.m16n8k16 with float32 sums, by what the PTX ISA says of which
// thread of the warp holds which elements (9.7.14, "Matrix Fragments for mma.m16n8k8" and "…k16").
#pragma once
#include "cutlass/arch/mma.h"
#include "cutlass/layout/matrix.h"
#include "cutlass/numeric_types.h"
namespace cutlass {
namespace arch {
// A lane holds the elements of c in rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2 and the
// next. It holds the elements of `a` in these rows, and those of `b` in column lane / 4: of both,
// pairs along the depth, which are next to each other if elements have 16 bits, else four apart.
template <class Element>
static void kiln_multiply(Array<float, 4> &sums, Element const *a, Element const *b) {
    unsigned const lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    unsigned const narrow = sizeof(Element) == 2, next_row = narrow ? 2 : 1, next = narrow ? 1 : 2;
    struct two {
        Element at[2];
    };
    for (unsigned pair = 0; pair < 4; pair++) {
        Element rows[4];
        for (unsigned i = 0; i < 4; i += 2) {
            two const found = kiln_exchange(two{{a[i], a[i + 1]}}, row * 4 + pair, true);
            rows[i] = found.at[0];
            rows[i + 1] = found.at[1];
        }
        for (unsigned j = 0; j < 2; j++) {
            two const depth = kiln_exchange(two{{b[0], b[1]}}, (column + j) * 4 + pair, true);
            for (unsigned i = 0; i < 2; i++)
                sums[2 * i + j] += float(rows[next_row * i]) * float(depth.at[0]) +
                                   float(rows[next_row * i + next]) * float(depth.at[1]);
        }
    }
}

template <class Element, int Depth> struct kiln_mma {
    using Shape = gemm::GemmShape<16, 8, Depth>;
    using ElementA = Element;
    using LayoutA = layout::RowMajor;
    using FragmentA = Array<Element, Depth / 2>;
    using ElementB = Element;
    using LayoutB = layout::ColumnMajor;
    using FragmentB = Array<Element, Depth / 4>;
    using ElementC = float;
    using LayoutC = layout::RowMajor;
    using FragmentC = Array<float, 4>;
    using Operator = OpMultiplyAdd;

    void operator()(FragmentC &d, FragmentA const &a, FragmentB const &b,
                    FragmentC const &c) const {
        FragmentC sums = c;
        for (int part = 0; part < Depth / 8; part++) {
            Element of_a[4], of_b[2];
            for (int i = 0; i < 4; i++)
                of_a[i] = a[4 * part + i];
            for (int i = 0; i < 2; i++)
                of_b[i] = b[2 * part + i];
            kiln_multiply(sums, of_a, of_b);
        }
        d = sums;
    }
};
} // namespace arch
} // namespace cutlass
