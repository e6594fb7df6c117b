/* check.c: check that the caller's tensors have the model's shapes.
 *
 * Reads rank, dtype and shape, never data. A free dimension takes its size from the first axis with
 * that dimension; the size is compared with the dimension's range and multiple, and with every
 * later axis of the same dimension. Once all free dimensions are known, the derived dimensions are
 * computed and compared with their axes.
 */
#include "internal.h"

kiln_status kiln_fail(kiln_detail *detail, const kiln_detail *error) {
    if (detail != NULL)
        *detail = *error;
    return error->status;
}

kiln_status kiln_fail_plain(kiln_detail *detail, kiln_status status) {
    if (detail != NULL)
        *detail = (kiln_detail){.status = status, .index = -1, .axis = -1};
    return status;
}

/* Fill in an error, but for its place and its status, which is returned. */
static kiln_status found(kiln_detail *error, kiln_status status, int64_t value, int64_t min,
                         int64_t max) {
    *error = (kiln_detail){.value = value, .min = min, .max = max};
    return status;
}

static int32_t dtype_code(DLDataType type) {
    return type.code | type.bits << 8 | (int32_t)type.lanes << 16;
}

/* Check rank, dtype, and that the shape is not null. This function and check_axis call `found` for
 * what is wrong alone, for most runs have no errors. */
static kiln_status check_form(const kiln_tensor *want, const DLTensor *given, kiln_detail *error) {
    if (given->ndim != want->rank)
        return found(error, KILN_BAD_RANK, given->ndim, want->rank, want->rank);
    const int32_t a = dtype_code(given->dtype), b = dtype_code(want->dtype);
    if (a != b)
        return found(error, KILN_BAD_DTYPE, a, b, 0);
    return want->rank > 0 && given->shape == NULL ? found(error, KILN_NULL_DATA, 0, 0, 0) : KILN_OK;
}

/* Check one axis. The size of a free dimension whose bit in `bound` is not set is read from the
 * axis; an axis of a derived dimension is checked later. */
static kiln_status check_axis(const kiln_model *model, int64_t want, int64_t given, int64_t *dims,
                              uint32_t *bound, kiln_detail *error) {
    kiln_status differs = KILN_BAD_SHAPE;
    if (want < 0) {
        const uint32_t index = (uint32_t)(-1 - want);
        if ((*bound >> index & 1u) == 0) {
            if (index >= model->dims_count)
                return KILN_OK;
            dims[index] = given;
            *bound |= 1u << index;
            return model->dynamic->check(model, index, given, error);
        }
        want = dims[index];
        differs = KILN_DIM_MISMATCH;
    }
    return given == want ? KILN_OK : found(error, differs, given, want, want);
}

static kiln_status check_all(const kiln_model *model, const kiln_tensor *tensors, uint32_t count,
                             const DLTensor *given, int64_t *dims, uint32_t bound, kiln_where where,
                             kiln_detail *detail) {
    kiln_detail error;
    if (given == NULL && count > 0) {
        error =
            (kiln_detail){.status = KILN_NULL_ARGUMENT, .where = where, .index = -1, .axis = -1};
        return kiln_fail(detail, &error);
    }
    for (uint32_t i = 0; i < count; i++) {
        int32_t axis = -1;
        kiln_status status = check_form(&tensors[i], &given[i], &error);
        while (status == KILN_OK && ++axis < tensors[i].rank)
            status = check_axis(model, tensors[i].shape[axis], given[i].shape[axis], dims, &bound,
                                &error);
        if (status == KILN_OK)
            continue;
        error.status = status;
        error.where = where;
        error.name = tensors[i].name;
        error.index = (int32_t)i;
        error.axis = axis;
        return kiln_fail(detail, &error);
    }
    return KILN_OK;
}

kiln_status kiln_check_inputs(const kiln_model *model, const DLTensor *inputs, int64_t *dims,
                              kiln_detail *detail) {
    for (uint32_t i = 0; i < model->dims_count; i++)
        dims[i] = model->dims[i].min;
    kiln_status status = check_all(model, model->inputs, model->inputs_count, inputs, dims, 0,
                                   KILN_AT_INPUT, detail);
    if (status != KILN_OK || model->derived_count == 0)
        return status;
    model->dynamic->derive(model, dims);
    return check_all(model, model->inputs, model->inputs_count, inputs, dims, UINT32_MAX,
                     KILN_AT_INPUT, detail);
}

kiln_status kiln_check_outputs(const kiln_model *model, const DLTensor *outputs,
                               const int64_t *dims, kiln_detail *detail) {
    /* Every bit of `bound` is set, so dims is only read. */
    return check_all(model, model->outputs, model->outputs_count, outputs, (int64_t *)dims,
                     UINT32_MAX, KILN_AT_OUTPUT, detail);
}
