/* image.c: a model from an image at any address; see kiln_image.h. Linked only into
 * programs that call these functions.
 *
 * 1. The header is read byte by byte, and its CRC compared: from then on its numbers are known to
 *    be undamaged, but not who wrote them. All places are checked to be inside.
 * 2. Address, ABI, machine, processor and version must fit, the CRC of all the rest must be right,
 *    and the caller's check of the signature must accept it.
 * 3. The tables are copied, and each pointer in them gets the address of what it points to: in the
 *    copy for places in the tables, in the image for all others.
 * 4. The model is compared with the one that the program was built for.
 */
#include "../include/kiln_image.h"

#include "internal.h"

#define FORMAT       1u
#define NAME         152u
#define NAME_BYTES   64u
#define HEADER_BYTES (uint32_t) KILN_IMAGE_HEADER

/* The number of the architecture in ELF files, bytes of a pointer << 16, and a number of the
 * calling convention or instruction set, where an architecture has several, << 24. */
#if defined(__x86_64__) && !defined(_WIN32)
#define MACHINE (62u | 8u << 16)
#elif defined(__aarch64__)
#define MACHINE (183u | 8u << 16)
#elif defined(__arm__) && defined(__ARM_ARCH_PROFILE) && __ARM_ARCH_PROFILE == 'M'
#define MACHINE (40u | 4u << 16 | 1u << 24)
#elif defined(__arm__)
#define MACHINE (40u | 4u << 16)
#elif defined(__riscv)
#if defined(__riscv_32e) || defined(__riscv_64e)
#define MACHINE_ABI 8u
#elif defined(__riscv_float_abi_double)
#define MACHINE_ABI 4u
#elif defined(__riscv_float_abi_single)
#define MACHINE_ABI 2u
#else
#define MACHINE_ABI 0u
#endif
#define MACHINE (243u | __riscv_xlen / 8u << 16 | MACHINE_ABI << 24)
#else
#define MACHINE 0u /* no image fits */
#endif

/* The numbers of a header. */
typedef struct header {
    uint32_t format, bytes_of_header, abi, machine, align, crc, tables, tables_bytes, relocations,
        relocations_count, model;
    uint64_t cpu_features, bytes, version;
} header;

static uint32_t read_u32(const unsigned char *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t read_u64(const unsigned char *at) {
    return read_u32(at) | (uint64_t)read_u32(at + 4) << 32;
}

static kiln_status fail(kiln_detail *detail, kiln_status status, uint64_t value, uint64_t least,
                        uint64_t most, uint64_t multiple) {
    const kiln_detail error = {.status = status,
                               .where = KILN_AT_IMAGE,
                               .index = -1,
                               .axis = -1,
                               .value = (int64_t)value,
                               .min = (int64_t)least,
                               .max = (int64_t)most,
                               .multiple = (int64_t)multiple};
    return kiln_fail(detail, &error);
}

static kiln_status corrupt(kiln_detail *detail) {
    return fail(detail, KILN_IMAGE_CORRUPT, 0, 0, 0, 0);
}

/* Whether `count` bytes at `first` are after the header and inside the image. */
static bool inside(const header *found, uint64_t first, uint64_t count) {
    return first >= HEADER_BYTES && first <= found->bytes && count <= found->bytes - first;
}

/* The header's numbers, once its CRC is right and all places are inside. */
static kiln_status read_header(const unsigned char *image, size_t bytes, header *found,
                               kiln_detail *detail) {
    unsigned char copy[KILN_IMAGE_HEADER];
    if (bytes < HEADER_BYTES)
        return fail(detail, KILN_IMAGE_TRUNCATED, bytes, HEADER_BYTES, 0, 0);
    for (size_t i = 0; i < 8; i++)
        if (image[i] != (unsigned char)"KILNIMG1"[i])
            return fail(detail, KILN_IMAGE_NOT_IMAGE, 0, 0, 0, 0);
    found->format = read_u32(image + 8);
    if (found->format != FORMAT)
        return fail(detail, KILN_IMAGE_FORMAT, found->format, FORMAT, FORMAT, 0);
    for (size_t i = 0; i < HEADER_BYTES; i++)
        copy[i] = i >= 56 && i < 60 ? 0 : image[i];
    if (kiln_crc32(copy, HEADER_BYTES) != read_u32(image + 56))
        return corrupt(detail);
    found->bytes_of_header = read_u32(image + 12);
    found->abi = read_u32(image + 16);
    found->machine = read_u32(image + 20);
    found->cpu_features = read_u64(image + 24);
    found->bytes = read_u64(image + 32);
    found->version = read_u64(image + 40);
    found->align = read_u32(image + 48);
    found->crc = read_u32(image + 52);
    found->tables = read_u32(image + 64);
    found->tables_bytes = read_u32(image + 68);
    found->relocations = read_u32(image + 72);
    found->relocations_count = read_u32(image + 76);
    found->model = read_u32(image + 80);
    const bool whole = found->bytes_of_header == HEADER_BYTES && found->bytes <= SIZE_MAX / 2 &&
                       found->align >= KILN_PARAMS_ALIGN &&
                       (found->align & (found->align - 1)) == 0 &&
                       inside(found, found->tables, found->tables_bytes) &&
                       inside(found, found->relocations, (uint64_t)found->relocations_count * 4) &&
                       image[NAME + NAME_BYTES - 1] == 0;
    if (!whole)
        return corrupt(detail);
    if (bytes < found->bytes + KILN_IMAGE_RECORD_BYTES)
        return fail(detail, KILN_IMAGE_TRUNCATED, bytes, found->bytes + KILN_IMAGE_RECORD_BYTES, 0,
                    0);
    return KILN_OK;
}

kiln_status kiln_image_read(const void *image, size_t bytes, kiln_image_about *about,
                            kiln_detail *detail) {
    const unsigned char *at = image;
    header found;
    if (image == NULL || about == NULL)
        return kiln_fail_plain(detail, KILN_NULL_ARGUMENT);
    *about = (kiln_image_about){.bytes = 0};
    const kiln_status status = read_header(at, bytes, &found, detail);
    if (status == KILN_OK)
        *about = (kiln_image_about){.name = (const char *)at + NAME,
                                    .version = found.version,
                                    .bytes = (size_t)found.bytes,
                                    .tables_bytes = found.tables_bytes,
                                    .align = found.align,
                                    .cpu_features = found.cpu_features,
                                    .digest = at + 88,
                                    .hash = at + 120};
    return status;
}

/* Whether this program can run the image at its address, on this processor. */
static kiln_status fits(const unsigned char *image, const header *found, uint64_t least,
                        kiln_detail *detail) {
    const uint64_t lacks = found->cpu_features == 0
                               ? 0
                               : found->cpu_features & ~kiln_cpu_features(found->cpu_features);
    const uintptr_t past = (uintptr_t)image & (found->align - 1);
    if (past != 0)
        return fail(detail, KILN_IMAGE_ALIGNMENT, past, 0, 0, found->align);
    if (found->abi != KILN_ABI)
        return fail(detail, KILN_WRONG_ABI, found->abi, KILN_ABI, KILN_ABI, 0);
    if (found->machine != MACHINE)
        return fail(detail, KILN_IMAGE_MACHINE, found->machine, MACHINE, MACHINE, 0);
    if (lacks != 0)
        return fail(detail, KILN_CPU, lacks, found->cpu_features, 0, 0);
    if (found->version < least)
        return fail(detail, KILN_IMAGE_OLD, found->version, least, 0, 0);
    if (kiln_crc32(image + HEADER_BYTES, (size_t)found->bytes - HEADER_BYTES) != found->crc)
        return corrupt(detail);
    return KILN_OK;
}

/* Copy the tables, and give their pointers the addresses of this place. */
static kiln_status place(const unsigned char *image, const header *found, unsigned char *tables,
                         kiln_detail *detail) {
    const uint64_t first = found->tables, end = first + found->tables_bytes;
    const uint32_t word = (uint32_t)sizeof(void *);
    if (found->tables_bytes < sizeof(kiln_model) ||
        found->model > found->tables_bytes - sizeof(kiln_model) ||
        found->model % _Alignof(kiln_model) != 0)
        return corrupt(detail);
    for (uint32_t i = 0; i < found->relocations_count; i++) {
        const uint32_t at = read_u32(image + found->relocations + 4 * (size_t)i);
        if (at > found->tables_bytes - word || at % word != 0)
            return corrupt(detail);
    }
    for (uint32_t i = 0; i < found->tables_bytes; i++)
        tables[i] = image[first + i];
    for (uint32_t i = 0; i < found->relocations_count; i++) {
        unsigned char *at = tables + read_u32(image + found->relocations + 4 * (size_t)i);
        const uint64_t to = word == 8 ? read_u64(at) : read_u32(at);
        const uintptr_t base =
            to >= first && to < end ? (uintptr_t)tables - (uintptr_t)first : (uintptr_t)image;
        const uintptr_t address = base + (uintptr_t)to;
        for (uint32_t byte = 0; byte < word; byte++)
            at[byte] = (unsigned char)(address >> 8 * byte);
    }
    return KILN_OK;
}

static kiln_status check_tables(const unsigned char *image, size_t bytes, const void *tables,
                                size_t tables_bytes, const header *found, kiln_detail *detail) {
    const uintptr_t at = (uintptr_t)tables, begin = (uintptr_t)image;
    const kiln_status status =
        kiln_check_block(tables, tables_bytes, found->tables_bytes, KILN_IMAGE_TABLES_ALIGN,
                         KILN_AT_IMAGE, KILN_ARENA_NULL, NULL);
    if (status != KILN_OK)
        return fail(detail, KILN_IMAGE_MEMORY, tables == NULL ? 0 : tables_bytes,
                    found->tables_bytes, 0, KILN_IMAGE_TABLES_ALIGN);
    if (at - begin < bytes || begin - at < found->tables_bytes)
        return fail(detail, KILN_OVERLAP, 0, 0, 0, 0);
    return KILN_OK;
}

kiln_status kiln_image_open(kiln_image *opened, const void *image, size_t bytes, void *tables,
                            size_t tables_bytes, const kiln_image_rules *rules,
                            kiln_detail *detail) {
    static const kiln_image_rules any = {NULL, 0, NULL, NULL};
    header found;
    if (opened == NULL)
        return kiln_fail_plain(detail, KILN_NULL_ARGUMENT);
    *opened = (kiln_image){.model = NULL};
    if (image == NULL)
        return kiln_fail_plain(detail, KILN_NULL_ARGUMENT);
    if (rules == NULL)
        rules = &any;
    kiln_status status = read_header(image, bytes, &found, detail);
    if (status == KILN_OK)
        status = fits(image, &found, rules->least, detail);
    if (status == KILN_OK && rules->check != NULL) {
        const int32_t refused = rules->check(rules->user, image, (size_t)found.bytes);
        if (refused != 0)
            status = fail(detail, KILN_LOAD_REFUSED, (uint64_t)(int64_t)refused, 0, 0, 0);
    }
    if (status == KILN_OK)
        status = check_tables(image, bytes, tables, tables_bytes, &found, detail);
    if (status == KILN_OK)
        status = place(image, &found, tables, detail);
    if (status != KILN_OK)
        return status;
    const kiln_model *model = (const void *)((const unsigned char *)tables + found.model);
    status = rules->built != NULL ? kiln_compatible(model, rules->built, detail)
                                  : kiln_fail_plain(detail, KILN_OK);
    if (status != KILN_OK)
        return status;
    *opened =
        (kiln_image){.model = model, .version = found.version, .state_bytes = model->state_bytes};
    for (uint32_t i = 0; i < model->buckets_count; i++)
        if (model->buckets[i].arena_bytes > opened->arena_bytes)
            opened->arena_bytes = model->buckets[i].arena_bytes;
    return KILN_OK;
}

kiln_status kiln_image_choose(kiln_image *opened, const kiln_image_slot *slots, uint32_t count,
                              void *tables, size_t tables_bytes, const kiln_image_rules *rules,
                              uint32_t *slot, kiln_detail *detail) {
    uint32_t tried = 0;
    if (opened == NULL || slots == NULL || count == 0 || count > KILN_IMAGE_SLOTS)
        return kiln_fail_plain(detail, KILN_NULL_ARGUMENT);
    for (;;) {
        /* The next one: of those with a header the greatest version, then those without. */
        uint32_t next = count;
        uint64_t greatest = 0;
        bool has_header = false;
        for (uint32_t i = 0; i < count; i++) {
            header found;
            if ((tried >> i & 1u) != 0)
                continue;
            const bool good = slots[i].image != NULL &&
                              read_header(slots[i].image, slots[i].bytes, &found, NULL) == KILN_OK;
            if (next == count || (good && (!has_header || found.version > greatest))) {
                next = i;
                has_header = good;
                greatest = good ? found.version : 0;
            }
        }
        const kiln_status status = kiln_image_open(opened, slots[next].image, slots[next].bytes,
                                                   tables, tables_bytes, rules, detail);
        tried |= 1u << next;
        if (status == KILN_OK && slot != NULL)
            *slot = next;
        if (status == KILN_OK || tried == UINT32_MAX >> (32 - count))
            return status;
    }
}
