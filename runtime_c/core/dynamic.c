/* dynamic.c: dynamic dimensions: their ranges, the sizes derived from them, and the error for sizes
 * that no bucket accepts. Linked only into programs whose model has dynamic dimensions.
 */
#include "internal.h"

static kiln_status check_dim(const kiln_model *model, uint32_t index, int64_t value,
                             kiln_detail *error) {
    const kiln_dim *dim = &model->dims[index];
    uint64_t remainder = 0;
    error->value = value;
    error->min = dim->min;
    error->max = dim->max;
    error->multiple = dim->multiple;
    if (value < dim->min || value > dim->max)
        return KILN_DIM_RANGE;
    if (dim->multiple > 1)
        (void)kiln_divide((uint64_t)value, (uint64_t)dim->multiple, &remainder);
    return remainder == 0 ? KILN_OK : KILN_DIM_MULTIPLE;
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

/* Whether a bucket's box, if it has one, contains these sizes, dimension `except` left out. */
static bool accepts_others(const kiln_model *model, const kiln_bucket *bucket, const int64_t *dims,
                           uint32_t except) {
    const int32_t *box = bucket->box;
    for (uint32_t i = 0; box != NULL && i < model->dims_count; i++) {
        const int32_t size = (int32_t)dims[i]; /* in its range, which ends at INT32_MAX */
        if (i != except && (size < box[2 * i] || size > box[2 * i + 1]))
            return false;
    }
    return box != NULL;
}

/* Set *below and *above to the nearest sizes of dimension `at` that buckets accept, -1 without one.
 * Only buckets that accept the sizes of all other dimensions count, or with `alone` all buckets.
 * Returns false if one of these buckets accepts the size of `at` itself. */
static bool find_nearest(const kiln_model *model, const int64_t *dims, uint32_t at, bool alone,
                         int32_t *below, int32_t *above) {
    const int32_t size = (int32_t)dims[at];
    *below = *above = -1;
    for (uint32_t i = 0; i < model->buckets_count; i++) {
        const kiln_bucket *bucket = &model->buckets[i];
        if (bucket->box == NULL || !(alone || accepts_others(model, bucket, dims, at)))
            continue;
        const int32_t least = bucket->box[2 * at], most = bucket->box[2 * at + 1];
        if (least <= size && size <= most)
            return false;
        if (most < size && most > *below)
            *below = most;
        if (least > size && (*above < 0 || least < *above))
            *above = least;
    }
    return true;
}

/* The error for sizes that no bucket accepts. It names the first dimension whose size no bucket
 * accepts; if each size is accepted by some bucket, dimension 0, with the nearest sizes of it that
 * a bucket accepts together with the other dimensions' sizes. */
static kiln_status no_bucket(const kiln_model *model, const int64_t *dims, kiln_detail *detail) {
    kiln_detail error = {.status = KILN_NO_BUCKET, .where = KILN_AT_DIM, .index = -1, .axis = -1};
    int32_t below, above;
    uint32_t at = 0;
    while (at < model->dims_count && !find_nearest(model, dims, at, true, &below, &above))
        at++;
    if (at == model->dims_count) {
        at = 0;
        (void)find_nearest(model, dims, at, false, &below, &above);
    }
    error.index = (int32_t)at;
    error.name = model->dims[at].name;
    error.value = dims[at];
    error.min = below;
    error.max = above;
    return kiln_fail(detail, &error);
}

const kiln_dynamic_functions kiln_dynamic = {check_dim, kiln_derive, no_bucket};
