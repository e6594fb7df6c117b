/* regions_test.c: an arena and parameters in several regions. */
#include "test.h"
#include "test_model.h"

static _Alignas(64) unsigned char fast[128], slow[256], second[192];

static const kiln_region regions[] = {{"fast", 128}, {"slow", 200}};
static kiln_params_part part = {"qspi", second, 8};

static void test_memory(workload *work) {
    kiln_memory given[] = {{fast, sizeof fast}, {slow, sizeof slow}};
    kiln_model model = sums;
    kiln_session session;
    kiln_config config = work->config;
    config.regions = given;
    model.regions = regions;
    model.regions_count = 2;
    model.open_regions = kiln_open_regions;
    model.in_region = kiln_in_region;
    CHECK(kiln_open(&session, &model, &config) == KILN_OK);
    CHECK(kiln_at_region(&session.frame, 2, 3) == slow + 3);
    given[1].bytes = 199;
    CHECK(kiln_open(&session, &model, &config) == KILN_ARENA_TOO_SMALL);
    CHECK(strcmp(kiln_error(&session)->name, "slow") == 0 && kiln_error(&session)->min == 200);
    given[1] = (kiln_memory){fast, sizeof slow};
    CHECK(kiln_open(&session, &model, &config) == KILN_OVERLAP);
    given[1].data = work->arena;
    CHECK(kiln_open(&session, &model, &config) == KILN_OVERLAP);
    given[1].data = slow + 1;
    CHECK(kiln_open(&session, &model, &config) == KILN_ARENA_ALIGNMENT);
    config.regions = NULL;
    CHECK(kiln_open(&session, &model, &config) == KILN_ARENA_NULL);
    CHECK(strcmp(kiln_error(&session)->name, "fast") == 0);

    /* A tensor in a region. */
    given[1].data = work->inputs[0].data;
    config.regions = given;
    CHECK(kiln_open(&session, &model, &config) == KILN_OK);
    CHECK(kiln_run(&session, work->inputs, work->outputs) == KILN_OVERLAP);
    CHECK(kiln_error(&session)->value == -1);
}

static void test_parts(workload *work) {
    kiln_model model = sums;
    kiln_session session;
    kiln_config config = work->config;
    memcpy(second, work->image, sizeof second);
    model.parts = &part;
    model.parts_count = 1;
    model.check_parts = kiln_check_parts;
    CHECK(kiln_open(&session, &model, &config) == KILN_OK);
    CHECK(kiln_at_part(second, 5) == second + 133);
    second[128] ^= 1;
    CHECK(kiln_open(&session, &model, &config) == KILN_PARAMS_CORRUPT);
    CHECK(strcmp(kiln_error(&session)->name, "qspi") == 0);
    CHECK(kiln_check_params(&model, work->image, sizeof work->image, NULL) == KILN_PARAMS_CORRUPT);
    config.flags = KILN_SKIP_CHECKSUM;
    CHECK(kiln_open(&session, &model, &config) == KILN_OK);
    second[40] ^= 1; /* the hash */
    CHECK(kiln_open(&session, &model, &config) == KILN_PARAMS_OTHER_BUILD);
}

int main(void) {
    static workload work;
    workload_make(&work, 2, 16);
    test_memory(&work);
    test_parts(&work);
    return test_result();
}
