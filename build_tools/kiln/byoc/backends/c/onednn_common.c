/* onednn_common.c: a primitive of oneDNN, its weights, and what one call of it needs.
 *
 * Follows the constants of one subgraph in the generated file; onednn_conv.c or onednn_product.c
 * comes after it. A primitive does not change after it was made and may be executed by several
 * threads at once; what an execution binds (memory objects, scratchpad, stream) may not. Each part
 * keeps one set of these for its next call; a thread that finds it in use makes its own.
 */
#include <math.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Of libgomp, where the library is built on it: the setting belongs to the calling thread. */
extern void omp_set_num_threads(int) __attribute__((weak));
extern int omp_get_max_threads(void) __attribute__((weak));

#define TRY(call)                                                                                  \
    do {                                                                                           \
        const dnnl_status_t status_ = (call);                                                      \
        if (status_ != dnnl_success)                                                               \
            return status_;                                                                        \
    } while (0)

/* What one execution binds. */
struct binding {
    dnnl_stream_t stream;
    dnnl_memory_t x, w, bias, y, scratch;
};

struct part {
    dnnl_primitive_t primitive;
    dnnl_memory_t
        packed; /* the weights in the layout of the primitive; null: the stored ones have it */
    struct binding *_Atomic spare;
};

static struct part parts[PARTS];
static dnnl_engine_t engine;

/* The library keeps to the thread that calls it: Kiln's threads share tasks. */
static int one_thread(void) {
    if (!omp_set_num_threads || !omp_get_max_threads)
        return 1;
    const int before = omp_get_max_threads();
    if (before != 1)
        omp_set_num_threads(1);
    return before;
}

static void as_before(int threads) {
    if (threads != 1)
        omp_set_num_threads(threads);
}

static const_dnnl_memory_desc_t descriptor_of(const_dnnl_primitive_desc_t about, dnnl_query_t what,
                                              int index) {
    return dnnl_primitive_desc_query_md(about, what, index);
}

static const_dnnl_primitive_desc_t about(const struct part *part) {
    const_dnnl_primitive_desc_t found = NULL;
    (void)dnnl_primitive_get_primitive_desc(part->primitive, &found);
    return found;
}

/* Residual, then activation; scratch memory is the caller's. */
static dnnl_status_t attributes(dnnl_primitive_attr_t *made) {
    dnnl_post_ops_t after;
    TRY(dnnl_primitive_attr_create(made));
    TRY(dnnl_primitive_attr_set_scratchpad_mode(*made, dnnl_scratchpad_mode_user));
    TRY(dnnl_post_ops_create(&after));
#if RESIDUAL
    TRY(dnnl_post_ops_append_sum(after, 1.0f, 0, dnnl_f32));
#endif
#ifdef LOW
    if (LOW == 0.0f && isinf(HIGH))
        TRY(dnnl_post_ops_append_eltwise(after, dnnl_eltwise_relu, 0.0f, 0.0f));
    else
        TRY(dnnl_post_ops_append_eltwise(after, dnnl_eltwise_clip_v2, LOW, HIGH));
#endif
    TRY(dnnl_primitive_attr_set_post_ops(*made, after));
    return dnnl_post_ops_destroy(after);
}

static void release(struct binding *binding) {
    dnnl_memory_t all[] = {binding->x, binding->w, binding->bias, binding->y, binding->scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i])
            (void)dnnl_memory_destroy(all[i]);
    if (binding->stream)
        (void)dnnl_stream_destroy(binding->stream);
    free(binding);
}

static dnnl_status_t fill(struct binding *made, const struct part *part, const_dnnl_memory_desc_t x,
                          const_dnnl_memory_desc_t w, const_dnnl_memory_desc_t y) {
    const_dnnl_primitive_desc_t known = about(part);
    TRY(dnnl_stream_create(&made->stream, engine, dnnl_stream_default_flags));
    TRY(dnnl_memory_create(&made->x, x, engine, DNNL_MEMORY_NONE));
    TRY(dnnl_memory_create(&made->y, y, engine, DNNL_MEMORY_NONE));
    if (!part->packed)
        TRY(dnnl_memory_create(&made->w, w, engine, DNNL_MEMORY_NONE));
    if (BIAS)
        TRY(dnnl_memory_create(&made->bias, descriptor_of(known, dnnl_query_weights_md, 1), engine,
                               DNNL_MEMORY_NONE));
    return dnnl_memory_create(&made->scratch, descriptor_of(known, dnnl_query_scratchpad_md, 0),
                              engine, DNNL_MEMORY_ALLOCATE);
}

static dnnl_status_t bind(struct binding **made, const struct part *part,
                          const_dnnl_memory_desc_t x, const_dnnl_memory_desc_t w,
                          const_dnnl_memory_desc_t y) {
    *made = calloc(1, sizeof **made);
    if (!*made)
        return dnnl_out_of_memory;
    const dnnl_status_t status = fill(*made, part, x, w, y);
    if (status != dnnl_success)
        release(*made);
    return status;
}

static dnnl_status_t execute(const struct binding *with, const struct part *part, const float *x,
                             const float *w, const float *bias, float *y) {
    TRY(dnnl_memory_set_data_handle(with->x, (void *)(uintptr_t)x));
    TRY(dnnl_memory_set_data_handle(with->y, y));
    if (with->w)
        TRY(dnnl_memory_set_data_handle(with->w, (void *)(uintptr_t)w));
    if (with->bias)
        TRY(dnnl_memory_set_data_handle(with->bias, (void *)(uintptr_t)bias));
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, with->x},
                                         {DNNL_ARG_WEIGHTS, with->w ? with->w : part->packed},
                                         {DNNL_ARG_DST, with->y},
                                         {DNNL_ARG_SCRATCHPAD, with->scratch},
                                         {DNNL_ARG_BIAS, with->bias}};
    const int threads = one_thread();
    dnnl_status_t status =
        dnnl_primitive_execute(part->primitive, with->stream, 4 + BIAS, arguments);
    if (status == dnnl_success)
        status = dnnl_stream_wait(with->stream);
    as_before(threads);
    return status;
}

/* A part whose sizes are known. */
static dnnl_status_t run(struct part *part, const float *x, const float *w, const float *bias,
                         float *y) {
    struct binding *with = atomic_exchange(&part->spare, NULL);
    if (!with) {
        const_dnnl_primitive_desc_t known = about(part);
        TRY(bind(&with, part, descriptor_of(known, dnnl_query_src_md, 0),
                 descriptor_of(known, dnnl_query_weights_md, 0),
                 descriptor_of(known, dnnl_query_dst_md, 0)));
    }
    const dnnl_status_t status = execute(with, part, x, w, bias, y);
    struct binding *other = atomic_exchange(&part->spare, with);
    if (other)
        release(other);
    return status;
}

/* The weights in the library's own memory, in the layout of the primitive; parts share them. */
static dnnl_status_t pack(int index, const_dnnl_memory_desc_t stored, const float *w) {
    struct part *part = &parts[index];
    const_dnnl_memory_desc_t form = descriptor_of(about(part), dnnl_query_weights_md, 0);
    if (dnnl_memory_desc_equal(form, stored))
        return dnnl_success;
    for (int i = 0; i < index; i++)
        if (parts[i].packed &&
            dnnl_memory_desc_equal(form,
                                   descriptor_of(about(&parts[i]), dnnl_query_weights_md, 0))) {
            part->packed = parts[i].packed;
            return dnnl_success;
        }
    dnnl_primitive_desc_t described;
    dnnl_primitive_t reorder;
    dnnl_memory_t from;
    dnnl_stream_t stream;
    TRY(dnnl_memory_create(&from, stored, engine, (void *)(uintptr_t)w));
    TRY(dnnl_memory_create(&part->packed, form, engine, DNNL_MEMORY_ALLOCATE));
    TRY(dnnl_reorder_primitive_desc_create(&described, stored, engine, form, engine, NULL));
    TRY(dnnl_primitive_create(&reorder, described));
    TRY(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, part->packed}};
    TRY(dnnl_primitive_execute(reorder, stream, 2, arguments));
    TRY(dnnl_stream_wait(stream));
    TRY(dnnl_stream_destroy(stream));
    TRY(dnnl_primitive_destroy(reorder));
    TRY(dnnl_primitive_desc_destroy(described));
    return dnnl_memory_destroy(from);
}

static dnnl_status_t describe(dnnl_primitive_desc_t *made, int index, const_dnnl_memory_desc_t w,
                              const_dnnl_primitive_attr_t how);
static dnnl_status_t stored_weights(dnnl_memory_desc_t *stored, dnnl_memory_desc_t *any);

/* The library computes anything by its reference code, a hundred times slower. */
static int is_reference(const_dnnl_primitive_desc_t described) {
    const char *name = "";
    (void)dnnl_primitive_desc_query(described, dnnl_query_impl_info_str, 0, (void *)&name);
    return strstr(name, "ref") != NULL;
}

static dnnl_status_t make_part(int index, const float *w) {
    dnnl_memory_desc_t stored, any;
    dnnl_primitive_attr_t how;
    dnnl_primitive_desc_t described = NULL;
    TRY(stored_weights(&stored, &any));
    TRY(attributes(&how));
    if (TAKES_STORED || !w)
        (void)describe(&described, index, stored, how);
    /* Where the library has only reference code for the stored layout: the layout that it prefers.
     */
    if (w && described && is_reference(described)) {
        TRY(dnnl_primitive_desc_destroy(described));
        described = NULL;
    }
    if (!described)
        TRY(describe(&described, index, any, how));
    TRY(dnnl_primitive_create(&parts[index].primitive, described));
    if (w)
        TRY(pack(index, stored, w));
    TRY(dnnl_primitive_desc_destroy(described));
    TRY(dnnl_primitive_attr_destroy(how));
    TRY(dnnl_memory_desc_destroy(any));
    return dnnl_memory_desc_destroy(stored);
}

static int32_t make(const float *w) {
    const int threads = one_thread();
    dnnl_status_t status = dnnl_engine_create(&engine, dnnl_cpu, 0);
    for (int i = 0; i < PARTS && status == dnnl_success; i++)
        status = make_part(i, w);
    as_before(threads);
    return (int32_t)status;
}
