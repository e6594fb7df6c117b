/* regions.c: an arena and parameters in several regions of memory. Linked into programs
 * whose model has such parts, and into no other.
 */
#include "internal.h"

static bool shared(const void *one, size_t one_bytes, const void *other, size_t other_bytes) {
    const uintptr_t a = (uintptr_t)one, b = (uintptr_t)other;
    return one_bytes > 0 && other_bytes > 0 && (a - b < other_bytes || b - a < one_bytes);
}

int32_t kiln_in_region(const kiln_model *model, const kiln_config *config, const void *data,
                       size_t bytes) {
    for (uint32_t i = 0; i < model->regions_count; i++)
        if (shared(data, bytes, config->regions[i].data, model->regions[i].bytes))
            return 1;
    return 0;
}

kiln_status kiln_open_regions(const kiln_model *model, const kiln_config *config,
                              kiln_detail *detail) {
    const kiln_memory none = {NULL, 0};
    for (uint32_t i = 0; i < model->regions_count; i++) {
        const kiln_region *want = &model->regions[i];
        const kiln_memory given = config->regions == NULL ? none : config->regions[i];
        kiln_status status =
            kiln_check_block(given.data, given.bytes, want->bytes, model->arena_align,
                             KILN_AT_ARENA, KILN_ARENA_NULL, detail);
        bool overlaps = shared(given.data, want->bytes, config->arena, config->arena_bytes) ||
                        shared(given.data, want->bytes, config->state, model->state_bytes);
        for (uint32_t j = 0; status == KILN_OK && j < i; j++)
            overlaps = overlaps || shared(given.data, want->bytes, config->regions[j].data,
                                          model->regions[j].bytes);
        if (status == KILN_OK && overlaps)
            status = kiln_fail_plain(detail, KILN_OVERLAP);
        if (status != KILN_OK) {
            detail->where = KILN_AT_ARENA;
            detail->name = want->name;
            detail->value = status == KILN_OVERLAP ? -1 : detail->value;
            return status;
        }
    }
    return KILN_OK;
}

kiln_status kiln_check_parts(const kiln_model *model, uint32_t flags, kiln_detail *detail) {
    for (uint32_t i = 0; i < model->parts_count; i++) {
        const unsigned char *payload;
        kiln_model part = *model;
        part.params = model->parts[i].image;
        part.params_bytes = model->parts[i].bytes;
        part.check_parts = NULL;
        const kiln_status status =
            kiln_accept_params(&part, NULL, SIZE_MAX, flags, &payload, detail);
        if (status != KILN_OK) {
            if (detail != NULL)
                detail->name = model->parts[i].name;
            return status;
        }
    }
    return KILN_OK;
}
