// memory.h: loads and stores as this processor does them, in place of CUTLASS's PTX.
#pragma once
#include "cutlass/arch/cache_operation.h"
#include "cutlass/cutlass.h"
namespace cutlass {
namespace arch {
template <class Access, int Bytes, CacheOperation::Kind = CacheOperation::Always>
struct global_load {
    global_load(Access &to, void const *from, bool predicate) {
        if (predicate)
            memcpy(&to, from, Bytes);
    }
};
template <class Access, int Bytes> struct global_store {
    global_store(Access const &from, void *to, bool predicate) {
        if (predicate)
            memcpy(to, &from, Bytes);
    }
};
} // namespace arch
} // namespace cutlass
#include "cutlass/arch/memory_sm75.h"
#include "cutlass/arch/memory_sm80.h"
