/* cuda_convert.h: an input of uint8 or float16 as the argument of the kernel that makes float32 of
 * it. */
#ifndef KILN_CUDA_CONVERT_H
#define KILN_CUDA_CONVERT_H

#include <stdbool.h>

#include "kiln_cuda.h"

enum {
    KILN_CONVERSION_AXES = 6,
    KILN_CONVERSION_CHANNELS = 16, /* of one launch */
    KILN_CONVERSION_THREADS = 256  /* of a block, each of which converts one element */
};

/* The kernel's only parameter; kiln_conversion of kiln.emit.cuda_conversions. Strides are in
 * elements. */
typedef struct kiln_cuda_conversion {
    uint64_t from, to; /* CUdeviceptr */
    uint64_t count;    /* elements of this launch */
    uint64_t sizes[KILN_CONVERSION_AXES];
    int64_t from_strides[KILN_CONVERSION_AXES], to_strides[KILN_CONVERSION_AXES];
    uint32_t axes;
    uint32_t channel_axis; /* whose index chooses scale and offset; `axes`: all have the first */
    uint32_t is_half;      /* 1: float16, 0: uint8 */
    uint32_t channels;     /* of the input: size of its channel axis, or 1 */
    float scale[KILN_CONVERSION_CHANNELS], offset[KILN_CONVERSION_CHANNELS];
} kiln_cuda_conversion;

/* Whether the tensor is to be converted for this input of a model. */
bool kiln_cuda_converts(const kiln_tensor *want, const DLTensor *given);

/* The conversion of a tensor, whose shape has been checked, to memory at `to`, for all channels at
 * once: without scale and offset. `compact`: the tensor must fill its memory, in any order of its
 * axes. `error` is filled in, but for its status, which is returned. */
kiln_status kiln_cuda_conversion_of(const DLTensor *given, const kiln_cuda_scaling *scaling,
                                    uint64_t to, bool compact, kiln_cuda_conversion *conversion,
                                    kiln_detail *error);

/* The part of it for the channels from `first` on, as many as one launch has; returns how many. */
uint32_t kiln_cuda_conversion_part(const kiln_cuda_conversion *whole,
                                   const kiln_cuda_scaling *scaling, uint32_t first,
                                   kiln_cuda_conversion *part);

#endif
