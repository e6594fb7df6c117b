// attention.cuh: both products of attention for 16 queries of a warp, from operands in shared
// memory. Kernels that kernels/gpu/attention.py makes call these functions.
//
// A lane holds of 16 rows, in columns of 8: rows lane / 4 and lane / 4 + 8, columns lane % 4 * 2
// and the next of each 8: x[4 j], x[4 j + 1] in the first row, x[4 j + 2], x[4 j + 3] in the
// second. That is how tensor cores store sums (matrix_instructions.cuh), and float32 is computed in
// the same form without them. PITCH: elements between rows in shared memory; the depth of a head
// and its number of values are padded with zeros to multiples of 16.
//
// Weights are never stored: sums of the scores have the places that the second product's operand
// needs. Tensor cores for tf32 want keys k and k + 4 in a lane; it has keys 2 k and 2 k + 1, so the
// rows of the values are taken in that order.

static __device__ __forceinline__ int kiln_lane() {
    return (int)threadIdx.x % 32;
}

// How operands of one type are read from shared memory and multiplied.
template <class T, int PITCH> struct kiln_operands { // 16 bits
    typedef unsigned short element;
    // STEP-th part of the depth of 16 rows.
    static __device__ __forceinline__ void rows(unsigned *a, const element *from, int step) {
        const int lane = kiln_lane();
        kiln_matrices(a, from + lane % 16 * PITCH + step * 16 + lane / 16 * 8);
    }
    // The same part of 16 keys, for two columns of 8 sums.
    template <int COUNT>
    static __device__ __forceinline__ void scores(float *sums, const unsigned *a,
                                                  const element *keys, int step) {
        const int lane = kiln_lane();
#pragma unroll
        for (int j = 0; j < COUNT / 2; j++) {
            unsigned b[4];
            kiln_matrices(b, keys + (j * 16 + lane / 16 * 8 + lane % 8) * PITCH + step * 16 +
                                 lane / 8 % 2 * 8);
            T::multiply(sums + 8 * j, a, b);
            T::multiply(sums + 8 * j + 4, a, b + 2);
        }
    }
    // The weights of 16 keys times their values.
    template <int COLUMNS>
    static __device__ __forceinline__ void weighted(float *total, const float *weights,
                                                    const element *values, int step) {
        const int lane = kiln_lane();
        const float *own = weights + 8 * step;
        const unsigned a[4] = {T::two(own[0], own[1]), T::two(own[2], own[3]),
                               T::two(own[4], own[5]), T::two(own[6], own[7])};
#pragma unroll
        for (int j = 0; j < COLUMNS / 2; j++) {
            unsigned b[4];
            kiln_transposed(b, values + (step * 16 + lane % 16) * PITCH + j * 16 + lane / 16 * 8);
            T::multiply(total + 8 * j, a, b);
            T::multiply(total + 8 * j + 4, a, b + 2);
        }
    }
};

template <int PITCH> struct kiln_operands<kiln_tf32, PITCH> {
    typedef float element;
    static __device__ __forceinline__ void rows(unsigned *a, const element *from, int step) {
        const element *row = from + kiln_lane() / 4 * PITCH + step * 8 + kiln_lane() % 4;
        for (int i = 0; i < 4; i++)
            a[i] = kiln_tf32::one(row[i % 2 * 8 * PITCH + i / 2 * 4]);
    }
    template <int COUNT>
    static __device__ __forceinline__ void scores(float *sums, const unsigned *a,
                                                  const element *keys, int step) {
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            const element *key =
                keys + (j * 8 + kiln_lane() / 4) * PITCH + step * 8 + kiln_lane() % 4;
            const unsigned b[2] = {kiln_tf32::one(key[0]), kiln_tf32::one(key[4])};
            kiln_tf32::multiply(sums + 4 * j, a, b);
        }
    }
    template <int COLUMNS>
    static __device__ __forceinline__ void weighted(float *total, const float *weights,
                                                    const element *values, int step) {
        const float *own = weights + 4 * step;
        const unsigned a[4] = {kiln_tf32::one(own[0]), kiln_tf32::one(own[2]),
                               kiln_tf32::one(own[1]), kiln_tf32::one(own[3])};
        const element *row = values + (step * 8 + kiln_lane() % 4 * 2) * PITCH + kiln_lane() / 4;
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            const unsigned b[2] = {kiln_tf32::one(row[8 * j]), kiln_tf32::one(row[8 * j + PITCH])};
            kiln_tf32::multiply(total + 4 * j, a, b);
        }
    }
};

struct kiln_f32 { // multiplied without tensor cores
    enum {
        DEPTH = 8
    };
};
template <int PITCH> struct kiln_operands<kiln_f32, PITCH> {
    typedef float element;
    static __device__ __forceinline__ void rows(unsigned *a, const element *from, int step) {
        const element *row = from + kiln_lane() / 4 * PITCH + step * 8;
        for (int i = 0; i < 16; i++)
            ((float *)a)[i] = row[i / 8 * 8 * PITCH + i % 8];
    }
    template <int COUNT>
    static __device__ __forceinline__ void scores(float *sums, const unsigned *a,
                                                  const element *keys, int step) {
#pragma unroll
        for (int j = 0; j < 2 * COUNT; j++) {
            const element *key =
                keys + (j / 2 * 8 + kiln_lane() % 4 * 2 + j % 2) * PITCH + step * 8;
#pragma unroll
            for (int i = 0; i < 16; i++)
                sums[j / 2 * 4 + i / 8 * 2 + j % 2] += ((const float *)a)[i] * key[i % 8];
        }
    }
    template <int COLUMNS>
    static __device__ __forceinline__ void weighted(float *total, const float *weights,
                                                    const element *values, int step) {
        const float *own = weights + 4 * step;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const int lane = kiln_lane() / 4 * 4 + k / 2;
            const float first = __shfl_sync(0xffffffffu, own[k % 2], lane);
            const float second = __shfl_sync(0xffffffffu, own[2 + k % 2], lane);
            const element *row = values + (step * 8 + k) * PITCH + kiln_lane() % 4 * 2;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++)
                for (int i = 0; i < 4; i++)
                    total[4 * j + i] += (i < 2 ? first : second) * row[8 * j + i % 2];
        }
    }
};

// Registers of a lane for a part of the depth of 16 rows, and parts that one iteration multiplies:
// float32 has code enough in one.
template <class T> struct kiln_part {
    enum {
        REGISTERS = 4,
        UNROLLED = 64
    };
};
template <> struct kiln_part<kiln_f32> {
    enum {
        REGISTERS = 16,
        UNROLLED = 1
    };
};

// Load the first STEPS parts of the depth of 16 queries, which stay in registers.
template <class T, int PITCH, int STEPS>
static __device__ __forceinline__ void kiln_queries(unsigned *to, const void *queries) {
    typedef kiln_operands<T, PITCH> operands;
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        operands::rows(to + kiln_part<T>::REGISTERS * step,
                       (const typename operands::element *)queries, step);
}

// sums = queries times keys, for 8 COUNT keys and STEPS parts of the depth. The first HELD parts of
// the queries are in `held`; the others are read again.
template <class T, int PITCH, int STEPS, int HELD, int COUNT>
static __device__ __forceinline__ void kiln_scores(float *sums, const unsigned *held,
                                                   const void *queries, const void *keys) {
    typedef kiln_operands<T, PITCH> operands;
    typedef const typename operands::element *pointer;
#pragma unroll
    for (int i = 0; i < 4 * COUNT; i++)
        sums[i] = 0.0f;
#pragma unroll(kiln_part <T>::UNROLLED)
    for (int step = 0; step < STEPS; step++) {
        unsigned again[kiln_part<T>::REGISTERS];
        const unsigned *a = again;
        if (step < HELD)
            a = held + kiln_part<T>::REGISTERS * step;
        else
            operands::rows(again, (pointer)queries, step);
        operands::template scores<COUNT>(sums, a, (pointer)keys, step);
    }
}

// total += weights times values, for 8 COUNT keys and 8 COLUMNS values of each.
template <class T, int PITCH, int COUNT, int COLUMNS>
static __device__ __forceinline__ void kiln_weighted(float *total, const float *weights,
                                                     const void *values) {
    typedef kiln_operands<T, PITCH> operands;
#pragma unroll
    for (int step = 0; step < 8 * COUNT / T::DEPTH; step++)
        operands::template weighted<COLUMNS>(total, weights,
                                             (const typename operands::element *)values, step);
}

// Float32 numbers in shared memory that operands were in before.
static __device__ __forceinline__ float kiln_number(const void *memory, int at) {
    return ((const float *)memory)[at];
}
static __device__ __forceinline__ void kiln_set_number(void *memory, int at, float value) {
    ((float *)memory)[at] = value;
}
