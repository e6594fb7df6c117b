/* cpu_test.c: what this processor has, and models that need it, less of it or more. */
#include "test.h"
#include "test_model.h"

static workload work;
static kiln_session session;

static kiln_status open_with(uint64_t needed) {
    kiln_model model = sums;
    const kiln_variant variant = {"only", needed, sums.variants->step};
    model.variants = &variant;
    return kiln_open(&session, &model, &work.config);
}

/* Open a model of the variants "first", "second" and "third", which need these features of the
 * processor. `forced`: the variant that the configuration names, or null. */
static kiln_status open_variant(uint64_t first, uint64_t second, uint64_t third,
                                const char *forced) {
    static kiln_variant variants[3];
    kiln_model model = sums;
    kiln_config config = work.config;
    variants[0] = (kiln_variant){"first", first, sums.variants->step};
    variants[1] = (kiln_variant){"second", second, sums.variants->step};
    variants[2] = (kiln_variant){"third", third, sums.variants->step};
    model.variants = variants;
    model.variants_count = 3;
    config.variant = forced;
    return kiln_open(&session, &model, &config);
}

static int runs(const char *name) {
    return session.model != NULL && strcmp(session.variant->name, name) == 0;
}

static void test_variants(uint64_t have) {
    const uint64_t one = have & ~(have - 1), lacks = ~have & ~(~have - 1); /* a bit of each */
    char text[160];
    CHECK(open_variant(0, one, have, NULL) == KILN_OK && runs("third"));
    CHECK(open_variant(0, one, have | lacks, NULL) == KILN_OK && runs("second"));
    CHECK(open_variant(0, lacks, lacks, NULL) == KILN_OK && runs("first"));
    CHECK(open_variant(0, lacks, one, NULL) == KILN_OK && runs("third"));
    CHECK(open_variant(one | lacks, lacks, have | lacks, NULL) == KILN_CPU);
    CHECK((uint64_t)kiln_error(&session)->value == lacks);
    CHECK((uint64_t)kiln_error(&session)->min == (one | lacks));
    CHECK(open_variant(0, one, have, "first") == KILN_OK && runs("first"));
    CHECK(open_variant(0, one, have, "second") == KILN_OK && runs("second"));
    CHECK(open_variant(0, one, lacks, "third") == KILN_CPU && session.model == NULL);
    CHECK((uint64_t)kiln_error(&session)->value == lacks);
    for (const char *const *name = (const char *const[]){"", "thir", "thirds", "fourth", NULL};
         *name != NULL; name++) {
        CHECK(open_variant(0, one, have, *name) == KILN_NO_VARIANT && session.model == NULL);
        (void)kiln_detail_text(kiln_error(&session), text, sizeof text);
        CHECK(strncmp(text, *name, strlen(*name)) == 0);
        CHECK(strstr(text, ": the model has no variant of this name") != NULL);
    }
}

int main(void) {
    const uint64_t have = kiln_cpu_features(UINT64_MAX);
    int named = 0;
    workload_make(&work, 2, 16);
    CHECK(have != 0 && have == kiln_cpu_features(UINT64_MAX));
    CHECK((kiln_cpu_features(0) & ~have) == 0);
    CHECK(open_with(0) == KILN_OK && open_with(have) == KILN_OK);
    for (uint32_t bit = 0; bit < 64; bit++) {
        const uint64_t only = UINT64_C(1) << bit;
        const char *name = kiln_cpu_feature_name(bit);
        char text[160];
        const kiln_status status = open_with(have | only);
        named += name != NULL;
        CHECK(status == ((have & only) != 0 ? KILN_OK : KILN_CPU));
        CHECK((have & only) == 0 || name != NULL);
        if (status == KILN_OK)
            continue;
        const kiln_detail *detail = kiln_error(&session);
        CHECK((uint64_t)detail->value == only && (uint64_t)detail->min == (have | only));
        CHECK(detail->where == KILN_AT_CPU && session.model == NULL);
        (void)kiln_detail_text(detail, text, sizeof text);
        CHECK(strncmp(text, "processor: lacks ", 17) == 0);
        CHECK(name == NULL || strncmp(text + 17, name, strlen(name)) == 0);
    }
    test_variants(have);
    CHECK(named > 10 && kiln_cpu_feature_name(64) == NULL);
    CHECK(workload_untouched(&work));
    return test_result();
}
