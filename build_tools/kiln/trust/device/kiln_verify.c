/* kiln_verify.c: Ed25519 over a record with the release, the model's hash and the content's SHA-512.
 *
 * The signature is checked first: nothing that an attacker wrote is interpreted before that. */
#include "kiln_verify.h"

#include "monocypher-ed25519.h"

/* Places in a record. */
enum { MAGIC = 0, RELEASE = 8, MODEL = 16, DIGEST = 48, SIGNED = 112 };

static int differs(const uint8_t *a, const uint8_t *b, size_t bytes) {
    uint8_t found = 0;
    for (size_t i = 0; i < bytes; i++)
        found = (uint8_t)(found | (a[i] ^ b[i]));
    return found != 0;
}

kiln_verify_status kiln_verify(const void *content, size_t bytes, const void *record,
                               size_t record_bytes, const uint8_t *model_hash,
                               const uint8_t *public_key, uint64_t *release) {
    static const uint8_t magic[8] = {'K', 'I', 'L', 'N', 'S', 'I', 'G', '1'};
    const uint8_t *given = (const uint8_t *)record;
    if ((content == NULL && bytes != 0) || record == NULL || public_key == NULL || release == NULL)
        return KILN_VERIFY_NULL;
    if (record_bytes != KILN_VERIFY_RECORD_BYTES || differs(given + MAGIC, magic, sizeof magic))
        return KILN_VERIFY_NO_RECORD;
    if (crypto_ed25519_check(given + SIGNED, public_key, given, SIGNED) != 0)
        return KILN_VERIFY_SIGNATURE;
    if (model_hash != NULL && differs(given + MODEL, model_hash, 32))
        return KILN_VERIFY_OTHER_MODEL;
    uint8_t digest[64];
    crypto_sha512(digest, (const uint8_t *)content, bytes);
    if (differs(digest, given + DIGEST, sizeof digest))
        return KILN_VERIFY_CONTENT;
    uint64_t found = 0;
    for (int i = 7; i >= 0; i--)
        found = found << 8 | given[RELEASE + i];
    if (found < *release)
        return KILN_VERIFY_RELEASE;
    *release = found;
    return KILN_VERIFY_OK;
}
