/* kiln_image.h: run a model from an image, without an operating system and without linking it.
 *
 *     static _Alignas(16) unsigned char tables[2048];      as many as `kiln image` prints
 *     static const kiln_image_slot slots[] = {{(const void *)0x08080000, 0x40000},
 *                                             {(const void *)0x080C0000, 0x40000}};
 *     const kiln_image_rules rules = {.built = &net_interface, .least = stored_version(),
 *                                     .check = signed_by_us};
 *     kiln_image image;
 *     if (kiln_image_choose(&image, slots, 2, tables, sizeof tables, &rules, &slot, &detail) ==
 *         KILN_OK) {
 *         store_version(image.version);                    once the image has proved itself
 *         kiln_open(&session, image.model, &config);
 *         net_run_loaded(&session, ...);
 *     }
 *
 * An image holds kernels, plan and parameters of one model. Its code refers to nothing outside of
 * it, and runs where it is stored, in flash or in RAM, at any address that is a multiple of
 * kiln_image_about.align: nothing is copied but the tables with pointers, some hundred bytes, which
 * are put into the caller's memory and given the addresses of this place. Functions here need
 * memcpy and memset only, write no global, and check everything before they write to the tables.
 *
 * The layout, numbers in little-endian order:
 *
 *       0  8 bytes "KILNIMG1"            64  u32 first byte of the tables
 *       8  u32 version of this format    68  u32 bytes of the tables
 *      12  u32 bytes of this header      72  u32 first byte of the list of relocations
 *      16  u32 KILN_ABI                  76  u32 number of relocations
 *      20  u32 machine, see image.c      80  u32 the model's place in the tables
 *      24  u64 features of the CPU       84  u32 zero
 *      32  u64 bytes, header included    88  32 bytes digest of the interface
 *      40  u64 version of the image     120  32 bytes hash of plan and parameters
 *      48  u32 alignment                152  name of the model, ended by a zero, 64 bytes
 *      52  u32 CRC-32 of what follows   216  zeros
 *          the header                   256  code, constants, parameters, tables, relocations
 *      56  u32 CRC-32 of the header
 *          with zeros here
 *      60  u32 zero
 *
 * A relocation is an u32, the place in the tables of a pointer that is stored as a distance from
 * the image's first byte. Behind these bytes follow the KILN_IMAGE_RECORD_BYTES of a signature's
 * record, zeros in an image that nobody has signed (docs/trust.md). */
#ifndef KILN_IMAGE_H
#define KILN_IMAGE_H

#include "kiln.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KILN_IMAGE_HEADER       256 /* bytes */
#define KILN_IMAGE_RECORD_BYTES 176 /* KILN_VERIFY_RECORD_BYTES */
#define KILN_IMAGE_TABLES_ALIGN 16  /* of the memory for the tables, in bytes */
#define KILN_IMAGE_SLOTS        32  /* most slots of kiln_image_choose */

/* What an image's header says. Nothing of it is trusted before kiln_image_open has worked. */
typedef struct kiln_image_about {
    const char *name;
    uint64_t version;
    size_t bytes;        /* without the record that follows */
    size_t tables_bytes; /* of memory that kiln_image_open needs */
    size_t align;        /* of the image's address */
    uint64_t cpu_features;
    const unsigned char *digest; /* (32) of the interface: <M>_INTERFACE_DIGEST */
    const unsigned char *hash;   /* (32) as in kiln_model */
} kiln_image_about;

/* What an image must fulfil. */
typedef struct kiln_image_rules {
    const kiln_model *built; /* kiln_compatible with it: a model, or its <m>_interface; null: any */
    uint64_t least;          /* the least version that is accepted */
    /* Accept the image's bytes before any of them is used: 0, or a reason to refuse them. The
     * record of the signature, KILN_IMAGE_RECORD_BYTES, follows the `count` bytes. Call kiln_verify
     * here. Null: the CRC alone is checked, which finds damage but no forgery. */
    kiln_load_check check;
    void *user;
} kiln_image_rules;

typedef struct kiln_image {
    const kiln_model *model; /* in the memory of the tables; null: none */
    uint64_t version;
    size_t arena_bytes; /* of its largest bucket */
    size_t state_bytes;
} kiln_image;

/* A place for an image, in flash or RAM, and its bytes. */
typedef struct kiln_image_slot {
    const void *image;
    size_t bytes;
} kiln_image_slot;

/* Read the header. KILN_IMAGE_TRUNCATED, KILN_IMAGE_NOT_IMAGE, KILN_IMAGE_FORMAT or
 * KILN_IMAGE_CORRUPT where there is none; detail may be null. */
kiln_status kiln_image_read(const void *image, size_t bytes, kiln_image_about *about,
                            kiln_detail *detail);

/* Check the image at this address, and make its model. Image and tables must stay as they are while
 * sessions of the model are open; nothing is to be closed. Statuses besides those of
 * kiln_image_read: KILN_IMAGE_ALIGNMENT, KILN_WRONG_ABI, KILN_IMAGE_MACHINE, KILN_CPU,
 * KILN_IMAGE_OLD, KILN_LOAD_REFUSED by the rules' check, KILN_IMAGE_MEMORY for the tables, and
 * those of kiln_compatible. On an error opened->model is null; detail may be null, and so may
 * rules: any version and interface.
 *
 * Before code that was written to RAM or flash can run, caches must show it: on a core with caches
 * clean the data cache and invalidate the instruction cache first. */
kiln_status kiln_image_open(kiln_image *opened, const void *image, size_t bytes, void *tables,
                            size_t tables_bytes, const kiln_image_rules *rules,
                            kiln_detail *detail);

/* Open the image of the greatest version among those that kiln_image_open accepts, and set *slot,
 * which may be null, to its number. A slot that is empty, half written or refused is passed over;
 * where none is accepted, the status is that of the last one that was tried. */
kiln_status kiln_image_choose(kiln_image *opened, const kiln_image_slot *slots, uint32_t count,
                              void *tables, size_t tables_bytes, const kiln_image_rules *rules,
                              uint32_t *slot, kiln_detail *detail);

#ifdef __cplusplus
}
#endif
#endif
