/* params_test.c: params images that are whole, cut, damaged, or somebody else's. */
#include "test.h"
#include "test_model.h"

#include "internal.h"

static workload work;
static kiln_session session;

static void expect(kiln_status status) {
    CHECK(kiln_open(&session, &sums, &work.config) == status);
    CHECK(kiln_error(&session)->status == status);
    if (status != KILN_OK) {
        CHECK(kiln_error(&session)->where == KILN_AT_PARAMS);
        CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_NOT_OPEN);
        CHECK(workload_untouched(&work));
    }
    workload_make(&work, 2, 16);
}

static kiln_status check(const kiln_model *model, const void *image, size_t bytes,
                         const unsigned char **payload) {
    return kiln_accept_params(model, image, bytes, 0, payload, NULL);
}

static void test_every_bit(void) {
    for (int bit = 0; bit < SUMS_IMAGE_BYTES * 8; bit++) {
        const int byte = bit / 8;
        work.image[byte] ^= (unsigned char)(1 << bit % 8);
        expect(byte < 8                  ? KILN_PARAMS_NOT_PARAMS
               : byte < 12               ? KILN_PARAMS_VERSION
               : byte >= 32 && byte < 64 ? KILN_PARAMS_OTHER_BUILD
                                         : KILN_PARAMS_CORRUPT);
    }
}

static void test_sizes_and_places(void) {
    expect(KILN_OK);
    for (size_t bytes = 0; bytes < SUMS_IMAGE_BYTES; bytes++) {
        work.config.params_bytes = bytes;
        expect(KILN_PARAMS_TRUNCATED);
    }
    work.config.params_bytes = SIZE_MAX; /* more than needed: a flash region, say */
    expect(KILN_OK);
    work.config.params = NULL;
    expect(KILN_PARAMS_MISSING);
    work.config.params = work.image + 32;
    expect(KILN_PARAMS_ALIGNMENT);
}

static void test_version(void) {
    const uint32_t old = 1;
    memcpy(work.image + 8, &old, 4);
    CHECK(kiln_open(&session, &sums, &work.config) == KILN_PARAMS_VERSION);
    CHECK(kiln_error(&session)->value == 1 && kiln_error(&session)->min == 2);
    expect(KILN_PARAMS_VERSION);
}

static void test_flags(void) {
    work.image[130] ^= 1;
    work.config.flags = KILN_SKIP_CHECKSUM;
    expect(KILN_OK);
    work.image[16] ^= 1; /* the header is read all the same */
    work.config.flags = KILN_SKIP_CHECKSUM;
    expect(KILN_PARAMS_CORRUPT);
}

static void test_linked(void) {
    kiln_model linked = sums;
    linked.params = work.image;
    work.config.params = NULL;
    CHECK(kiln_open(&session, &linked, &work.config) == KILN_OK);
    work.image[128] ^= 1;
    CHECK(kiln_open(&session, &linked, &work.config) == KILN_PARAMS_CORRUPT);
    linked.params_trusted = 1;
    CHECK(kiln_open(&session, &linked, &work.config) == KILN_OK);
    /* Its payload is read when somebody asks. */
    kiln_detail detail;
    CHECK(kiln_check_params(&linked, NULL, 0, &detail) == KILN_PARAMS_CORRUPT);
    CHECK(detail.status == KILN_PARAMS_CORRUPT && detail.where == KILN_AT_PARAMS);
    CHECK(kiln_check_params(NULL, NULL, 0, &detail) == KILN_NULL_ARGUMENT);
    work.image[128] ^= 1;
    CHECK(kiln_check_params(&linked, NULL, 0, NULL) == KILN_OK);
    CHECK(kiln_check_params(&linked, work.image, sizeof work.image, NULL) == KILN_OK);
    CHECK(kiln_check_params(&linked, work.image, 130, NULL) == KILN_PARAMS_TRUNCATED);
    CHECK(kiln_check_params(&sums, NULL, 0, NULL) == KILN_PARAMS_MISSING);
    linked.abi = KILN_ABI + 1;
    CHECK(kiln_check_params(&linked, NULL, 0, NULL) == KILN_WRONG_ABI);
    linked.abi = KILN_ABI;
    work.image[32] ^= 1; /* of another build: refused even so */
    CHECK(kiln_open(&session, &linked, &work.config) == KILN_PARAMS_OTHER_BUILD);
    linked.params_bytes = 0;
    CHECK(kiln_check_params(&linked, NULL, 0, NULL) == KILN_OK);
    CHECK(kiln_open(&session, &linked, &work.config) == KILN_OK);
    CHECK(session.frame.params == NULL);
    workload_make(&work, 2, 16);
}

/* Long payloads with different contents. */
static void test_long_payload(void) {
    enum {
        BYTES = 4 * (3 * 65536 + 16)
    };
    static _Alignas(64) unsigned char image[128 + BYTES];
    static const unsigned char fills[] = {0xff, 0x00, 0xa5};
    kiln_model large = sums;
    const uint64_t bytes = large.params_bytes = BYTES;
    const unsigned char *payload;
    for (size_t i = 0; i < sizeof fills; i++) {
        memcpy(image, work.image, 128);
        memset(image + 128, fills[i], BYTES);
        for (size_t at = 128; fills[i] == 0xa5 && at < sizeof image; at++)
            image[at] = (unsigned char)(at * at >> 7);
        memcpy(image + 16, &bytes, 8);
        const uint64_t sum = plain_checksum(image + 128, BYTES);
        memcpy(image + 24, &sum, 8);
        CHECK(check(&large, image, sizeof image, &payload) == KILN_OK);
        CHECK(payload == image + 128);
        image[sizeof image - 1] ^= 0x80;
        CHECK(check(&large, image, sizeof image, &payload) == KILN_PARAMS_CORRUPT);
        CHECK(payload == NULL);
    }
    /* Words that are equal modulo 2^32 - 5, as 0 and 2^32 - 5 are, which Fletcher's sums took for
     * one another. */
    memset(image + 128, 0, BYTES);
    uint64_t whole = plain_checksum(image + 128, BYTES);
    memcpy(image + 24, &whole, 8);
    const uint32_t prime = UINT32_MAX - 4;
    memcpy(image + 128 + 64, &prime, 4);
    CHECK(check(&large, image, sizeof image, &payload) == KILN_PARAMS_CORRUPT);
    /* Erased flash is not zeros. */
    memset(image + 128, 0xff, BYTES);
    const uint64_t zeros = 0;
    memcpy(image + 24, &zeros, 8);
    CHECK(check(&large, image, sizeof image, &payload) == KILN_PARAMS_CORRUPT);
}

int main(void) {
    workload_make(&work, 2, 16);
    test_every_bit();
    test_sizes_and_places();
    test_version();
    test_flags();
    test_linked();
    test_long_payload();
    return test_result();
}
