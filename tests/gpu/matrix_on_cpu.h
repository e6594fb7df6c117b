// matrix_on_cpu.h: matrix_instructions.cuh for this processor, by what the PTX ISA says of which
// lane holds which elements (9.7.14, "ldmatrix", and "Matrix Fragments for mma.m16n8k8" and "...
// m16n8k16"). cuda_on_cpu.h includes it.
#pragma once

// What each thread of a block passes to an instruction of its warp.
static const void *kiln_given[1024][2];

static void kiln_load_matrices(unsigned *to, const void *row, bool transposed) {
    if ((uintptr_t)row % 16 != 0)
        abort();
    kiln_given[kiln_now][0] = row;
    kiln_wait_at(KILN_AT_WARP);
    const unsigned lane = kiln_now % 32, first = kiln_now - lane;
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 2; k++) {
            const unsigned r = transposed ? lane % 4 * 2 + k : lane / 4,
                           c = transposed ? lane / 4 : lane % 4 * 2 + k;
            const uint16_t *from = static_cast<const uint16_t *>(kiln_given[first + 8 * i + r][0]);
            memcpy(reinterpret_cast<char *>(to + i) + 2 * k, from + c, 2);
        }
    kiln_wait_at(KILN_AT_WARP); // until all have read
}
static void kiln_matrices(unsigned *to, const void *row) {
    kiln_load_matrices(to, row, false);
}
static void kiln_transposed(unsigned *to, const void *row) {
    kiln_load_matrices(to, row, true);
}

// c += a b; `value` is element `number` of a register.
template <class Type>
static void kiln_multiply_matrices(float *c, const unsigned *a, const unsigned *b) {
    const unsigned per = Type::PER, count = 4 * per; // elements of a register, and of 4 lanes
    kiln_given[kiln_now][0] = a;
    kiln_given[kiln_now][1] = b;
    kiln_wait_at(KILN_AT_WARP);
    const unsigned lane = kiln_now % 32, first = kiln_now - lane;
    float sums[4];
    memcpy(sums, c, sizeof sums);
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = lane / 4, column = lane % 4 * 2 + i % 2;
        for (unsigned k = 0; k < 2 * count; k++) {
            const unsigned owner = k % count / per, part = k / count;
            const unsigned *of_a =
                static_cast<const unsigned *>(kiln_given[first + row * 4 + owner][0]);
            const unsigned *of_b =
                static_cast<const unsigned *>(kiln_given[first + column * 4 + owner][1]);
            sums[i] +=
                Type::value(of_a[2 * part + i / 2], k % per) * Type::value(of_b[part], k % per);
        }
    }
    kiln_wait_at(KILN_AT_WARP);
    memcpy(c, sums, sizeof sums);
}

template <class Element> struct kiln_pair { // 16 bits
    enum {
        DEPTH = 16,
        PER = 2
    };
    static unsigned two(float x, float y) {
        const Element pair[2] = {(Element)x, (Element)y};
        unsigned word;
        memcpy(&word, pair, sizeof word);
        return word;
    }
    static float value(unsigned word, unsigned number) {
        Element pair[2];
        memcpy(pair, &word, sizeof word);
        return (float)pair[number];
    }
    static void multiply(float *c, const unsigned *a, const unsigned *b) {
        kiln_multiply_matrices<kiln_pair>(c, a, b);
    }
};
typedef kiln_pair<half> kiln_f16;
typedef kiln_pair<nv_bfloat16> kiln_bf16;

struct kiln_tf32 {
    enum {
        DEPTH = 8,
        PER = 1
    };
    static unsigned one(float x) {
        x = nvcuda::wmma::__float_to_tf32(x);
        unsigned word;
        memcpy(&word, &x, sizeof word);
        return word;
    }
    static float value(unsigned word, unsigned) {
        float x;
        memcpy(&x, &word, sizeof x);
        return nvcuda::wmma::kiln_cut(x, 0);
    }
    static void multiply(float *c, const unsigned *a, const unsigned *b) {
        kiln_multiply_matrices<kiln_tf32>(c, a, b);
    }
};

static inline float kiln_exp(float x) {
    return expf(x);
}
