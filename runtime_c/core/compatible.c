/* compatible.c: whether a model that comes later can stand in for the one that a program was built
 * with. Linked only into programs that call kiln_compatible or kiln_load.
 */
#include "internal.h"

static bool same(const char *left, const char *right) {
    while (*left != '\0' && *left == *right) {
        left++;
        right++;
    }
    return *left == *right;
}

static int64_t dtype_of(DLDataType type) {
    return type.code | (int64_t)type.bits << 8 | (int64_t)type.lanes << 16;
}

/* One axis: a fixed size, or the same dimension. */
static kiln_status axis_fits(int64_t found, int64_t wanted, kiln_detail *at) {
    if (found == wanted)
        return KILN_OK;
    const bool fixed = found >= 0 && wanted >= 0;
    at->status = fixed ? KILN_BAD_SHAPE : KILN_OTHER_INTERFACE;
    at->value = found;
    at->min = at->max = wanted;
    return at->status;
}

static kiln_status tensor_fits(const kiln_tensor *found, const kiln_tensor *wanted,
                               kiln_detail *at) {
    at->name = wanted->name;
    at->status = KILN_OK;
    if (!same(found->name, wanted->name)) {
        at->status = KILN_OTHER_NAME;
    } else if (dtype_of(found->dtype) != dtype_of(wanted->dtype)) {
        at->status = KILN_BAD_DTYPE;
        at->value = dtype_of(found->dtype);
        at->min = dtype_of(wanted->dtype);
    } else if (found->rank != wanted->rank) {
        at->status = KILN_BAD_RANK;
        at->value = found->rank;
        at->min = at->max = wanted->rank;
    } else if (found->scale != wanted->scale || found->zero_point != wanted->zero_point) {
        at->status = KILN_OTHER_SCALE;
    }
    for (int32_t axis = 0; at->status == KILN_OK && axis < wanted->rank; axis++) {
        at->axis = axis;
        (void)axis_fits(found->shape[axis], wanted->shape[axis], at);
    }
    return at->status;
}

static kiln_status tensors_fit(const kiln_tensor *found, uint32_t found_count,
                               const kiln_tensor *wanted, uint32_t count, kiln_where where,
                               kiln_detail *detail) {
    if (found_count != count) {
        const kiln_detail error = {.status = KILN_OTHER_INTERFACE,
                                   .where = where,
                                   .index = -1,
                                   .axis = -1,
                                   .value = found_count,
                                   .min = count,
                                   .max = count};
        return kiln_fail(detail, &error);
    }
    for (uint32_t i = 0; i < count; i++) {
        kiln_detail at = {.where = where, .index = (int32_t)i, .axis = -1};
        if (tensor_fits(&found[i], &wanted[i], &at) != KILN_OK)
            return kiln_fail(detail, &at);
    }
    return KILN_OK;
}

/* All sizes that the program may use are sizes of the model. */
static kiln_status dim_fits(const kiln_dim *found, const kiln_dim *wanted, kiln_detail *at) {
    uint64_t rest = 0;
    (void)kiln_divide((uint64_t)wanted->multiple, (uint64_t)found->multiple, &rest);
    at->name = wanted->name;
    at->status = KILN_OK;
    if (!same(found->name, wanted->name)) {
        at->status = KILN_OTHER_NAME;
    } else if (found->min > wanted->min) {
        at->status = KILN_DIM_RANGE;
        at->value = found->min;
        at->max = wanted->min;
    } else if (found->max < wanted->max) {
        at->status = KILN_DIM_RANGE;
        at->value = found->max;
        at->min = wanted->max;
        at->max = INT32_MAX;
    } else if (rest != 0) {
        at->status = KILN_DIM_MULTIPLE;
        at->value = found->multiple;
        at->min = at->max = wanted->multiple;
    }
    return at->status;
}

/* The derived sizes agree where all free ones are the least, and where they are the greatest. */
static kiln_status derived_fit(const kiln_model *model, const kiln_model *built,
                               kiln_detail *detail) {
    for (int greatest = 0; greatest < 2 && built->derived_count > 0; greatest++) {
        int64_t found[KILN_MAX_DIMS] = {0}, wanted[KILN_MAX_DIMS] = {0};
        for (uint32_t i = 0; i < built->dims_count; i++)
            found[i] = wanted[i] = greatest ? built->dims[i].max : built->dims[i].min;
        model->derive(found);
        built->derive(wanted);
        for (uint32_t i = 0; i < built->derived_count; i++) {
            const uint32_t at = built->dims_count + i;
            kiln_detail error = {.where = KILN_AT_DIM, .index = (int32_t)at, .axis = -1};
            if (axis_fits(found[at], wanted[at], &error) != KILN_OK)
                return kiln_fail(detail, &error);
        }
    }
    return KILN_OK;
}

kiln_status kiln_compatible(const kiln_model *model, const kiln_model *built, kiln_detail *detail) {
    if (model == NULL || built == NULL)
        return kiln_fail_plain(detail, KILN_NULL_ARGUMENT);
    kiln_detail error = {.where = KILN_AT_SESSION, .index = -1, .axis = -1};
    if (model->abi != KILN_ABI || built->abi != KILN_ABI) {
        error.status = KILN_WRONG_ABI;
        error.value = model->abi != KILN_ABI ? model->abi : built->abi;
        error.min = error.max = KILN_ABI;
        return kiln_fail(detail, &error);
    }
    kiln_status status = tensors_fit(model->inputs, model->inputs_count, built->inputs,
                                     built->inputs_count, KILN_AT_INPUT, detail);
    if (status == KILN_OK)
        status = tensors_fit(model->outputs, model->outputs_count, built->outputs,
                             built->outputs_count, KILN_AT_OUTPUT, detail);
    if (status != KILN_OK)
        return status;
    if (model->dims_count != built->dims_count || model->derived_count != built->derived_count) {
        const bool free = model->dims_count != built->dims_count;
        error.status = KILN_OTHER_INTERFACE;
        error.where = KILN_AT_DIM;
        error.value = free ? model->dims_count : model->derived_count;
        error.min = error.max = free ? built->dims_count : built->derived_count;
        return kiln_fail(detail, &error);
    }
    for (uint32_t i = 0; i < built->dims_count; i++) {
        kiln_detail at = {.where = KILN_AT_DIM, .index = (int32_t)i, .axis = -1};
        if (dim_fits(&model->dims[i], &built->dims[i], &at) != KILN_OK)
            return kiln_fail(detail, &at);
    }
    status = derived_fit(model, built, detail);
    return status == KILN_OK ? kiln_fail_plain(detail, KILN_OK) : status;
}
