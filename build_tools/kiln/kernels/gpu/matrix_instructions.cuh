// matrix_instructions.cuh: instructions of a warp on matrices, for which CUDA C has no functions.
// Which lane holds which elements is in the PTX ISA (9.7.14, "ldmatrix", and "Matrix Fragments for
// mma.m16n8k8" and "... m16n8k16").

// Four matrices of 8 by 8 elements of 16 bits in shared memory. Lanes 8 i to 8 i + 7 pass the
// addresses of the rows of matrix i. to[i] receives row lane / 4, columns lane % 4 * 2 and the
// next.
static __device__ __forceinline__ void kiln_matrices(unsigned *to, const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

// The same of the transposed matrices.
static __device__ __forceinline__ void kiln_transposed(unsigned *to, const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

// c += a b in float32. A type of operands: `a` has 16 rows and b 8 columns, and both have DEPTH
// elements along the sum. two() is two elements in one register, or one that has 32 bits.
struct kiln_f16 {
    enum {
        DEPTH = 16
    };
    static __device__ __forceinline__ unsigned two(float x, float y) {
        unsigned pair;
        asm("{.reg .f16 x, y; cvt.rn.f16.f32 x, %1; cvt.rn.f16.f32 y, %2; mov.b32 %0, {x, y};}"
            : "=r"(pair)
            : "f"(x), "f"(y));
        return pair;
    }
    static __device__ __forceinline__ void multiply(float *c, const unsigned *a,
                                                    const unsigned *b) {
#if __CUDA_ARCH__ >= 800
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
        for (int k = 0; k < 2; k++)
            asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                "{%4, %5}, {%6}, {%0, %1, %2, %3};"
                : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                : "r"(a[2 * k]), "r"(a[2 * k + 1]), "r"(b[k]));
#endif
    }
};

// Of sm_80 and newer, as kiln_tf32.
struct kiln_bf16 {
    enum {
        DEPTH = 16
    };
    static __device__ __forceinline__ unsigned two(float x, float y) {
        unsigned pair;
        asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(x), "f"(y));
        return pair;
    }
    static __device__ __forceinline__ void multiply(float *c, const unsigned *a,
                                                    const unsigned *b) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};

struct kiln_tf32 {
    enum {
        DEPTH = 8
    };
    static __device__ __forceinline__ unsigned one(float x) {
        unsigned rounded;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
        return rounded;
    }
    static __device__ __forceinline__ void multiply(float *c, const unsigned *a,
                                                    const unsigned *b) {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
};

// e to the power of x: relative error below 2^-21 + |x| 2^-23 (CUDA C++ Programming Guide,
// "Intrinsic Functions"), far below what the operands' rounding does.
static __device__ __forceinline__ float kiln_exp(float x) {
    return __expf(x);
}
