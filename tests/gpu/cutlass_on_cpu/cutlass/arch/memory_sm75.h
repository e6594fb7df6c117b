// memory_sm75.h: ldmatrix, by what the PTX ISA says of it (9.7.14, "ldmatrix"), and loads from
// shared memory.
#pragma once
#include "cutlass/array.h"
#include "cutlass/layout/matrix.h"
namespace cutlass {
namespace arch {
template <class Layout, int Count> void ldsm(Array<unsigned, Count> &to, void const *row) {
    bool const transposed = std::is_same<Layout, layout::ColumnMajor>::value;
    unsigned const lane = threadIdx.x % 32;
    for (int i = 0; i < Count; i++) {
        uint16_t pair[2];
        for (unsigned k = 0; k < 2; k++) {
            unsigned const r = transposed ? lane % 4 * 2 + k : lane / 4,
                           c = transposed ? lane / 4 : lane % 4 * 2 + k;
            pair[k] = reinterpret_cast<uint16_t const *>(kiln_exchange(row, 8 * i + r, true))[c];
        }
        memcpy(&to[i], pair, 4);
    }
}
template <class Access, int Bytes> struct shared_load_op {
    shared_load_op(Access &to, void const *from) {
        to = *static_cast<Access const *>(from);
    }
};
template <class Access> void shared_load(Access &to, void const *from) {
    to = *static_cast<Access const *>(from);
}
inline unsigned cutlass_get_smem_pointer(void const *) {
    abort();
}
} // namespace arch
} // namespace cutlass
