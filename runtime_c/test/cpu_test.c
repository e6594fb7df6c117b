/* cpu_test.c: what this processor has, and models that need it, less of it or more. */
#include "test.h"
#include "test_model.h"

static workload work;
static kiln_session session;

static kiln_status open_with(uint64_t needed) {
    kiln_model model = sums;
    model.cpu_features = needed;
    return kiln_open(&session, &model, &work.config);
}

int main(void) {
    const uint64_t have = kiln_cpu_features();
    int named = 0;
    workload_make(&work, 2, 16);
    CHECK(have != 0 && have == kiln_cpu_features());
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
    CHECK(named > 10 && kiln_cpu_feature_name(64) == NULL);
    CHECK(workload_untouched(&work));
    return test_result();
}
