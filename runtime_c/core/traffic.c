/* traffic.c: counts of runs by the sizes of their dimensions.
 *
 * An open-addressed hash table in the caller's memory. A search visits all rows, so the sizes of a
 * run are lost only if all rows hold other sizes. Such runs are counted and written without sizes.
 */
#include "internal.h"

kiln_status kiln_traffic_open(kiln_traffic *traffic, const kiln_model *model,
                              kiln_traffic_row *rows, size_t count) {
    if (traffic == NULL)
        return KILN_NULL_ARGUMENT;
    *traffic = (kiln_traffic){.model = NULL};
    if (model == NULL || rows == NULL || count == 0 || count > UINT32_MAX)
        return KILN_NULL_ARGUMENT;
    *traffic = (kiln_traffic){.model = model, .rows = rows, .rows_count = (uint32_t)count};
    for (size_t i = 0; i < count; i++)
        rows[i].count = 0;
    return KILN_OK;
}

void kiln_traffic_count(kiln_traffic *traffic, const kiln_session *session) {
    if (traffic == NULL || session == NULL || traffic->model == NULL ||
        session->model != traffic->model)
        return;
    const uint32_t dims = traffic->model->dims_count;
    uint32_t hash = 2166136261u; /* FNV-1a, by whole sizes */
    for (uint32_t i = 0; i < dims; i++)
        hash = (hash ^ (uint32_t)session->dims[i]) * 16777619u;
    /* The hash as a fraction of 2^32, times the rows: its place without a division. */
    uint32_t at = (uint32_t)(((uint64_t)hash * traffic->rows_count) >> 32);
    for (uint32_t probe = 0; probe < traffic->rows_count; probe++) {
        kiln_traffic_row *row = &traffic->rows[at];
        bool same = true;
        for (uint32_t i = 0; i < dims && row->count != 0; i++)
            same = same && row->dims[i] == (int32_t)session->dims[i];
        if (row->count == 0)
            for (uint32_t i = 0; i < dims; i++)
                row->dims[i] = (int32_t)session->dims[i];
        if (same && row->count < UINT32_MAX) {
            row->count++;
            return;
        }
        if (same)
            break;
        if (++at == traffic->rows_count)
            at = 0;
    }
    traffic->missed++;
}

/* Write `value` in decimal, backwards from `end`; returns the address of the first digit. */
static char *decimal(uint32_t value, char *end) {
    do {
        *--end = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    return end;
}

static int32_t cell(uint32_t value, char after, kiln_write write, void *user) {
    char text[11];
    text[10] = after;
    const char *begin = decimal(value, text + 10);
    return write(user, begin, (size_t)(text + 11 - begin));
}

int32_t kiln_traffic_write(const kiln_traffic *traffic, kiln_write write, void *user) {
    if (traffic == NULL || traffic->model == NULL || write == NULL)
        return -1;
    const kiln_model *model = traffic->model;
    int32_t status = 0;
    for (uint32_t i = 0; i < model->dims_count && status == 0; i++) {
        size_t length = 0;
        while (model->dims[i].name[length] != '\0')
            length++;
        status = write(user, model->dims[i].name, length);
        if (status == 0)
            status = write(user, ",", 1);
    }
    if (status == 0)
        status = write(user, "count\n", 6);
    for (uint32_t row = 0; row < traffic->rows_count && status == 0; row++) {
        const kiln_traffic_row *entry = &traffic->rows[row];
        if (entry->count == 0)
            continue;
        for (uint32_t i = 0; i < model->dims_count && status == 0; i++)
            status = cell((uint32_t)entry->dims[i], ',', write, user);
        if (status == 0)
            status = cell(entry->count, '\n', write, user);
    }
    if (traffic->missed != 0) { /* a row without sizes */
        for (uint32_t i = 0; i < model->dims_count && status == 0; i++)
            status = write(user, ",", 1);
        const bool fits = traffic->missed < UINT32_MAX;
        if (status == 0)
            status = cell(fits ? (uint32_t)traffic->missed : UINT32_MAX, '\n', write, user);
    }
    return status;
}
