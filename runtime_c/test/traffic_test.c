/* traffic_test.c: sizes are counted in the rows there are, and written as text that can be read. */
#include "test.h"
#include "test_model.h"

static char text[4096];
static size_t length;

static int32_t keep(void *user, const char *part, size_t bytes) {
    if (user != NULL && --*(int *)user < 0)
        return 7;
    memcpy(text + length, part, bytes);
    length += bytes;
    text[length] = '\0';
    return 0;
}

static kiln_session session_of(int64_t batch, int64_t seq) {
    return (kiln_session){.model = &sums, .dims = {batch, seq}};
}

static void test_counts(void) {
    kiln_traffic_row rows[8];
    kiln_traffic traffic;
    CHECK(kiln_traffic_open(&traffic, &sums, rows, 8) == KILN_OK);
    for (int64_t times = 0; times < 12; times++) {
        const kiln_session one = session_of(1, 8), other = session_of(8, 64);
        kiln_traffic_count(&traffic, &one);
        if (times < 3)
            kiln_traffic_count(&traffic, &other);
    }
    length = 0;
    CHECK(kiln_traffic_write(&traffic, keep, NULL) == 0);
    CHECK(strncmp(text, "batch,seq,count\n", 16) == 0);
    CHECK(strstr(text, "\n1,8,12\n") != NULL);
    CHECK(strstr(text, "\n8,64,3\n") != NULL);
    CHECK(length == strlen("batch,seq,count\n1,8,12\n8,64,3\n"));
    CHECK(traffic.missed == 0);
}

/* Nothing is lost: what finds no row is counted as missed. */
static void test_full(void) {
    kiln_traffic_row rows[3];
    kiln_traffic traffic;
    CHECK(kiln_traffic_open(&traffic, &sums, rows, 3) == KILN_OK);
    for (int64_t round = 0; round < 2; round++)
        for (int64_t seq = 8; seq <= 64; seq += 8) {
            const kiln_session one = session_of(1, seq);
            kiln_traffic_count(&traffic, &one);
        }
    uint64_t counted = traffic.missed;
    for (int i = 0; i < 3; i++)
        counted += rows[i].count;
    CHECK(counted == 16);
    CHECK(traffic.missed == 10);
    length = 0;
    CHECK(kiln_traffic_write(&traffic, keep, NULL) == 0);
    CHECK(strstr(text, "\n,,10\n") != NULL && text[length - 1] == '\n');
}

/* As many sizes as there are rows: none is lost, wherever their hashes fall. */
static void test_as_many_sizes_as_rows(void) {
    kiln_traffic_row rows[64];
    kiln_traffic traffic;
    CHECK(kiln_traffic_open(&traffic, &sums, rows, 64) == KILN_OK);
    for (int64_t run = 0; run < 1000; run++) {
        const kiln_session one = session_of(1 + run % 8, 8 * (1 + run / 8 % 8));
        kiln_traffic_count(&traffic, &one);
    }
    uint32_t counted = 0;
    for (int i = 0; i < 64; i++)
        counted += rows[i].count;
    CHECK(traffic.missed == 0 && counted == 1000);
}

static void test_limits(void) {
    kiln_traffic_row rows[1];
    kiln_traffic traffic;
    CHECK(kiln_traffic_open(NULL, &sums, rows, 1) == KILN_NULL_ARGUMENT);
    CHECK(kiln_traffic_open(&traffic, NULL, rows, 1) == KILN_NULL_ARGUMENT);
    CHECK(kiln_traffic_open(&traffic, &sums, NULL, 1) == KILN_NULL_ARGUMENT);
    CHECK(kiln_traffic_open(&traffic, &sums, rows, 0) == KILN_NULL_ARGUMENT);
    CHECK(kiln_traffic_open(&traffic, &sums, rows, 1) == KILN_OK);
    const kiln_session one = session_of(1, 8), closed = {0};
    kiln_traffic_count(&traffic, &one);
    kiln_traffic_count(&traffic, &closed);
    kiln_traffic_count(&traffic, NULL);
    kiln_traffic_count(NULL, &one);
    CHECK(rows[0].count == 1 && traffic.missed == 0);
    rows[0].count = UINT32_MAX;
    kiln_traffic_count(&traffic, &one);
    CHECK(rows[0].count == UINT32_MAX && traffic.missed == 1);
    length = 0;
    CHECK(kiln_traffic_write(&traffic, keep, NULL) == 0);
    CHECK(strcmp(text, "batch,seq,count\n1,8,4294967295\n,,1\n") == 0);
    for (int stop = 0; stop < 8; stop++) { /* the writer's own status ends it */
        int left = stop;
        length = 0;
        CHECK(kiln_traffic_write(&traffic, keep, &left) == 7);
    }
    CHECK(kiln_traffic_write(NULL, keep, NULL) == -1);
    CHECK(kiln_traffic_write(&traffic, NULL, NULL) == -1);
}

int main(void) {
    test_counts();
    test_full();
    test_as_many_sizes_as_rows();
    test_limits();
    return test_result();
}
