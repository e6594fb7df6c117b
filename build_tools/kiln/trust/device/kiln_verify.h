/* kiln_verify.h: checks that a file which a program loads was signed, before it is used.
 *
 *     static const uint8_t key[32] = KILN_PUBLIC_KEY;    from public_key.h
 *     uint64_t release = least_release_that_this_device_has_seen();
 *     if (kiln_verify(params, bytes, record, sizeof record, net.hash, key, &release) != KILN_VERIFY_OK)
 *         refuse();
 *     remember(release);
 *     config.params = params;                             now kiln_open may read them
 *
 * Compile kiln_verify.c, monocypher.c and monocypher-ed25519.c with the program. They are freestanding
 * C99: no heap, no library, no variables; about 1 KiB of stack. */
#ifndef KILN_VERIFY_H
#define KILN_VERIFY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KILN_VERIFY_RECORD_BYTES 176

typedef enum kiln_verify_status {
    KILN_VERIFY_OK = 0,
    KILN_VERIFY_NULL,        /* a pointer is null */
    KILN_VERIFY_NO_RECORD,   /* not 176 bytes, or another kind of file */
    KILN_VERIFY_SIGNATURE,   /* not signed by this key, or the record was changed */
    KILN_VERIFY_OTHER_MODEL, /* signed, but for another model or another build of it */
    KILN_VERIFY_CONTENT,     /* the content is not the one that was signed */
    KILN_VERIFY_RELEASE      /* signed, but older than what the device has seen */
} kiln_verify_status;

/* content, bytes: the file. record, record_bytes: its .sig. model_hash: 32 bytes, or null for any model.
 * public_key: 32 bytes. *release: the least release allowed; after KILN_VERIFY_OK that of the record.
 * Nothing is written otherwise. */
kiln_verify_status kiln_verify(const void *content, size_t bytes, const void *record,
                               size_t record_bytes, const uint8_t *model_hash,
                               const uint8_t *public_key, uint64_t *release);

#ifdef __cplusplus
}
#endif
#endif
