/* traffic.c: counts of runs by the sizes of their dimensions, and by the contents of their inputs.
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

kiln_status kiln_traffic_contents(kiln_traffic *traffic, kiln_traffic_content *contents,
                                  size_t count) {
    if (traffic == NULL || traffic->model == NULL || contents == NULL)
        return KILN_NULL_ARGUMENT;
    const uint64_t needed = (uint64_t)traffic->rows_count * traffic->model->inputs_count;
    if (count < needed)
        return KILN_NULL_ARGUMENT;
    for (size_t i = 0; i < (size_t)needed; i++)
        contents[i] = (kiln_traffic_content){0};
    traffic->contents = contents;
    return KILN_OK;
}

/* Count a run with the session's sizes; returns its row, or null: it was missed. */
static kiln_traffic_row *counted(kiln_traffic *traffic, const kiln_session *session) {
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
            return row;
        }
        if (same)
            break;
        if (++at == traffic->rows_count)
            at = 0;
    }
    traffic->missed++;
    return NULL;
}

static bool usable(const kiln_traffic *traffic, const kiln_session *session) {
    return traffic != NULL && session != NULL && traffic->model != NULL &&
           session->model == traffic->model;
}

void kiln_traffic_count(kiln_traffic *traffic, const kiln_session *session) {
    if (usable(traffic, session))
        (void)counted(traffic, session);
}

/* The bytes of the number 1 in a type; null for a type whose contents are not counted. */
static const unsigned char *one_of(DLDataType type) {
    static const unsigned char byte = 1;
    static const uint16_t whole16 = 1, half = 0x3c00u, brain = 0x3f80u;
    static const uint32_t whole32 = 1, single = 0x3f800000u;
    static const uint64_t whole64 = 1, wide = 0x3ff0000000000000u;
    const bool real = type.code == kDLFloat;
    const bool whole = type.code == kDLInt || type.code == kDLUInt || type.code == kDLBool;
    if (type.lanes != 1 || (type.code == kDLBfloat ? type.bits != 16 : !real && !whole))
        return NULL;
    switch (type.bits) {
    case 8:
        return real ? NULL : &byte;
    case 16:
        return (const unsigned char *)(real ? &half : whole ? &whole16 : &brain);
    case 32:
        return (const unsigned char *)(real ? &single : &whole32);
    case 64:
        return (const unsigned char *)(real ? &wide : &whole64);
    default:
        return NULL;
    }
}

void kiln_traffic_count_inputs(kiln_traffic *traffic, const kiln_session *session,
                               const void *const *data) {
    if (!usable(traffic, session))
        return;
    const kiln_traffic_row *row = counted(traffic, session);
    const kiln_model *model = traffic->model;
    if (row == NULL || data == NULL || traffic->contents == NULL)
        return;
    int64_t dims[KILN_MAX_DIMS];
    for (uint32_t i = 0; i < KILN_MAX_DIMS; i++)
        dims[i] = session->dims[i];
    for (uint32_t i = 0; i < model->inputs_count; i++) {
        const kiln_tensor *about = &model->inputs[i];
        if (data[i] == NULL || kiln_tensor_shape(about, dims, NULL) == 0)
            continue;
        const DLTensor tensor = kiln_bind(about, NULL, data[i]);
        const kiln_frame frame = {.inputs = &tensor, .dims = dims};
        static const unsigned char zero[8];
        const unsigned char *one = one_of(about->dtype);
        const size_t place = (size_t)(row - traffic->rows) * model->inputs_count + i;
        kiln_traffic_content *content = &traffic->contents[place];
        /* The row's count, which is not less, stops before they overflow. */
        if (one == NULL)
            content->other++;
        else if (kiln_input_filled(&frame, about, 0, zero))
            content->zeros++;
        else if (kiln_input_filled(&frame, about, 0, one))
            content->ones++;
        else
            content->other++;
    }
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

/* A name of the header: quoted, since it may contain commas. */
static int32_t column(const char *name, const char *kind, kiln_write write, void *user) {
    int32_t status = write(user, ",\"", 2);
    while (*name != '\0' && status == 0) {
        size_t length = 0;
        while (name[length] != '\0' && name[length] != '"')
            length++;
        if (length != 0)
            status = write(user, name, length);
        name += length;
        if (status == 0 && *name == '"') {
            status = write(user, "\"\"", 2);
            name++;
        }
    }
    size_t length = 0;
    while (kind[length] != '\0')
        length++;
    return status == 0 ? write(user, kind, length) : status;
}

static int32_t write_header(const kiln_traffic *traffic, kiln_write write, void *user) {
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
        status = write(user, "count", 5);
    for (uint32_t i = 0; i < model->inputs_count && traffic->contents != NULL; i++) {
        static const char *const kinds[] = {":zeros\"", ":ones\"", ":other\""};
        for (int kind = 0; kind < 3 && status == 0; kind++)
            status = column(model->inputs[i].name, kinds[kind], write, user);
    }
    return status == 0 ? write(user, "\n", 1) : status;
}

/* The contents of a row, and the end of its line. */
static int32_t write_contents(const kiln_traffic *traffic, uint32_t row, kiln_write write,
                              void *user) {
    const uint32_t inputs = traffic->contents != NULL ? traffic->model->inputs_count : 0;
    int32_t status = 0;
    for (uint32_t i = 0; i < inputs && status == 0; i++) {
        const kiln_traffic_content *content = &traffic->contents[(size_t)row * inputs + i];
        status = cell(content->zeros, ',', write, user);
        if (status == 0)
            status = cell(content->ones, ',', write, user);
        if (status == 0)
            status = cell(content->other, i + 1 == inputs ? '\n' : ',', write, user);
    }
    return status;
}

int32_t kiln_traffic_write(const kiln_traffic *traffic, kiln_write write, void *user) {
    if (traffic == NULL || traffic->model == NULL || write == NULL)
        return -1;
    const kiln_model *model = traffic->model;
    const bool more = traffic->contents != NULL && model->inputs_count != 0;
    int32_t status = write_header(traffic, write, user);
    for (uint32_t row = 0; row < traffic->rows_count && status == 0; row++) {
        const kiln_traffic_row *entry = &traffic->rows[row];
        if (entry->count == 0)
            continue;
        for (uint32_t i = 0; i < model->dims_count && status == 0; i++)
            status = cell((uint32_t)entry->dims[i], ',', write, user);
        if (status == 0)
            status = cell(entry->count, more ? ',' : '\n', write, user);
        if (status == 0)
            status = write_contents(traffic, row, write, user);
    }
    if (traffic->missed != 0) { /* a row without sizes and contents */
        for (uint32_t i = 0; i < model->dims_count && status == 0; i++)
            status = write(user, ",", 1);
        const bool fits = traffic->missed < UINT32_MAX;
        if (status == 0)
            status =
                cell(fits ? (uint32_t)traffic->missed : UINT32_MAX, more ? ',' : '\n', write, user);
        for (uint32_t i = 0; i < model->inputs_count && more && status == 0; i++)
            status = write(user, i + 1 == model->inputs_count ? ",,\n" : ",,,", 3);
    }
    return status;
}
