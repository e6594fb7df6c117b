/* check.c: do the caller's tensors have the model's shapes?
 *
 * Reads rank, dtype and shape, never data. A free dimension takes its size from the first axis that
 * has it, and is then held against its range and its multiple, and against every later axis. Once
 * all of them are known, the derived dimensions are computed and held against the axes that have
 * them.
 */
#include "internal.h"

kiln_status kiln_fail(kiln_detail *detail, const kiln_detail *error) {
    if (detail != NULL)
        *detail = *error;
    return error->status;
}

kiln_status kiln_check_dim(const kiln_model *model, uint32_t index, int64_t value,
                           kiln_detail *error, kiln_detail *detail) {
    const kiln_dim *dim = &model->dims[index];
    uint64_t remainder = 0;
    error->value = value;
    error->min = dim->min;
    error->max = dim->max;
    error->multiple = dim->multiple;
    error->status = KILN_DIM_RANGE;
    if (value < dim->min || value > dim->max)
        return kiln_fail(detail, error);
    if (dim->multiple > 1)
        (void)kiln_divide((uint64_t)value, (uint64_t)dim->multiple, &remainder);
    error->status = KILN_DIM_MULTIPLE;
    return remainder == 0 ? KILN_OK : kiln_fail(detail, error);
}

/* Rank, dtype and that there is a shape; error says which tensor. */
static kiln_status check_form(const kiln_tensor *want, const DLTensor *given, kiln_detail *error,
                              kiln_detail *detail) {
    if (given->ndim != want->rank) {
        error->status = KILN_BAD_RANK;
        error->value = given->ndim;
        error->min = error->max = want->rank;
        return kiln_fail(detail, error);
    }
    const DLDataType a = given->dtype, b = want->dtype;
    if (a.code != b.code || a.bits != b.bits || a.lanes != b.lanes) {
        error->status = KILN_BAD_DTYPE;
        error->value = a.code | a.bits << 8 | (int64_t)a.lanes << 16;
        error->min = b.code | b.bits << 8 | (int64_t)b.lanes << 16;
        return kiln_fail(detail, error);
    }
    if (want->rank > 0 && given->shape == NULL) {
        error->status = KILN_NULL_DATA;
        return kiln_fail(detail, error);
    }
    return KILN_OK;
}

/* One axis; a free dimension of which `bound` has no bit yet is read from it, a derived one left
 * for later. */
static kiln_status check_axis(const kiln_model *model, int64_t want, int64_t given, int64_t *dims,
                              uint32_t *bound, kiln_detail *error, kiln_detail *detail) {
    error->status = KILN_BAD_SHAPE;
    if (want < 0) {
        const uint32_t index = (uint32_t)(-1 - want);
        if ((*bound >> index & 1u) == 0) {
            if (index >= model->dims_count)
                return KILN_OK;
            dims[index] = given;
            *bound |= 1u << index;
            return kiln_check_dim(model, index, given, error, detail);
        }
        want = dims[index];
        error->status = KILN_DIM_MISMATCH;
    }
    error->multiple = 0; /* an earlier axis may have set it */
    error->value = given;
    error->min = error->max = want;
    return given == want ? KILN_OK : kiln_fail(detail, error);
}

static kiln_status check_all(const kiln_model *model, const kiln_tensor *tensors, uint32_t count,
                             const DLTensor *given, int64_t *dims, uint32_t bound, kiln_where where,
                             kiln_detail *detail) {
    kiln_detail error = {.where = where, .index = -1, .axis = -1};
    if (given == NULL && count > 0) {
        error.status = KILN_NULL_ARGUMENT;
        return kiln_fail(detail, &error);
    }
    for (uint32_t i = 0; i < count; i++) {
        error =
            (kiln_detail){.where = where, .name = tensors[i].name, .index = (int32_t)i, .axis = -1};
        kiln_status status = check_form(&tensors[i], &given[i], &error, detail);
        for (int32_t axis = 0; status == KILN_OK && axis < tensors[i].rank; axis++) {
            error.axis = axis;
            status = check_axis(model, tensors[i].shape[axis], given[i].shape[axis], dims, &bound,
                                &error, detail);
        }
        if (status != KILN_OK)
            return status;
    }
    return KILN_OK;
}

void kiln_derive(const kiln_model *model, int64_t *dims) {
    bool known = model->derive != NULL;
    for (uint32_t i = 0; i < model->dims_count; i++)
        known = known && dims[i] >= model->dims[i].min && dims[i] <= model->dims[i].max;
    if (known)
        model->derive(dims);
    for (uint32_t i = 0; !known && i < model->derived_count; i++)
        dims[model->dims_count + i] = 0;
}

kiln_status kiln_check_inputs(const kiln_model *model, const DLTensor *inputs, int64_t *dims,
                              kiln_detail *detail) {
    for (uint32_t i = 0; i < model->dims_count; i++)
        dims[i] = model->dims[i].min;
    kiln_status status = check_all(model, model->inputs, model->inputs_count, inputs, dims, 0,
                                   KILN_AT_INPUT, detail);
    if (status != KILN_OK || model->derived_count == 0)
        return status;
    kiln_derive(model, dims);
    return check_all(model, model->inputs, model->inputs_count, inputs, dims, UINT32_MAX,
                     KILN_AT_INPUT, detail);
}

kiln_status kiln_check_outputs(const kiln_model *model, const DLTensor *outputs,
                               const int64_t *dims, kiln_detail *detail) {
    /* Every bit of `bound` is set, so dims is only read. */
    return check_all(model, model->outputs, model->outputs_count, outputs, (int64_t *)dims,
                     UINT32_MAX, KILN_AT_OUTPUT, detail);
}
