/* params_fuzz.c: any bytes as a params image. The first byte chooses whether the image is signed
 * before it is checked, so that the fuzzer gets past the checksum. */
#include <stdlib.h>
#include <string.h>

#include "test_model.h"

#include "internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static workload work;
    if (size == 0)
        return 0;
    workload_make(&work, 2, 16);
    /* An allocation of just this size: the sanitizer sees a read beyond its end. */
    const size_t bytes = size - 1 < 4096 ? size - 1 : 4096;
    unsigned char *image = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (image == NULL)
        return 0;
    unsigned char *end = image + (bytes + 63) / 64 * 64 + 64;
    memset(image, 0, (size_t)(end - image));
    memcpy(image, data + 1, bytes);
    if (data[0] & 1)
        memcpy(image, work.image, bytes < 128 ? bytes : 128);
    if ((data[0] & 2) != 0 && bytes >= SUMS_IMAGE_BYTES)
        workload_sign(image);
    const unsigned char *payload = image;
    const kiln_status status = kiln_accept_params(
        &sums, image, bytes, data[0] & 4 ? KILN_SKIP_CHECKSUM : 0, &payload, NULL);
    const int accepted = status == KILN_OK;
    if (accepted != (payload == image + 128) || (!accepted && payload != NULL) ||
        (accepted && bytes < SUMS_IMAGE_BYTES) ||
        (accepted && (memcmp(image, "KILNPAR1", 8) != 0 || memcmp(image + 32, sums.hash, 32) != 0)))
        abort();
    free(image);
    return 0;
}
