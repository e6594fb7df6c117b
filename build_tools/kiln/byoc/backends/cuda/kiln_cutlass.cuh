// kiln_cutlass.cuh: kernels made of CUTLASS's parts (2.x API), in the form that Kiln's plan
// launches.
//
//     Product      y[b] = f(x[b] · w[b])      x (rows, k) row-major, y (rows, n) row-major
//     Convolution  y = f(x * w)               x NHWC, w (n, kernel height, kernel width, c), y NHWC
//     f(v) = clamp(v + bias[column] + residual)
//
// CUTLASS's own launchers compute a Params struct on the host and pass it to the kernel. Here the
// sizes are constants of the generated code, or int arguments, so each thread makes Params itself
// and the compiler folds what is constant; only pointers and sizes cross the driver's API. A block
// is one tile of y: grid (tiles of rows, tiles of columns, batch). Shared memory is static, at most
// 48 KiB.
#pragma once

#include <cutlass/conv/conv2d_problem_size.h>
#include <cutlass/conv/kernel/default_conv2d_fprop_with_broadcast.h>
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/threadblock/default_epilogue_with_broadcast.h>
#include <cutlass/gemm/kernel/default_gemm.h>
#include <cutlass/gemm/threadblock/threadblock_swizzle.h>

namespace kiln {

using cutlass::gemm::GemmShape;
using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<1>;

// The output operator of an epilogue with a broadcast vector (concept EpilogueWithBroadcastOp).
// Limits holds `low` and `high`, and whether they are to be applied.
template <class Element, int Count, bool Residual, class Limits> struct Output {
    using ElementOutput = Element;
    using ElementC = Element;
    using ElementZ = Element;
    using ElementT = Element;
    using ElementVector = float;
    using ElementAccumulator = float;
    using ElementCompute = float;
    static int const kElementsPerAccess = Count;
    static int const kCount = Count;
    static bool const kIsHeavy = false;
    static bool const kIsSingleSource = true;
    static bool const kStoreZ = true;
    static bool const kStoreT = false;
    using FragmentAccumulator = cutlass::Array<float, Count>;
    using FragmentCompute = cutlass::Array<float, Count>;
    using FragmentC = cutlass::Array<Element, Count>;
    using FragmentOutput = FragmentC;
    using FragmentZ = FragmentC;
    using FragmentT = FragmentC;

    struct Params {};
    CUTLASS_HOST_DEVICE Output(Params const &) {
    }
    CUTLASS_HOST_DEVICE bool is_source_needed() const {
        return Residual;
    }
    CUTLASS_HOST_DEVICE void set_k_partition(int, int) {
    }
    CUTLASS_HOST_DEVICE void operator()(FragmentZ &z, FragmentT &, FragmentAccumulator const &sum,
                                        FragmentC const &residual,
                                        FragmentCompute const &bias) const {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Count; i++)
            z[i] = Element(limit(sum[i] + bias[i] + float(residual[i])));
    }
    CUTLASS_HOST_DEVICE void operator()(FragmentZ &z, FragmentT &, FragmentAccumulator const &sum,
                                        FragmentCompute const &bias) const {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Count; i++)
            z[i] = Element(limit(sum[i] + bias[i]));
    }
    // A NaN stays one, as in Kiln's own kernels.
    static CUTLASS_HOST_DEVICE float limit(float v) {
        v = v < Limits::low ? Limits::low : v;
        return v > Limits::high ? Limits::high : v;
    }
};

// How a tile of y is computed: rows and columns of the block's tile, then of each of its warps.
template <int Rows, int Columns, int WarpRows, int WarpColumns> struct Simt {
    using Element = float;
    using Class = cutlass::arch::OpClassSimt;
    using Block = GemmShape<Rows, Columns, 8>;
    using Warp = GemmShape<WarpRows, WarpColumns, 8>;
    using Instruction = GemmShape<1, 1, 1>;
    using Operator = cutlass::arch::OpMultiplyAdd;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    using Arch = cutlass::arch::Sm80;
    static int const stages = 3;
#else
    using Arch = cutlass::arch::Sm50;
    static int const stages = 2;
#endif
    static int const align = 1, align_out = 1;
    template <class Base, class Op>
    using Epilogue = typename cutlass::conv::kernel::detail::DefaultConvEpilogueWithBroadcastSimt<
        Arch, typename Base::Shape, typename Base::WarpMmaOperator, Element, Element, float, Op,
        Base::kElementsPerAccess>::Epilogue;
};

// What tensor cores do at a time. Only float16 is for older GPUs than sm_80, too.
template <class Element> struct Instructions {
    using Arch = cutlass::arch::Sm80;
    using Shape = GemmShape<16, 8, 32 / sizeof(Element)>;
    static int const stages = 3;
};
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 800
template <> struct Instructions<cutlass::half_t> {
    using Arch = cutlass::arch::Sm75;
    using Shape = GemmShape<16, 8, 8>;
    static int const stages = 2;
};
#endif

// The same with tensor cores: float16 or bfloat16 is multiplied, float32 added, 16 bits are stored;
// or float is rounded to tf32, to nearest, multiplied, added and stored as float. Align: what the
// depth, and AlignOut what the columns are a multiple of, in elements.
template <class Type, int Rows, int Columns, int WarpRows, int WarpColumns, int Align, int AlignOut>
struct Tensor {
    using Element = Type;
    using Class = cutlass::arch::OpClassTensorOp;
    static int const depth = 64 / sizeof(Element);
    using Block = GemmShape<Rows, Columns, depth>;
    using Warp = GemmShape<WarpRows, WarpColumns, depth>;
    using Operator = cutlass::arch::OpMultiplyAdd;
    using Arch = typename Instructions<Element>::Arch;
    using Instruction = typename Instructions<Element>::Shape;
    static int const stages = Instructions<Element>::stages;
    static int const align = Align, align_out = AlignOut;
    template <class Base, class Op>
    using Epilogue =
        typename cutlass::conv::kernel::detail::DefaultConvEpilogueWithBroadcastTensorOp<
            Arch, typename Base::Shape, typename Base::WarpMmaOperator, Base::kPartitionsK, Element,
            Element, float, Op, Base::kElementsPerAccess>::Epilogue;
};

template <class Tile, class Limits, bool Residual, class LayoutW> struct Product {
    using Element = typename Tile::Element;
    using Row = cutlass::layout::RowMajor;
    using Op = Output<Element, Tile::align_out, Residual, Limits>;
    using Base = typename cutlass::gemm::kernel::DefaultGemm<
        Element, Row, Tile::align, Element, LayoutW, Tile::align, Element, Row, float,
        typename Tile::Class, typename Tile::Arch, typename Tile::Block, typename Tile::Warp,
        typename Tile::Instruction, Op, Swizzle, Tile::stages, false,
        typename Tile::Operator>::GemmKernel;
    using Mma = typename Base::Mma;
    using Epilogue = typename Tile::template Epilogue<typename Base::Epilogue, Op>;
    union Shared {
        typename Mma::SharedStorage loop;
        typename Epilogue::SharedStorage epilogue;
    };

    static CUTLASS_DEVICE void run(Element const *x, Element const *w, float const *bias,
                                   Element const *residual, Element *y, int rows, int columns,
                                   int depth) {
        alignas(16) __shared__ char memory[sizeof(Shared)];
        Shared &shared = *reinterpret_cast<Shared *>(memory);
        int const thread = threadIdx.x, warp = cutlass::canonical_warp_idx_sync(),
                  lane = threadIdx.x % 32;
        cutlass::MatrixCoord const at(int(blockIdx.x) * Tile::Block::kM,
                                      int(blockIdx.y) * Tile::Block::kN);
        cutlass::MatrixCoord const size(rows, columns);
        x += int64_t(blockIdx.z) * rows * depth;
        w += int64_t(blockIdx.z) * depth * columns;
        y += int64_t(blockIdx.z) * rows * columns;
        typename Mma::IteratorA::Params const params_x{Row(depth)};
        typename Mma::IteratorB::Params const params_w{LayoutW::packed({depth, columns})};
        typename Mma::IteratorA x_at(params_x, const_cast<Element *>(x), {rows, depth}, thread,
                                     {at.row(), 0});
        typename Mma::IteratorB w_at(params_w, const_cast<Element *>(w), {depth, columns}, thread,
                                     {0, at.column()});
        typename Mma::FragmentC sums;
        sums.clear();
        Mma mma(shared.loop, thread, warp, lane);
        mma((depth + Tile::Block::kK - 1) / Tile::Block::kK, sums, x_at, w_at, sums);

        typename Epilogue::OutputTileIterator::Params const params_y{Row(columns)};
        typename Epilogue::TensorTileIterator::Params const params_t{Row(columns)};
        typename Epilogue::OutputTileIterator y_at(params_y, y, size, thread, at);
        typename Epilogue::OutputTileIterator residual_at(params_y, const_cast<Element *>(residual),
                                                          size, thread, at);
        typename Epilogue::TensorTileIterator none(params_t, nullptr, size, thread, at);
        Epilogue epilogue(shared.epilogue, thread, warp, lane);
        epilogue(Op({}), bias == nullptr ? nullptr : const_cast<float *>(bias) + at.column(), y_at,
                 sums, residual_at, none, size, at);
    }
};

template <class Tile, class Limits, bool Residual> struct Convolution {
    using Element = typename Tile::Element;
    using Layout = cutlass::layout::TensorNHWC;
    using Op = Output<Element, Tile::align_out, Residual, Limits>;
    using Kernel = typename cutlass::conv::kernel::DefaultConv2dFpropWithBroadcast<
        Element, Layout, Element, Layout, Element, Layout, float, typename Tile::Class,
        typename Tile::Arch, typename Tile::Block, typename Tile::Warp, typename Tile::Instruction,
        Op, Swizzle, Tile::stages, typename Tile::Operator,
        cutlass::conv::IteratorAlgorithm::kOptimized, cutlass::conv::StrideSupport::kStrided,
        Tile::align, Tile::align>::Kernel;

    static CUTLASS_DEVICE void run(Element const *x, Element const *w, float const *bias,
                                   Element const *residual, Element *y,
                                   cutlass::conv::Conv2dProblemSize const &size) {
        alignas(16) __shared__ char memory[sizeof(typename Kernel::SharedStorage)];
        Layout const of_x = Layout::packed({size.N, size.H, size.W, size.C});
        Layout const of_w = Layout::packed({size.K, size.R, size.S, size.C});
        Layout const of_y = Layout::packed({size.N, size.P, size.Q, size.K});
        typename Kernel::Arguments const arguments(
            size, {const_cast<Element *>(x), of_x}, {const_cast<Element *>(w), of_w},
            {const_cast<Element *>(residual), of_y}, {y, of_y}, {},
            cutlass::conv::SplitKMode::kSerial, const_cast<float *>(bias), nullptr, 0, size.K);
        typename Kernel::Params const params(arguments);
        Kernel()(params, *reinterpret_cast<typename Kernel::SharedStorage *>(memory));
    }
};

} // namespace kiln
