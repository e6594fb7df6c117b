/* internal.h: functions that the files of the core share; they are not part of the API. */
#ifndef KILN_INTERNAL_H
#define KILN_INTERNAL_H

#include <stdbool.h>

#include "kiln.h"

/* A shared library does not export them: of two libraries in a program, each calls its own. */
#ifdef __ELF__
#pragma GCC visibility push(hidden)
#endif

/* check.c: store an error, where detail is not null, and return its status. */
kiln_status kiln_fail(kiln_detail *detail, const kiln_detail *error);
/* check.c: the same for a status without further fields; KILN_OK clears the detail. */
kiln_status kiln_fail_plain(kiln_detail *detail, kiln_status status);

/* quotient and *remainder of value / divisor, by shift and subtract: 32-bit ARM has no 64-bit
 * division, and the compiler's helper function would be a dependency of the core. */
static inline uint64_t kiln_divide(uint64_t value, uint64_t divisor, uint64_t *remainder) {
    uint64_t quotient = 0, rest = 0;
    for (int bit = 0; bit < 64; bit++) {
        rest = rest << 1 | value >> 63;
        value <<= 1;
        quotient <<= 1;
        if (rest >= divisor) {
            rest -= divisor;
            quotient |= 1;
        }
    }
    *remainder = rest;
    return quotient;
}

/* check.c: shapes. Fill dims (free and derived ones) from the inputs' shapes, checking rank, dtype,
 * every fixed axis, and every dimension's range, multiple and agreement. */
kiln_status kiln_check_inputs(const kiln_model *model, const DLTensor *inputs, int64_t *dims,
                              kiln_detail *detail);
/* check.c: compare the outputs' shapes with `dims`, which are known. */
kiln_status kiln_check_outputs(const kiln_model *model, const DLTensor *outputs,
                               const int64_t *dims, kiln_detail *detail);

/* memory.c: check device, strides, null, address and alignment of each tensor, and that no output
 * overlaps other memory. Called after the shapes have been checked. */
kiln_status kiln_check_memory(const kiln_model *model, const DLTensor *inputs,
                              const DLTensor *outputs, const int64_t *dims,
                              const kiln_config *config, size_t arena_bytes, kiln_detail *detail);

/* memory.c: check that the caller's memory for `where` is not null, aligned and large enough; the
 * statuses of the three errors are `first` and the next two. Nothing is checked if none is needed.
 */
kiln_status kiln_check_block(const void *memory, size_t bytes, size_t needed, size_t align,
                             kiln_where where, kiln_status first, kiln_detail *detail);

/* params.c: accept or refuse an image, and set *payload to the address of the parameters. `bytes`
 * is ignored for the image that is linked into the model. */
kiln_status kiln_accept_params(const kiln_model *model, const void *image, size_t bytes,
                               uint32_t flags, const unsigned char **payload, kiln_detail *detail);

/* crc_small.c or crc_sliced.c: CRC-32 as zlib has it. */
uint32_t kiln_crc32(const unsigned char *data, size_t bytes);

/* The platform's file: the number of processors that threads can run on, at least 1. */
int32_t kiln_processors(void);

/* session.c: KILN_WRONG_ABI for a model of another version of Kiln. */
kiln_status kiln_check_abi(const kiln_model *model, kiln_detail *detail);
/* session.c: KILN_NOT_OPEN, or KILN_BUSY from the session's own on_step. */
kiln_status kiln_check_open(kiln_session *session);

#ifdef __ELF__
#pragma GCC visibility pop
#endif

#endif
