/* check_errors.c: checks that every wrong argument is refused with its own status.
 *
 * Each call has one wrong argument. It must return the status of this cause, record that status in
 * the session with a text, and leave outputs, arena and the bytes around them unchanged.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

#define FILL 0x5A

static const workload *work;
static unsigned char *params; /* null: linked with the model, or it has none */

static kiln_config right_config(void) {
    return workload_config(work, params);
}

/* Print a `check` line for the call `what`: it fails unless `got` is in [low, high], nothing was
 * written, and `detail` holds this status with a text. */
static void judge(const char *what, const char *name, int axis, kiln_status got, kiln_status low,
                  kiln_status high, const kiln_detail *detail) {
    const char *fault = workload_written(work, FILL);
    char text[256] = "";
    if (detail != NULL)
        kiln_detail_text(detail, text, sizeof text);
    printf("check\t%s", what);
    if (name != NULL)
        printf(" of %s", name);
    if (axis >= 0)
        printf(" axis %d", axis);
    if (got < low || got > high)
        printf("\tfailed\tgave %s, not %s\n", kiln_status_name(got), kiln_status_name(low));
    else if (fault != NULL)
        printf("\tfailed\t%s\n", fault);
    else if (detail != NULL && (detail->status != got || text[0] == '\0'))
        printf("\tfailed\tthe session's detail does not report it\n");
    else
        printf("\tok\t%s: %s\n", kiln_status_name(got), text);
    workload_fill(work, FILL);
}

/* Open with this configuration, and run if that works: either call may refuse a small arena. */
static void try_config(const char *what, const kiln_config *config, kiln_status low,
                       kiln_status high) {
    kiln_session session;
    kiln_status got = kiln_open(&session, harness_model(), config);
    if (got == KILN_OK)
        got = kiln_run(&session, work->input, work->output);
    judge(what, NULL, -1, got, low, high, kiln_error(&session));
    kiln_close(&session);
}

static void try_sessions(void) {
    kiln_config config = right_config();
    kiln_session session;
    memset(&session, 0, sizeof session);
    judge("run of a session never opened", NULL, -1, kiln_run(&session, work->input, work->output),
          KILN_NOT_OPEN, KILN_NOT_OPEN, NULL);
    judge("null session", NULL, -1, kiln_open(NULL, harness_model(), &config), KILN_NULL_ARGUMENT,
          KILN_NULL_ARGUMENT, NULL);
    judge("null model", NULL, -1, kiln_open(&session, NULL, &config), KILN_NULL_ARGUMENT,
          KILN_NULL_ARGUMENT, NULL);
    judge("null configuration", NULL, -1, kiln_open(&session, harness_model(), NULL),
          KILN_NULL_ARGUMENT, KILN_NULL_ARGUMENT, NULL);
    if (kiln_open(&session, harness_model(), &config) != KILN_OK)
        harness_stop("cannot be opened", harness_model()->name);
    if (harness_model()->inputs_count > 0)
        judge("null inputs", NULL, -1, kiln_run(&session, NULL, work->output), KILN_NULL_ARGUMENT,
              KILN_NULL_ARGUMENT, NULL);
    judge("null outputs", NULL, -1, kiln_run(&session, work->input, NULL), KILN_NULL_ARGUMENT,
          KILN_NULL_ARGUMENT, NULL);
    judge("step without a run", NULL, -1, kiln_step(&session), KILN_NOT_RUNNING, KILN_NOT_RUNNING,
          NULL);
    kiln_close(&session);
    judge("run of a session closed", NULL, -1, kiln_run(&session, work->input, work->output),
          KILN_NOT_OPEN, KILN_NOT_OPEN, NULL);
    kiln_close(&session);
    kiln_close(NULL);
}

/* Wrong memory for the parts of the arena in further regions. */
static void try_regions(void) {
    kiln_memory bent[HARNESS_MAX_REGIONS];
    for (uint32_t i = 0; i < harness_model()->regions_count; i++) {
        kiln_config config = right_config();
        if (harness_model()->regions[i].bytes == 0)
            continue;
        config.regions = NULL;
        try_config("no regions", &config, KILN_ARENA_NULL, KILN_ARENA_NULL);
        config.regions = bent;
        memcpy(bent, work->memory, sizeof bent);
        bent[i].bytes -= 1;
        try_config("region one byte too small", &config, KILN_ARENA_TOO_SMALL,
                   KILN_ARENA_TOO_SMALL);
        memcpy(bent, work->memory, sizeof bent);
        bent[i].data = work->regions[i].data + 1;
        try_config("misaligned region", &config, KILN_ARENA_ALIGNMENT, KILN_ARENA_ALIGNMENT);
        if (work->arena.bytes == 0)
            continue;
        bent[i].data = work->arena.data;
        try_config("region in the arena", &config, KILN_OVERLAP, KILN_OVERLAP);
    }
}

static void try_arena(void) {
    kiln_config config = right_config();
    if (config.arena_bytes == 0)
        return;
    config.arena = NULL;
    try_config("null arena", &config, KILN_ARENA_NULL, KILN_ARENA_NULL);
    try_regions();
    config = right_config();
    config.arena_bytes -= 1;
    try_config("arena one byte too small", &config, KILN_ARENA_TOO_SMALL, KILN_ARENA_TOO_SMALL);
    config = right_config();
    config.arena = work->arena.data + 1;
    try_config("misaligned arena", &config, KILN_ARENA_ALIGNMENT, KILN_ARENA_ALIGNMENT);
}

static void try_state(void) {
    kiln_config config = right_config();
    if (harness_model()->state_bytes == 0)
        return;
    config.state = NULL;
    try_config("null state", &config, KILN_STATE_NULL, KILN_STATE_NULL);
    config = right_config();
    config.state_bytes -= 1;
    try_config("state one byte too small", &config, KILN_STATE_TOO_SMALL, KILN_STATE_TOO_SMALL);
    config = right_config();
    config.state = work->state.data + 1;
    try_config("misaligned state", &config, KILN_STATE_ALIGNMENT, KILN_STATE_ALIGNMENT);
    if (work->arena.bytes == 0)
        return;
    config.state = work->arena.data;
    try_config("state in the arena", &config, KILN_OVERLAP, KILN_OVERLAP);
}

/* Parameters with faults; `image` is modified and restored. */
static void try_image(unsigned char *image) {
    const size_t bytes = harness_params_bytes(),
                 header = bytes - (harness_model()->params_bytes + 63) / 64 * 64;
    kiln_config config = right_config();
    config.flags = 0;
    config.params = image + 1;
    config.params_bytes = bytes;
    try_config("misaligned parameters", &config, KILN_PARAMS_ALIGNMENT, KILN_PARAMS_ALIGNMENT);
    config.params = image;
    config.params_bytes = bytes - 64;
    try_config("truncated parameters", &config, KILN_PARAMS_TRUNCATED, KILN_PARAMS_TRUNCATED);
    config.params_bytes = 5;
    try_config("parameters without a header", &config, KILN_PARAMS_TRUNCATED,
               KILN_PARAMS_TRUNCATED);
    config.params_bytes = bytes;
    for (size_t i = 0; i < header; i++) {
        image[i] ^= 0x10;
        try_config("parameters with one bit of the header changed", &config, KILN_PARAMS_TRUNCATED,
                   KILN_PARAMS_CORRUPT);
        image[i] ^= 0x10;
    }
    const size_t places[3] = {header, header + harness_model()->params_bytes / 2,
                              header + harness_model()->params_bytes - 1};
    for (size_t i = 0; i < 3; i++) {
        image[places[i]] ^= 0x10;
        try_config("parameters with one bit changed", &config, KILN_PARAMS_CORRUPT,
                   KILN_PARAMS_CORRUPT);
        image[places[i]] ^= 0x10;
    }
}

static void try_params(void) {
    const kiln_model *m = harness_model();
    const size_t bytes = harness_params_bytes();
    kiln_config config = right_config();
    if (m->params_bytes == 0)
        return;
    if (m->params == NULL) {
        config.params = NULL;
        try_config("no parameters", &config, KILN_PARAMS_MISSING, KILN_PARAMS_MISSING);
        try_image(params);
        return;
    }
    /* Linked parameters may be in flash, which a copy in addition to the tensors need not fit. */
    unsigned char *block = malloc(bytes + 2u * KILN_PARAMS_ALIGN);
    if (block == NULL) {
        printf("check\tdamaged parameters\tleft out\ttheir copy needs %zu bytes\n", bytes);
        return;
    }
    unsigned char *image =
        block + (KILN_PARAMS_ALIGN - (uintptr_t)block % KILN_PARAMS_ALIGN) % KILN_PARAMS_ALIGN;
    memcpy(image, m->params, bytes);
    try_image(image);
    free(block);
}

/* Run with *view, one of work's tensors, replaced by `bent`; then restore it. */
static void try_view(const char *what, const kiln_tensor *about, int axis, DLTensor *view,
                     DLTensor bent, kiln_status low, kiln_status high) {
    kiln_config config = right_config();
    kiln_session session;
    const DLTensor right = *view;
    if (kiln_open(&session, harness_model(), &config) != KILN_OK)
        harness_stop("cannot be opened", harness_model()->name);
    *view = bent;
    kiln_status got = kiln_run(&session, work->input, work->output);
    *view = right;
    judge(what, about->name, axis, got, low, high, kiln_error(&session));
    kiln_close(&session);
}

/* Try wrong sizes on every axis. An input's axis of a dynamic dimension may have any size of its
 * range. An output's axis, and an axis whose size is computed from dimensions (numbered after those
 * of `dims`), may only have the size of this run. */
static void try_axes(const tensor *t, DLTensor *view) {
    int64_t shape[HARNESS_MAX_RANK], strides[HARNESS_MAX_RANK];
    const int input = t >= work->inputs && t < work->inputs + harness_model()->inputs_count;
    DLTensor bent = *view;
    for (int a = 0; a < t->about->rank; a++) {
        const int64_t allowed = t->about->shape[a];
        const int fixed = allowed >= 0;
        const int open = input && !fixed && -1 - allowed < (int64_t)harness_model()->dims_count;
        const int64_t most = open ? harness_model()->dims[-1 - allowed].max : t->shape[a];
        const int64_t least = open ? harness_model()->dims[-1 - allowed].min : t->shape[a];
        const kiln_status low =
            KILN_BAD_SHAPE; /* an axis that is symbolic may also break its range */
        const kiln_status high = fixed ? KILN_BAD_SHAPE : KILN_NO_BUCKET;
        memcpy(shape, t->shape, sizeof shape);
        bent.shape = shape;
        shape[a] = most + 1;
        try_view("one too many", t->about, a, view, bent, low, high);
        shape[a] = least - 1;
        try_view("one too few", t->about, a, view, bent, low, high);
        shape[a] = INT64_MAX;
        try_view("huge size", t->about, a, view, bent, low, high);
        shape[a] = -1;
        try_view("negative size", t->about, a, view, bent, low, high);
    }
    if (t->about->rank > 0) {
        int64_t stride = 2; /* every second element: not compact */
        for (int a = t->about->rank - 1; a >= 0; a--) {
            strides[a] = stride;
            stride *= t->shape[a];
        }
        bent = *view;
        bent.strides = strides;
        if (t->memory.bytes > t->about->dtype.bits / 8u)
            try_view("strides", t->about, -1, view, bent, KILN_BAD_STRIDES, KILN_BAD_STRIDES);
        bent = *view;
        bent.ndim -= 1;
        try_view("one axis too few", t->about, -1, view, bent, KILN_BAD_RANK, KILN_BAD_RANK);
        bent = *view;
        bent.shape = NULL;
        try_view("null shape", t->about, -1, view, bent, KILN_NULL_DATA, KILN_NULL_DATA);
    }
}

static void try_data(const tensor *t, DLTensor *view) {
    DLTensor bent = *view;
    bent.data = NULL;
    try_view("null data", t->about, -1, view, bent, KILN_NULL_DATA, KILN_NULL_DATA);
    bent = *view;
    bent.byte_offset = UINT64_MAX - 7;
    try_view("huge byte offset", t->about, -1, view, bent, KILN_BAD_OFFSET, KILN_BAD_OFFSET);
    if (t->about->dtype.bits > 8) {
        bent = *view;
        bent.data = t->memory.data + 1;
        try_view("misaligned data", t->about, -1, view, bent, KILN_BAD_ALIGNMENT,
                 KILN_BAD_ALIGNMENT);
    }
}

static void try_tensor(const tensor *t, DLTensor *view) {
    int64_t shape[HARNESS_MAX_RANK + 1] = {0};
    DLTensor bent = *view;
    if (t->memory.bytes > 0) /* the data pointer of a tensor without elements is not checked */
        try_data(t, view);
    memcpy(shape, t->shape, sizeof t->shape);
    shape[t->about->rank] = 1;
    bent.shape = shape;
    bent.ndim += 1;
    try_view("one axis too many", t->about, -1, view, bent, KILN_BAD_RANK, KILN_BAD_RANK);
    bent.ndim = -1;
    try_view("negative rank", t->about, -1, view, bent, KILN_BAD_RANK, KILN_BAD_RANK);
    bent = *view;
    bent.dtype.bits = (uint8_t)(bent.dtype.bits * 2);
    try_view("twice the bits", t->about, -1, view, bent, KILN_BAD_DTYPE, KILN_BAD_DTYPE);
    bent = *view;
    bent.dtype.code ^= 1;
    try_view("another kind of element", t->about, -1, view, bent, KILN_BAD_DTYPE, KILN_BAD_DTYPE);
    bent = *view;
    bent.dtype.lanes = 2;
    try_view("two lanes", t->about, -1, view, bent, KILN_BAD_DTYPE, KILN_BAD_DTYPE);
    bent = *view;
    bent.device.device_type = kDLOpenCL;
    try_view("another device", t->about, -1, view, bent, KILN_BAD_DEVICE, KILN_BAD_DEVICE);
    try_axes(t, view);
}

static void try_overlaps(void) {
    const tensor *in = &work->inputs[0], *out = &work->outputs[0];
    const size_t element = (out->about->dtype.bits + 7u) / 8u;
    const size_t past = (size_t)((uintptr_t)in->memory.data % element);
    const size_t aligned =
        past > 0 ? element - past : 0; /* the output's alignment, inside the input */
    DLTensor bent = work->output[0];
    bent.data = in->memory.data + aligned;
    if (aligned < in->memory.bytes && out->memory.bytes > 0)
        try_view("overlap with an input", out->about, -1, &work->output[0], bent, KILN_OVERLAP,
                 KILN_OVERLAP);
    if (work->arena.bytes == 0)
        return;
    bent.data = work->arena.data;
    if (out->memory.bytes > 0) /* a tensor without elements overlaps nothing */
        try_view("overlap with the arena", out->about, -1, &work->output[0], bent, KILN_OVERLAP,
                 KILN_OVERLAP);
    bent = work->input[0];
    bent.data = work->arena.data;
    if (in->memory.bytes > 0)
        try_view("overlap with the arena", in->about, -1, &work->input[0], bent, KILN_OVERLAP,
                 KILN_OVERLAP);
}

void check_arena(const workload *w, unsigned char *image) {
    work = w;
    params = image;
    workload_fill(w, FILL);
    try_arena();
}

void check_errors(const workload *w, unsigned char *image) {
    work = w;
    params = image;
    workload_fill(w, FILL);
    try_sessions();
    try_arena();
    try_state();
    try_params();
    for (uint32_t i = 0; i < harness_model()->inputs_count; i++)
        try_tensor(&w->inputs[i], &w->input[i]);
    for (uint32_t i = 0; i < harness_model()->outputs_count; i++)
        try_tensor(&w->outputs[i], &w->output[i]);
    try_overlaps();
}
