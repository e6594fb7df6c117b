/* onednn_product.c: primitives for a number of rows of a matrix, for any number of rows, and for
 * batches of matrix products. */
#define ANY DNNL_RUNTIME_DIM_VAL

static dnnl_status_t plain(dnnl_memory_desc_t *made, int64_t batch, int64_t rows, int64_t columns) {
    const dnnl_dims_t dims = {batch, rows, columns};
    const dnnl_dims_t strides = {rows == ANY || columns == ANY ? ANY : rows * columns, columns, 1};
    return dnnl_memory_desc_create_with_strides(made, 2 + BATCHED, dims + !BATCHED, dnnl_f32,
                                                strides + !BATCHED);
}

static dnnl_status_t stored_weights(dnnl_memory_desc_t *stored, dnnl_memory_desc_t *any) {
    const dnnl_dims_t dims = {BATCH, DEPTH, COLUMNS};
#ifdef STORED_TAG
    TRY(dnnl_memory_desc_create_with_tag(stored, 2, dims + 1, dnnl_f32, STORED_TAG));
#else
    TRY(plain(stored, BATCH, DEPTH, COLUMNS));
#endif
    if (BATCHED) /* computed at run time: as they are */
        return plain(any, BATCH, DEPTH, COLUMNS);
    return dnnl_memory_desc_create_with_tag(any, 2, dims + 1, dnnl_f32, dnnl_format_tag_any);
}

static dnnl_status_t describe(dnnl_primitive_desc_t *made, int index, const_dnnl_memory_desc_t w,
                              const_dnnl_primitive_attr_t how) {
    dnnl_memory_desc_t x, y, bias = NULL;
    TRY(plain(&x, BATCH, rows_of[index], DEPTH));
    TRY(plain(&y, BATCH, rows_of[index], COLUMNS));
    if (BIAS)
        TRY(plain(&bias, 1, 1, COLUMNS));
    const dnnl_status_t status =
        dnnl_matmul_primitive_desc_create(made, engine, x, w, bias, y, how);
    if (BIAS)
        TRY(dnnl_memory_desc_destroy(bias));
    TRY(dnnl_memory_desc_destroy(x));
    TRY(dnnl_memory_desc_destroy(y));
    return status;
}

#if IS_DYNAMIC
/* A part of which a size is known only now. */
static dnnl_status_t run_dynamic(struct part *part, const float *x, const float *w,
                                 const float *bias, float *y, int64_t batch, int64_t rows,
                                 int64_t depth, int64_t columns) {
    struct binding *with;
    dnnl_memory_desc_t x_form, w_form, y_form;
    TRY(plain(&x_form, batch, rows, depth));
    TRY(plain(&w_form, batch, depth, columns));
    TRY(plain(&y_form, batch, rows, columns));
    dnnl_status_t status = bind(&with, part, x_form, w_form, y_form);
    if (status == dnnl_success) {
        status = execute(with, part, x, w, bias, y);
        release(with);
    }
    TRY(dnnl_memory_desc_destroy(x_form));
    TRY(dnnl_memory_desc_destroy(w_form));
    TRY(dnnl_memory_desc_destroy(y_form));
    return status;
}
#endif
