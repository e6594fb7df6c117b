/* params.c: accept a params image only if it is whole and belongs to the code that will read it.
 *
 * An image is a header of 128 bytes, little-endian, and the payload, padded with zeros to a
 * multiple of 64:
 *     0  8 bytes "KILNPAR1"      16  u64 payload bytes before padding    64  zeros
 *     8  u32 version             24  u32 CRC-32 of the padded payload
 *    12  u32 header bytes        28  u32 zero
 *                                32  32 bytes hash of plan and parameters
 *
 * The CRC is that of zlib (crc_small.c, crc_sliced.c). Version 1 had Fletcher's sums in its place.
 */
#include "internal.h"

#define HEADER_BYTES (unsigned)KILN_PARAMS_HEADER
#define VERSION      2u
#define HASH_BYTES   32u

/* An internal flag in addition to those of kiln_config: also read a payload linked with the code.
 */
#define VERIFY_LINKED 0x80000000u

_Static_assert(HEADER_BYTES % KILN_PARAMS_ALIGN == 0, "the payload is aligned when the image is");

/* The address of a word of an image whose alignment has been checked: one load reads it. */
#ifdef __GNUC__
#define WORD(at) __builtin_assume_aligned(at, 4)
#else
#define WORD(at) (at)
#endif

static uint32_t read_u32(const unsigned char *field) {
    const unsigned char *at = WORD(field);
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

kiln_status kiln_accept_params(const kiln_model *model, const void *image, size_t bytes,
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
    const bool trusted = linked && model->params_trusted && (flags & VERIFY_LINKED) == 0;
    if ((flags & KILN_SKIP_CHECKSUM) == 0 && !trusted &&
        kiln_crc32(header + HEADER_BYTES, padded) != read_u64(header + 24))
        return kiln_fail(detail, &error);
    *payload = header + HEADER_BYTES;
    return model->check_parts == NULL ? KILN_OK : model->check_parts(model, flags, detail);
}

kiln_status kiln_check_params(const kiln_model *model, const void *params, size_t bytes,
                              kiln_detail *detail) {
    const unsigned char *payload;
    kiln_detail error = {
        .status = KILN_NULL_ARGUMENT, .where = KILN_AT_PARAMS, .index = -1, .axis = -1};
    if (model == NULL)
        return kiln_fail(detail, &error);
    const kiln_status status = kiln_check_abi(model, detail);
    if (status != KILN_OK)
        return status;
    return kiln_accept_params(model, params, bytes, VERIFY_LINKED, &payload, detail);
}
