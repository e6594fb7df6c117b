// fragments.cuh: what kernels use of nvcuda::wmma, for operands of 16 bits. nvcc loads those of
// bfloat16 number by number; here all are loaded by ldmatrix. T is kiln_f16 or kiln_bf16. The sums
// of 16 by 16 elements are two results of mma.m16n8k16, side by side.
namespace kiln_wmma {
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t {
    mem_row_major
};

template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment;
template <class T> struct fragment<matrix_a, 16, 16, 16, T, row_major> { unsigned x[4]; };
template <class T, class Layout> struct fragment<matrix_b, 16, 16, 16, T, Layout> {
    unsigned x[4]; // of columns 0 to 7, then 8 to 15
};
template <> struct fragment<accumulator, 16, 16, 16, float> {
    float x[8]; // of columns 0 to 7, then 8 to 15
};

template <class T, class Element>
static __device__ __forceinline__ void
load_matrix_sync(fragment<matrix_a, 16, 16, 16, T, row_major> &to, const Element *from,
                 unsigned pitch) {
    const unsigned lane = threadIdx.x % 32;
    kiln_matrices(to.x, from + lane % 16 * pitch + lane / 16 * 8);
}
// Rows are those of the depth.
template <class T, class Element>
static __device__ __forceinline__ void
load_matrix_sync(fragment<matrix_b, 16, 16, 16, T, row_major> &to, const Element *from,
                 unsigned pitch) {
    const unsigned lane = threadIdx.x % 32;
    kiln_transposed(to.x, from + lane % 16 * pitch + lane / 16 * 8);
}
// Rows are columns of the product.
template <class T, class Element>
static __device__ __forceinline__ void
load_matrix_sync(fragment<matrix_b, 16, 16, 16, T, col_major> &to, const Element *from,
                 unsigned pitch) {
    const unsigned lane = threadIdx.x % 32;
    kiln_matrices(to.x, from + (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 8);
}

static __device__ __forceinline__ void fill_fragment(fragment<accumulator, 16, 16, 16, float> &to,
                                                     float value) {
    for (int i = 0; i < 8; i++)
        to.x[i] = value;
}

// to = a b + c, where c is `to`.
template <class T, class Layout>
static __device__ __forceinline__ void
mma_sync(fragment<accumulator, 16, 16, 16, float> &to,
         const fragment<matrix_a, 16, 16, 16, T, row_major> &a,
         const fragment<matrix_b, 16, 16, 16, T, Layout> &b,
         const fragment<accumulator, 16, 16, 16, float> &) {
    T::multiply(to.x, a.x, b.x);
    T::multiply(to.x + 4, a.x, b.x + 2);
}

static __device__ __forceinline__ void
store_matrix_sync(float *to, const fragment<accumulator, 16, 16, 16, float> &from, unsigned pitch,
                  layout_t) {
    const unsigned lane = threadIdx.x % 32;
    float *row = to + lane / 4 * pitch + lane % 4 * 2;
    for (unsigned i = 0; i < 4; i++)
        *(float2 *)(row + i % 2 * 8 * pitch + i / 2 * 8) =
            make_float2(from.x[2 * i], from.x[2 * i + 1]);
}
} // namespace kiln_wmma
