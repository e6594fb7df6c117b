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

/* Inputs of `count` elements; what is in them is counted in the row of the run's sizes. */
static void test_contents(void) {
    static const int64_t flat[] = {-1};
    static const kiln_tensor tensors[] = {
        {"a:0", {kDLFloat, 32, 1}, 1, flat, 0, 0},  {"b,\"q\"", {kDLInt, 64, 1}, 1, flat, 0, 0},
        {"c", {kDLFloat, 64, 1}, 1, flat, 0, 0},    {"d", {kDLFloat, 16, 1}, 1, flat, 0, 0},
        {"e", {kDLBfloat, 16, 1}, 1, flat, 0, 0},   {"f", {kDLBool, 8, 1}, 1, flat, 0, 0},
        {"g", {kDLUInt, 16, 1}, 1, flat, 0, 0},     {"h", {kDLInt, 32, 1}, 1, flat, 0, 0},
        {"i", {kDLComplex, 128, 1}, 1, flat, 0, 0},
    };
    static const kiln_dim dims[] = {{"n", 0, 2, 1}};
    const kiln_model model = {.inputs_count = 9, .inputs = tensors, .dims_count = 1, .dims = dims};
    const float a1[] = {1, 1};
    const double c1[] = {1, 1};
    const int64_t b1[] = {1, 1};
    const uint16_t d1[] = {0x3c00, 0x3c00}, e1[] = {0x3f80, 0x3f80}, g1[] = {1, 1};
    const unsigned char f1[] = {1, 1};
    const int32_t h1[] = {1, 1}, h2[] = {0, 1};
    const float negative_zero[] = {-0.0f, -0.0f};
    static const unsigned char none[32];
    const void *const ones[] = {a1, b1, c1, d1, e1, f1, g1, h1, none};
    const void *const zeros[] = {none, none, none, none, none, none, none, none, none};
    const void *const others[] = {negative_zero, NULL, NULL, e1, d1, NULL, NULL, h2, NULL};
    kiln_traffic_row rows[3];
    kiln_traffic_content contents[3 * 9];
    kiln_traffic traffic;
    CHECK(kiln_traffic_open(&traffic, &model, rows, 3) == KILN_OK);
    CHECK(kiln_traffic_contents(&traffic, contents, 26) == KILN_NULL_ARGUMENT);
    CHECK(kiln_traffic_contents(&traffic, NULL, 27) == KILN_NULL_ARGUMENT);
    CHECK(kiln_traffic_contents(NULL, contents, 27) == KILN_NULL_ARGUMENT);
    CHECK(kiln_traffic_contents(&traffic, contents, 27) == KILN_OK);
    kiln_session two = {.model = &model, .dims = {2}}, nothing = {.model = &model};
    kiln_traffic_count_inputs(&traffic, &two, ones);
    kiln_traffic_count_inputs(&traffic, &two, ones);
    kiln_traffic_count_inputs(&traffic, &two, zeros);
    kiln_traffic_count_inputs(&traffic, &two, others);
    kiln_traffic_count_inputs(&traffic, &two, NULL);
    kiln_traffic_count_inputs(&traffic, NULL, ones);
    kiln_traffic_count_inputs(NULL, &two, ones);
    kiln_traffic_count_inputs(&traffic, &nothing, zeros);
    length = 0;
    CHECK(kiln_traffic_write(&traffic, keep, NULL) == 0);
    const char *line = strchr(text, '\n') + 1;
    text[line - 1 - text] = '\0';
    CHECK(strncmp(text, "n,count,\"a:0:zeros\",\"a:0:ones\",\"a:0:other\",\"b,\"\"q\"\":zeros\",",
                  58) == 0);
    CHECK(strcmp(text + strlen(text) - 9, "\"i:other\"") == 0);
    const char *empty = "0,1,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0\n";
    const char *full = "2,5,1,2,1,1,2,0,1,2,0,1,2,1,1,2,1,1,2,0,1,2,0,1,2,1,0,0,3\n";
    CHECK(strstr(line, empty) != NULL && strstr(line, full) != NULL);
    CHECK(strlen(line) == strlen(empty) + strlen(full));

    /* Runs that find no row have no contents; their cells are there. */
    kiln_session one = {.model = &model, .dims = {1}};
    CHECK(kiln_traffic_open(&traffic, &model, rows, 1) == KILN_OK);
    CHECK(traffic.contents == NULL);
    CHECK(kiln_traffic_contents(&traffic, contents, 9) == KILN_OK);
    kiln_traffic_count_inputs(&traffic, &two, ones);
    kiln_traffic_count_inputs(&traffic, &one, ones);
    length = 0;
    CHECK(kiln_traffic_write(&traffic, keep, NULL) == 0);
    CHECK(strstr(text, "\n2,1,0,1,0,") != NULL);
    CHECK(strstr(text, "\n,1,,,,,,,,,,,,,,,,,,,,,,,,,,,\n") != NULL && text[length - 1] == '\n');
    for (int stop = 0; stop < 60; stop++) { /* the writer's own status ends it */
        int left = stop;
        length = 0;
        CHECK(kiln_traffic_write(&traffic, keep, &left) == 7);
    }
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
    test_contents();
    test_limits();
    return test_result();
}
