/* onednn_conv.c: primitives for ranges of rows of an image. */
static dnnl_status_t stored_weights(dnnl_memory_desc_t *stored, dnnl_memory_desc_t *any) {
    const dnnl_dims_t dense = {OUT, IN, KH, KW};
    const dnnl_dims_t grouped = {GROUPS, OUT / GROUPS, IN / GROUPS, KH, KW};
    const int rank = GROUPS > 1 ? 5 : 4;
    const int64_t *dims = GROUPS > 1 ? grouped : dense;
    TRY(dnnl_memory_desc_create_with_tag(any, rank, dims, dnnl_f32, dnnl_format_tag_any));
#ifdef STORED_TAG
    return dnnl_memory_desc_create_with_tag(stored, rank, dims, dnnl_f32, STORED_TAG);
#else
    /* (KH, KW, IN / GROUPS, OUT), the channels of a group's output side by side */
    const int64_t pixel = (int64_t)IN / GROUPS * OUT;
    const dnnl_dims_t strides = {OUT / GROUPS, 1, OUT, KW * pixel, pixel};
    return dnnl_memory_desc_create_with_strides(stored, rank, dims, dnnl_f32,
                                                strides + (GROUPS == 1));
#endif
}

static dnnl_status_t describe(dnnl_primitive_desc_t *made, int index, const_dnnl_memory_desc_t w,
                              const_dnnl_primitive_attr_t how) {
    const struct shape *shape = &shapes[index];
    const dnnl_dims_t x_dims = {IMAGES, IN, shape->height, WIDTH};
    const dnnl_dims_t y_dims = {IMAGES, OUT, shape->out_height, OUT_WIDTH};
    const dnnl_dims_t bias_dims = {OUT}, strides = {STRIDE_H, STRIDE_W};
    const dnnl_dims_t dilates = {DILATION_H - 1, DILATION_W - 1};
    const dnnl_dims_t before = {shape->top, LEFT}, after = {shape->bottom, RIGHT};
    dnnl_memory_desc_t x, y, bias = NULL;
    TRY(dnnl_memory_desc_create_with_tag(&x, 4, x_dims, dnnl_f32, dnnl_nhwc));
    TRY(dnnl_memory_desc_create_with_tag(&y, 4, y_dims, dnnl_f32, dnnl_nhwc));
    if (BIAS)
        TRY(dnnl_memory_desc_create_with_tag(&bias, 1, bias_dims, dnnl_f32, dnnl_a));
    const dnnl_status_t status = dnnl_convolution_forward_primitive_desc_create(
        made, engine, dnnl_forward_inference, dnnl_convolution_direct, x, w, bias, y, strides,
        dilates, before, after, how);
    if (BIAS)
        TRY(dnnl_memory_desc_destroy(bias));
    TRY(dnnl_memory_desc_destroy(x));
    TRY(dnnl_memory_desc_destroy(y));
    return status;
}
