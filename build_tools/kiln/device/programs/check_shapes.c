/* check_shapes.c: checks that wrong sizes are refused, and that the three plan functions agree.
 *
 * A refused run must leave outputs, arena and the bytes around them unchanged; kiln_plan, which
 * runs nothing, must refuse it with the same status and text. The status is printed: the build
 * machine, which made the shapes, compares it with the expected one.
 */
#include <string.h>

#include "harness.h"

#define FILL 0x6B

static const char *refusal_fault(const workload *w, const DLTensor *inputs,
                                 const kiln_config *config, kiln_status *got, char *text,
                                 size_t size) {
    kiln_session session;
    kiln_plan_result plan;
    kiln_detail detail;
    char planned[256];
    if (kiln_open(&session, harness_model(), config) != KILN_OK)
        harness_stop("cannot be opened", harness_model()->name);
    *got = kiln_run(&session, inputs, w->output);
    kiln_detail_text(kiln_error(&session), text, size);
    kiln_close(&session); /* kiln_error still returns the last error */
    if (*got == KILN_OK)
        return "it ran";
    if (kiln_error(&session)->status != *got)
        return "the session's detail does not report it";
    if (kiln_plan(harness_model(), inputs, &plan, &detail) != *got)
        return "kiln_plan gives another status";
    kiln_detail_text(&detail, planned, sizeof planned);
    if (strcmp(planned, text) != 0)
        return "kiln_plan gives another text";
    return workload_written(w, FILL);
}

void check_refused(const workload *w, unsigned char *image, const char *path) {
    const kiln_model *m = harness_model();
    const kiln_config config = workload_config(w, image);
    uint32_t vectors;
    FILE *file = vectors_open(path, m->inputs_count, &vectors);
    DLTensor *inputs = array_of(m->inputs_count, sizeof *inputs);
    tensor *shapes = array_of(m->inputs_count, sizeof *shapes);
    workload_fill(w, FILL);
    for (uint32_t v = 0; v < vectors; v++) {
        kiln_status got = KILN_OK;
        char text[256] = "";
        for (uint32_t i = 0; i < m->inputs_count; i++) {
            tensor_read(&shapes[i], &m->inputs[i], file);
            inputs[i] = kiln_bind(&m->inputs[i], shapes[i].shape, w->inputs[i].memory.data);
        }
        const char *fault = refusal_fault(w, inputs, &config, &got, text, sizeof text);
        printf("refused\t%u\t%s\t%s\t%s\n", (unsigned)v, kiln_status_name(got), fault ? fault : "",
               text);
        workload_fill(w, FILL);
        for (uint32_t i = 0; i < m->inputs_count; i++)
            guarded_free(&shapes[i].memory);
    }
    array_free(inputs);
    array_free(shapes);
    fclose(file);
}

static const char *differs(const workload *w, kiln_status status, const kiln_plan_result *other) {
    const kiln_plan_result *plan = &w->plan;
    if (status != KILN_OK)
        return "one of them refuses the run";
    if (other->bucket != plan->bucket || other->steps != plan->steps)
        return "another bucket";
    if (other->arena_bytes != plan->arena_bytes)
        return "another size of the arena";
    for (uint32_t i = 0; i < harness_model()->outputs_count; i++) {
        int64_t shape[HARNESS_MAX_RANK];
        const tensor *t = &w->outputs[i];
        if (kiln_tensor_shape(t->about, other->dims, shape) != t->memory.bytes ||
            memcmp(shape, t->shape, (size_t)t->about->rank * sizeof *shape) != 0)
            return "another shape of an output";
    }
    return NULL;
}

const char *plan_fault(const workload *w) {
    kiln_plan_result other;
    const char *fault =
        differs(w, kiln_plan_dims(harness_model(), w->plan.dims, &other, NULL), &other);
    if (fault == NULL)
        fault = differs(w, harness_typed_plan(w->plan.dims, &other, NULL), &other);
    return fault;
}
