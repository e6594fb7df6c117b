/* params.c: accept a params image only if it is whole and belongs to the code that will read it.
 *
 * An image is a header of 128 bytes, little-endian, and the payload, padded with zeros to a
 * multiple of 64:
 *     0  8 bytes "KILNPAR1"      16  u64 payload bytes before padding    64  zeros
 *     8  u32 version             24  u64 checksum of the padded payload
 *    12  u32 header bytes        32  32 bytes hash of plan and parameters
 *
 * The checksum is Fletcher's with 32-bit words modulo 4294967291, the largest prime below 2^32:
 * no table, two additions a word, and unlike the usual modulus 2^32 - 1 it tells erased flash
 * (ones) from zeros. It finds accidents; it is no signature.
 */
#include "internal.h"

#define HEADER_BYTES 128u
#define VERSION      1u
#define HASH_BYTES   32u
/* Words between two reductions: with k words `second` stays below 2^32 + 2^32 (k + 1)^2 / 2 < 2^64.
 */
#define BLOCK_WORDS 65536u

_Static_assert(HEADER_BYTES % KILN_PARAMS_ALIGN == 0, "the payload is aligned when the image is");

static uint32_t read_u32(const unsigned char *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t read_u64(const unsigned char *at) {
    return read_u32(at) | (uint64_t)read_u32(at + 4) << 32;
}

static bool equal(const unsigned char *a, const unsigned char *b, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (a[i] != b[i])
            return false;
    return true;
}

/* value modulo 2^32 - 5, by folding: 2^32 is congruent to 5. */
static uint64_t reduce(uint64_t value) {
    value = (value & UINT32_MAX) + 5 * (value >> 32);
    value = (value & UINT32_MAX) + 5 * (value >> 32);
    return value >= 4294967291u ? value - 4294967291u : value;
}

static uint64_t checksum(const unsigned char *data, size_t bytes) {
    uint64_t first = 0, second = 0;
    for (size_t words = bytes / 4; words > 0;) {
        size_t block = words < BLOCK_WORDS ? words : BLOCK_WORDS;
        words -= block;
        for (; block > 0; block--, data += 4) {
            first += read_u32(data);
            second += first;
        }
        first = reduce(first);
        second = reduce(second);
    }
    return second << 32 | first;
}

kiln_status kiln_check_params(const kiln_model *model, const void *image, size_t bytes,
                              uint32_t flags, const unsigned char **payload, kiln_detail *detail) {
    const unsigned char *header = image;
    const size_t padding = (0 - model->params_bytes) % KILN_PARAMS_ALIGN;
    const size_t padded = model->params_bytes + padding;
    const bool linked = image == NULL;
    kiln_detail error = {.where = KILN_AT_PARAMS, .index = -1, .axis = -1};

    *payload = NULL;
    if (model->params_bytes == 0)
        return KILN_OK;
    if (linked) {
        header = model->params;
        bytes = SIZE_MAX;
    }
    error.status = KILN_PARAMS_MISSING;
    if (header == NULL)
        return kiln_fail(detail, &error);

    error.status = KILN_PARAMS_ALIGNMENT;
    error.value = (int64_t)((uintptr_t)header % KILN_PARAMS_ALIGN);
    error.multiple = KILN_PARAMS_ALIGN;
    if (error.value != 0)
        return kiln_fail(detail, &error);

    error.status = KILN_PARAMS_TRUNCATED;
    error.value = (int64_t)bytes;
    error.min = (int64_t)(HEADER_BYTES + padded);
    error.multiple = 0;
    if (bytes < HEADER_BYTES)
        return kiln_fail(detail, &error);
    if (!equal(header, (const unsigned char *)"KILNPAR1", 8)) {
        error.status = KILN_PARAMS_NOT_PARAMS;
        return kiln_fail(detail, &error);
    }
    if (read_u32(header + 8) != VERSION) {
        error.status = KILN_PARAMS_VERSION;
        error.value = read_u32(header + 8);
        error.min = error.max = VERSION;
        return kiln_fail(detail, &error);
    }
    if (!equal(header + 32, model->hash, HASH_BYTES)) {
        error.status = KILN_PARAMS_OTHER_BUILD;
        return kiln_fail(detail, &error);
    }
    if (bytes - HEADER_BYTES < padded)
        return kiln_fail(detail, &error); /* truncated */

    error.status = KILN_PARAMS_CORRUPT;
    if (read_u32(header + 12) != HEADER_BYTES || read_u64(header + 16) != model->params_bytes)
        return kiln_fail(detail, &error);
    for (size_t i = 64; i < HEADER_BYTES; i++)
        if (header[i] != 0)
            return kiln_fail(detail, &error);
    if ((flags & KILN_SKIP_CHECKSUM) == 0 && !(linked && model->params_trusted) &&
        checksum(header + HEADER_BYTES, padded) != read_u64(header + 24))
        return kiln_fail(detail, &error);
    *payload = header + HEADER_BYTES;
    return KILN_OK;
}
