// cuda_on_cpu.h: enough of CUDA C++ to compile the kernels that TVM writes for this processor, and
// to run them: a test of what they compute, where there is no GPU. It says nothing of speed or of
// races that need two threads to happen at once.
//
// The threads of a block are fibers on one processor. A fiber runs until it waits at a barrier:
//   __syncthreads  until every thread of the block that has not ended waits at one too,
//   a shuffle      until every thread of the warp waits at a shuffle, at __syncthreads, or has
//   ended.
// KILN_CUDA_REVERSED=1 runs the threads from the last to the first: a kernel that reads what
// another thread has yet to write then gives something else.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

typedef unsigned int uint;
typedef unsigned char uchar;
typedef unsigned short ushort;

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__   static // blocks run one after the other
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_INF   ((double)INFINITY)
#define CUDART_NAN   ((double)NAN)

// What the compiler calls where the processor cannot convert to bfloat16 by itself, to nearest with
// ties to even. GCC's library has them, the one of zig has not.
extern "C" __attribute__((weak)) __bf16 __truncsfbf2(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1);
    const uint16_t half = (uint16_t)(isnan(x) ? bits >> 16 | 0x40u : rounded >> 16);
    __bf16 out;
    memcpy(&out, &half, sizeof out);
    return out;
}
// By way of float, rounded to odd: so the number is rounded to nearest once only.
extern "C" __attribute__((weak)) __bf16 __truncdfbf2(double x) {
    float near = (float)x;
    uint32_t bits;
    memcpy(&bits, &near, sizeof bits);
    if ((double)near != x && isfinite(near) && (bits & 1) == 0) {
        bits += fabs((double)near) < fabs(x) ? 1u : (uint32_t)-1;
        memcpy(&near, &bits, sizeof near);
    }
    return __truncsfbf2(near);
}

struct kiln_index {
    unsigned x, y, z;
};
static kiln_index threadIdx, blockIdx;

#ifndef KILN_CUDA_HEADERS // else they have these
#define KILN_VECTOR2(name, type)                                                                   \
    struct alignas(2 * sizeof(type)) name##2 {                                                     \
        type x, y;                                                                                 \
    };                                                                                             \
    static inline name##2 make_##name##2(type x, type y) {                                         \
        return {x, y};                                                                             \
    }
#define KILN_VECTOR4(name, type)                                                                   \
    struct alignas(4 * sizeof(type)) name##4 {                                                     \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    static inline name##4 make_##name##4(type x, type y, type z, type w) {                         \
        return {x, y, z, w};                                                                       \
    }
#define KILN_VECTORS(name, type) KILN_VECTOR2(name, type) KILN_VECTOR4(name, type)
KILN_VECTORS(char, signed char)
KILN_VECTORS(uchar, unsigned char)
KILN_VECTORS(short, short)
KILN_VECTORS(ushort, unsigned short)
KILN_VECTORS(int, int)
KILN_VECTORS(uint, unsigned int)
KILN_VECTORS(longlong, long long)
KILN_VECTORS(float, float)
KILN_VECTORS(double, double)
typedef _Float16 half; // the compiler rounds to nearest, as a GPU does
KILN_VECTORS(half, half)
typedef __bf16 nv_bfloat16;
KILN_VECTORS(nv_bfloat16, nv_bfloat16)
static inline nv_bfloat16 __float2bfloat16_rn(float x) {
    return (nv_bfloat16)x;
}
static inline half __float2half_rn(float x) {
    return (half)x;
}

template <class T> static inline T max(T a, T b) {
    return a > b ? a : b;
}
template <class T> static inline T min(T a, T b) {
    return a < b ? a : b;
}
#endif

// C libraries that follow C23 (glibc from 2.42 on) have a function of this name; CUDA's is meant.
static inline float kiln_rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}
#define rsqrtf kiln_rsqrtf

// ---- fibers
// -----------------------------------------------------------------------------------------------

enum kiln_wait {
    KILN_READY,
    KILN_AT_WARP,
    KILN_AT_BLOCK,
    KILN_ENDED
};

struct kiln_fiber {
    jmp_buf at;
    kiln_index index;
    kiln_wait wait;
    bool started;
};

static const size_t KILN_STACK = 256 * 1024;
static kiln_fiber kiln_fibers[1024];
static unsigned kiln_count, kiln_now;
static jmp_buf kiln_scheduler;
static ucontext_t kiln_start, kiln_back;
static unsigned char *kiln_stacks;
static void (*kiln_body)(void **);
static void **kiln_args;
static double kiln_lanes[1024]; // what the threads of a warp exchange; large enough for every type

static void kiln_wait_at(kiln_wait what) {
    kiln_fiber *self = &kiln_fibers[kiln_now];
    self->wait = what;
    if (_setjmp(self->at) == 0)
        _longjmp(kiln_scheduler, 1);
}

static void __syncthreads() {
    kiln_wait_at(KILN_AT_BLOCK);
}
static void __syncwarp(unsigned = 0xffffffffu) {
    kiln_wait_at(KILN_AT_WARP);
}

// Asynchronous copies to shared memory. Until the thread waits for them the target holds garbage,
// which shows if it is read.
static struct kiln_copy {
    void *to;
    const void *from;
    int bytes;
    bool loads;
    unsigned group;
} kiln_copies[1024][64];
static unsigned kiln_pending[1024], kiln_groups[1024];

template <int BYTES> static void kiln_copy_if(void *to, bool loads, const void *from) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "bytes of one instruction");
    if (kiln_pending[kiln_now] == 64 || (size_t)to % BYTES != 0 ||
        (loads && (size_t)from % BYTES != 0))
        abort();
    memset(to, 0xCD, BYTES);
    kiln_copies[kiln_now][kiln_pending[kiln_now]++] = {to, from, BYTES, loads,
                                                       kiln_groups[kiln_now]};
}
// Do the copies of the groups before `group`; copies of later groups are done as late as possible.
static void kiln_copies_until(unsigned group) {
    unsigned left = 0;
    for (unsigned i = 0; i < kiln_pending[kiln_now]; i++) {
        const kiln_copy one = kiln_copies[kiln_now][i];
        if (one.group >= group)
            kiln_copies[kiln_now][left++] = one;
        else if (one.loads)
            memcpy(one.to, one.from, one.bytes);
        else
            memset(one.to, 0, one.bytes);
    }
    kiln_pending[kiln_now] = left;
}
// Earlier launches are complete when a kernel begins: there is nothing to wait for.
static void kiln_after_launches() {
}
static void kiln_copies_done() {
    kiln_copies_until(++kiln_groups[kiln_now]);
}
static void kiln_copies_commit() {
    kiln_groups[kiln_now]++;
}
template <int GROUPS> static void kiln_copies_wait() {
    if (kiln_groups[kiln_now] >= GROUPS)
        kiln_copies_until(kiln_groups[kiln_now] - GROUPS);
}
template <class V> static V kiln_load_if(bool loads, const void *from) {
    return loads ? *static_cast<const V *>(from) : V(0);
}

// The value of the lane `from` of this warp, or `value` where there is no such lane.
template <class T> static T kiln_exchange(T value, unsigned from, bool within) {
    static_assert(sizeof(T) <= sizeof kiln_lanes[0], "shuffles of larger types are not known");
    memcpy(&kiln_lanes[kiln_now], &value, sizeof value);
    kiln_wait_at(KILN_AT_WARP);
    const unsigned lane = kiln_now / 32 * 32 + from;
    if (within && lane < kiln_count)
        memcpy(&value, &kiln_lanes[lane], sizeof value);
    kiln_wait_at(KILN_AT_WARP); // until all have read
    return value;
}
template <class T> static T __shfl_down_sync(unsigned, T value, unsigned delta, int width = 32) {
    const unsigned lane = kiln_now % 32;
    return kiln_exchange(value, lane + delta, lane % width + delta < (unsigned)width);
}
template <class T> static T __shfl_up_sync(unsigned, T value, unsigned delta, int width = 32) {
    const unsigned lane = kiln_now % 32;
    return kiln_exchange(value, lane - delta, lane % width >= delta);
}
template <class T> static T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
    const unsigned lane = kiln_now % 32;
    return kiln_exchange(value, lane ^ mask, (lane ^ mask) / width == lane / width);
}
template <class T> static T __shfl_sync(unsigned, T value, int from, int width = 32) {
    const unsigned lane = kiln_now % 32;
    return kiln_exchange(value, lane / width * width + from % width, true);
}

// ---- matrix units
// -----------------------------------------------------------------------------------------------

// Which thread has which element of a fragment is the hardware's affair. Here thread t of a warp
// has 8 elements of C: row t / 2, columns from t % 2 * 8 on. It keeps that row of A, and those
// columns of B. The sums of a tile are then made in the order of k.
namespace nvcuda {
namespace wmma {
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t {
    mem_row_major,
    mem_col_major
};
namespace precision {
struct tf32 {};
} // namespace precision
template <class T> struct kiln_stored { typedef T type; };
template <> struct kiln_stored<precision::tf32> { typedef float type; };
template <class T> using kiln_element = typename kiln_stored<T>::type;
template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {
    static_assert(M == 16 && N == 16 && (K == 16 || K == 8), "other tiles are not known");
    kiln_element<T> at[K][8]; // A: [k][0]; B: [k][column]; C: [0][column]
};
// A float with 10 bits of mantissa. `added` 0x1000: rounded, ties away from zero, as the
// instruction cvt.rna.tf32.f32 does; 0: the other 13 bits are cut off, as the matrix units do with
// any operand.
static inline float kiln_cut(float x, uint32_t added) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x))
        return x;
    bits = (bits + added) & 0xffffe000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline float __float_to_tf32(float x) {
    return kiln_cut(x, 0x1000u);
}
template <class T, class Sum> static inline Sum kiln_factor(kiln_element<T> x) {
    return __is_same(T, precision::tf32) ? (Sum)kiln_cut((float)x, 0) : (Sum)x;
}
static inline unsigned kiln_row() {
    return kiln_now % 32 / 2;
}
static inline unsigned kiln_column() {
    return kiln_now % 2 * 8;
}
// As on a GPU: a fragment begins at 32 bytes, a row at 16 bytes.
template <class T> static void kiln_check(const T *from, unsigned stride) {
    if ((uintptr_t)from % 32 != 0 || stride * sizeof(T) % 16 != 0)
        abort();
}
template <int K, class T, class L>
static void load_matrix_sync(fragment<matrix_a, 16, 16, K, T, L> &to, const kiln_element<T> *from,
                             unsigned s) {
    kiln_check(from, s);
    const bool rows = __is_same(L, row_major);
    for (unsigned k = 0; k < K; k++)
        to.at[k][0] = rows ? from[kiln_row() * s + k] : from[k * s + kiln_row()];
}
template <int K, class T, class L>
static void load_matrix_sync(fragment<matrix_b, 16, 16, K, T, L> &to, const kiln_element<T> *from,
                             unsigned s) {
    kiln_check(from, s);
    const bool rows = __is_same(L, row_major);
    for (unsigned k = 0; k < K; k++)
        for (unsigned j = 0; j < 8; j++) {
            const unsigned column = kiln_column() + j;
            to.at[k][j] = rows ? from[k * s + column] : from[column * s + k];
        }
}
template <int K, class T>
static void fill_fragment(fragment<accumulator, 16, 16, K, T> &to, T value) {
    for (unsigned j = 0; j < 8; j++)
        to.at[0][j] = value;
}
// to = a b + c. Sum: int for operands of 8-bit integers, else float.
template <int K, class Sum, class T, class A, class B>
static void mma_sync(fragment<accumulator, 16, 16, K, Sum> &to,
                     const fragment<matrix_a, 16, 16, K, T, A> &a,
                     const fragment<matrix_b, 16, 16, K, T, B> &b,
                     const fragment<accumulator, 16, 16, K, Sum> &c) {
    static_assert(__is_same(Sum, float) == (sizeof(kiln_element<T>) > 1),
                  "the sums of these operands");
    for (unsigned j = 0; j < 8; j++) {
        Sum sum = c.at[0][j];
        for (unsigned k = 0; k < K; k++)
            sum += kiln_factor<T, Sum>(a.at[k][0]) * kiln_factor<T, Sum>(b.at[k][j]);
        to.at[0][j] = sum;
    }
}
template <int K, class Sum>
static void store_matrix_sync(Sum *to, const fragment<accumulator, 16, 16, K, Sum> &from,
                              unsigned s, layout_t layout) {
    kiln_check(to, s);
    for (unsigned j = 0; j < 8; j++) {
        const unsigned column = kiln_column() + j;
        to[layout == mem_row_major ? kiln_row() * s + column : column * s + kiln_row()] =
            from.at[0][j];
    }
}
} // namespace wmma
} // namespace nvcuda

static void kiln_enter() {
    kiln_fiber *self = &kiln_fibers[kiln_now];
    kiln_body(kiln_args);
    self->wait = KILN_ENDED;
    _longjmp(kiln_scheduler, 1);
}

static void kiln_resume(unsigned number) {
    kiln_fiber *fiber = &kiln_fibers[number];
    kiln_now = number;
    threadIdx = fiber->index;
    fiber->wait = KILN_READY;
    if (_setjmp(kiln_scheduler) != 0)
        return;
    if (fiber->started)
        _longjmp(fiber->at, 1);
    fiber->started = true;
    getcontext(&kiln_start);
    kiln_start.uc_stack.ss_sp = kiln_stacks + number * KILN_STACK;
    kiln_start.uc_stack.ss_size = KILN_STACK;
    kiln_start.uc_link = NULL;
    makecontext(&kiln_start, kiln_enter, 0);
    swapcontext(&kiln_back, &kiln_start);
}

// Let all threads that wait at a barrier which is complete go on; false where none can.
static bool kiln_release() {
    bool block = true, any = false;
    for (unsigned i = 0; i < kiln_count; i++)
        block = block && kiln_fibers[i].wait >= KILN_AT_BLOCK;
    for (unsigned i = 0; i < kiln_count; i++)
        if (kiln_fibers[i].wait == KILN_AT_WARP ||
            (block && kiln_fibers[i].wait == KILN_AT_BLOCK)) {
            kiln_fibers[i].wait = KILN_READY;
            any = true;
        }
    return any;
}

static void kiln_run_fibers(bool reversed) {
    for (unsigned i = 0; i < kiln_count; i++) {
        kiln_fibers[i].wait = KILN_READY;
        kiln_fibers[i].started = false;
        if (kiln_pending[i] != 0)
            abort(); // the thread before ended without waiting for its copies
        kiln_groups[i] = 0;
    }
    // Each pass runs every thread that is ready up to its next barrier.
    do {
        for (unsigned i = 0; i < kiln_count; i++) {
            const unsigned number = reversed ? kiln_count - 1 - i : i;
            if (kiln_fibers[number].wait == KILN_READY)
                kiln_resume(number);
        }
    } while (kiln_release());
}

// Run `body` for each thread of each block. barriers: whether it has any; those without are plain
// loops.
static void kiln_on_cpu(void (*body)(void **), bool barriers, const unsigned *grid,
                        const unsigned *block, void **args) {
    const char *set = getenv("KILN_CUDA_REVERSED");
    const bool reversed = set != NULL && *set == '1';
    kiln_body = body;
    kiln_args = args;
    kiln_count = block[0] * block[1] * block[2];
    if (kiln_count > 1024)
        abort();
    if (kiln_stacks == NULL)
        kiln_stacks = (unsigned char *)mmap(NULL, 1024 * KILN_STACK, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (unsigned i = 0; i < kiln_count; i++)
        kiln_fibers[i].index = {i % block[0], i / block[0] % block[1], i / block[0] / block[1]};
    for (blockIdx.z = 0; blockIdx.z < grid[2]; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < grid[1]; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < grid[0]; blockIdx.x++) {
                if (barriers) {
                    kiln_run_fibers(reversed);
                    continue;
                }
                for (unsigned i = 0; i < kiln_count; i++) {
                    threadIdx = kiln_fibers[reversed ? kiln_count - 1 - i : i].index;
                    body(args);
                }
            }
}
