/* trace.c: the times of runs and of their steps, written in Chrome's trace format.
 *
 * Events are stored in the caller's memory in the order in which they begin: a run, the sizes of
 * its dimensions, and then its steps. Times are kept as the clock's ticks; they become decimal
 * microseconds when they are written, digit by digit, because 32-bit processors have no 64-bit
 * division and the smallest ones no floats. Format: "Trace Event Format", Google, 2016.
 */
#include "internal.h"

#define NO_RUN UINT32_MAX

kiln_status kiln_trace_open(kiln_trace *trace) {
    if (trace == NULL)
        return KILN_NULL_ARGUMENT;
    trace->count = 0;
    trace->run = NO_RUN;
    trace->missed = 0;
    if (trace->model == NULL || trace->clock == NULL || trace->events == NULL ||
        trace->capacity == 0 || trace->ticks_per_second == 0)
        return KILN_NULL_ARGUMENT;
    return KILN_OK;
}

static bool usable(const kiln_trace *trace, const kiln_session *session) {
    return trace != NULL && session != NULL && trace->model != NULL && trace->clock != NULL &&
           trace->events != NULL && trace->ticks_per_second != 0 && trace->model == session->model;
}

/* The next free event, or null: there is none. */
static kiln_trace_event *next_event(kiln_trace *trace) {
    return trace->count < trace->capacity ? &trace->events[trace->count++] : NULL;
}

kiln_status kiln_trace_begin(kiln_trace *trace, kiln_session *session, const DLTensor *inputs,
                             const DLTensor *outputs) {
    if (!usable(trace, session))
        return kiln_begin(session, inputs, outputs);
    trace->run = NO_RUN;
    const uint64_t begin = trace->clock(trace->user);
    const kiln_status status = kiln_begin(session, inputs, outputs);
    const uint64_t end = trace->clock(trace->user);
    if (status != KILN_OK)
        return status;
    const uint32_t dims = trace->model->dims_count;
    if (trace->capacity - trace->count < dims + 1) {
        trace->missed++;
        return status;
    }
    trace->run = trace->count;
    *next_event(trace) = (kiln_trace_event){begin, end, KILN_TRACE_RUN, session->bucket};
    for (uint32_t i = 0; i < dims; i++)
        *next_event(trace) =
            (kiln_trace_event){(uint64_t)session->dims[i], 0, KILN_TRACE_SIZE, session->bucket};
    return status;
}

kiln_status kiln_trace_step(kiln_trace *trace, kiln_session *session) {
    if (!usable(trace, session))
        return kiln_step(session);
    const uint32_t step = session->step, bucket = session->bucket;
    const bool running = kiln_steps_left(session) != 0;
    const uint64_t begin = trace->clock(trace->user);
    const kiln_status status = kiln_step(session);
    const uint64_t end = trace->clock(trace->user);
    if (!running)
        return status;
    if (trace->run != NO_RUN)
        trace->events[trace->run].end = end;
    kiln_trace_event *event = trace->run != NO_RUN ? next_event(trace) : NULL;
    if (event != NULL)
        *event = (kiln_trace_event){begin, end, step, bucket};
    else
        trace->missed++;
    return status;
}

kiln_status kiln_trace_run(kiln_trace *trace, kiln_session *session, const DLTensor *inputs,
                           const DLTensor *outputs) {
    kiln_status status = kiln_trace_begin(trace, session, inputs, outputs);
    while (status == KILN_OK && kiln_steps_left(session) != 0)
        status = kiln_trace_step(trace, session);
    return status;
}

/* ---- text ---- */

/* A buffer before the caller's function, which gets pieces of a line and not single letters. */
typedef struct text_out {
    kiln_write write;
    void *user;
    int32_t status;
    uint32_t used;
    char text[64];
} text_out;

static void flush(text_out *out) {
    if (out->status == 0 && out->used != 0)
        out->status = out->write(out->user, out->text, out->used);
    out->used = 0;
}

static void put(text_out *out, char letter) {
    if (out->used == sizeof out->text)
        flush(out);
    out->text[out->used++] = letter;
}

static void put_text(text_out *out, const char *text) {
    for (; *text != '\0'; text++)
        put(out, *text);
}

/* A string of JSON. Names are UTF-8, as in the model. */
static void put_string(text_out *out, const char *text) {
    static const char hex[] = "0123456789abcdef";
    put(out, '"');
    for (; *text != '\0'; text++) {
        const unsigned char letter = (unsigned char)*text;
        if (letter < 0x20) {
            put_text(out, "\\u00");
            put(out, hex[letter >> 4]);
            put(out, hex[letter & 15]);
            continue;
        }
        if (letter == '"' || letter == '\\')
            put(out, '\\');
        put(out, (char)letter);
    }
    put(out, '"');
}

static void put_number(text_out *out, uint64_t value) {
    char digits[20];
    uint32_t count = 0;
    do {
        uint64_t digit;
        value = kiln_divide(value, 10, &digit);
        digits[count++] = (char)('0' + digit);
    } while (value != 0);
    while (count != 0)
        put(out, digits[--count]);
}

/* Ten times value / divisor and its remainder, as eight times and twice: compilers turn one sum of
 * shifts into the multiplication that small processors lack. value < divisor < 2^60. */
static uint64_t tenfold(uint64_t value, uint64_t divisor, uint64_t *remainder) {
    uint64_t rest;
    uint64_t quotient = kiln_divide(value << 3, divisor, &rest);
    quotient += kiln_divide(value << 1, divisor, remainder);
    *remainder += rest;
    if (*remainder >= divisor) {
        *remainder -= divisor;
        quotient++;
    }
    return quotient;
}

/* Ticks as microseconds with three decimals, rounded down. */
static void put_microseconds(text_out *out, uint64_t ticks, uint64_t per_second) {
    for (; per_second >> 60 != 0; per_second >>= 1)
        ticks >>= 1;
    uint64_t rest, seconds = kiln_divide(ticks, per_second, &rest);
    if (seconds != 0)
        put_number(out, seconds);
    bool leading = seconds == 0;
    for (int place = 6; place > -3; place--) {
        const uint64_t digit = tenfold(rest, per_second, &rest);
        leading = leading && digit == 0 && place > 1;
        if (place == 0)
            put(out, '.');
        if (!leading)
            put(out, (char)('0' + digit));
    }
}

static void put_event(text_out *out, const kiln_trace *trace, uint32_t index) {
    const kiln_trace_event *event = &trace->events[index];
    const kiln_model *model = trace->model;
    const char *label = "run";
    if (event->step != KILN_TRACE_RUN) {
        label = trace->label != NULL ? trace->label(event->bucket, event->step) : NULL;
        label = label != NULL && *label != '\0' ? label : "step";
    }
    put_text(out, ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"name\":");
    put_string(out, label);
    put_text(out, ",\"cat\":");
    put_string(out, event->step == KILN_TRACE_RUN ? "run" : "step");
    put_text(out, ",\"ts\":");
    put_microseconds(out, event->begin - trace->events[0].begin, trace->ticks_per_second);
    put_text(out, ",\"dur\":");
    put_microseconds(out, event->end - event->begin, trace->ticks_per_second);
    put_text(out, ",\"args\":{\"bucket\":");
    put_string(out, model->buckets[event->bucket].name);
    if (event->step != KILN_TRACE_RUN) {
        put_text(out, ",\"index\":");
        put_number(out, event->step);
    } else {
        for (uint32_t i = 0; i < model->dims_count; i++) {
            put(out, ',');
            put_string(out, model->dims[i].name);
            put(out, ':');
            put_number(out, trace->events[index + 1 + i].begin);
        }
    }
    put_text(out, "}}");
}

int32_t kiln_trace_write(const kiln_trace *trace, kiln_write write, void *user) {
    if (trace == NULL || trace->model == NULL || trace->events == NULL ||
        trace->ticks_per_second == 0 || write == NULL)
        return -1;
    text_out out = {.write = write, .user = user};
    put_text(&out,
             "{\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":1,\"tid\":1,\"name\":\"process_name\","
             "\"args\":{\"name\":");
    put_string(&out, trace->model->name);
    put_text(&out, "}}");
    for (uint32_t i = 0; i < trace->count && out.status == 0; i++)
        if (trace->events[i].step != KILN_TRACE_SIZE)
            put_event(&out, trace, i);
    put_text(&out, "\n],\"displayTimeUnit\":\"ms\",\"otherData\":{\"model\":");
    put_string(&out, trace->model->name);
    put_text(&out, ",\"missed\":");
    put_number(&out, trace->missed);
    put_text(&out, "}}\n");
    flush(&out);
    return out.status;
}
