/* try_session.c: what a program does with sessions on a GPU, said on standard output, for
 * test_cuda_session.py. It is for the stand-in of the driver (fake_cuda.c), where memory on the GPU
 * can be written from here.
 *
 *     try_session INPUT                     INPUT holds the bytes of input 0
 *     try_session INPUT close|cancel|run    what on_step of a run calls before its second step
 *     try_session INPUT streams             runs among a caller's own work on streams
 *     try_session INPUT again               two sessions, the first of which runs twice
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include KILN_HEADER
#include "kiln_cuda.h"

static void say(const char *what, kiln_session *session, kiln_status status) {
    char text[256];
    kiln_detail_text(kiln_error(session), text, sizeof text);
    printf("%s\t%s\t%s\n", what, kiln_status_name(status), status == KILN_OK ? "" : text);
}

static void show(const char *what, const unsigned char *data, size_t bytes) {
    printf("%s\t", what);
    for (size_t i = 0; i < bytes; i++)
        printf("%02x", data[i]);
    printf("\t\n");
}

static void use(kiln_session *session, const unsigned char *given, size_t in_bytes,
                size_t out_bytes) {
    const kiln_model *m = &KILN_MODEL;
    unsigned char *result = calloc(out_bytes, 1);
    DLTensor input = kiln_bind(&m->inputs[0], m->inputs[0].shape, given);
    DLTensor output = kiln_bind(&m->outputs[0], m->outputs[0].shape, result);
    kiln_status status = kiln_run(session, &input, &output);
    say("run", session, status);
    show("output", result, out_bytes);

    memset(result, 0, out_bytes);
    status = kiln_begin(session, &input, &output);
    while (status == KILN_OK && kiln_steps_left(session) > 0)
        status = kiln_step(session);
    say("steps", session, status);
    show("output", result, out_bytes);

    /* With the session's own memory for the input and the output. */
    memset(kiln_cuda_input(session, 0), 0, in_bytes);
    memcpy(kiln_cuda_input(session, 0), given, in_bytes);
    input.data = kiln_cuda_input(session, 0);
    output.data = kiln_cuda_output(session, 0);
    input.device.device_type = output.device.device_type = kDLCUDA;
    memset(output.data, 0, out_bytes);
    status = kiln_run(session, &input, &output);
    say("in place", session, status);
    show("output", output.data, out_bytes);

    /* With an input in other memory on the GPU, and an output in pinned memory. */
    input.data = (void *)given;
    output.data = memset(result, 0, out_bytes);
    output.device.device_type = kDLCUDAHost;
    status = kiln_run(session, &input, &output);
    say("copied", session, status);
    show("output", result, out_bytes);

    input.device.device_id = 1;
    say("other GPU", session, kiln_run(session, &input, &output));
    free(result);
}

/* The function that on_step calls, and its session. */
struct asked {
    const char *what;
    kiln_session *session;
    const DLTensor *input, *output;
    kiln_status refused;
};

static int32_t call_from_on_step(void *user, uint32_t step) {
    struct asked *asked = user;
    if (step == 1 && strcmp(asked->what, "close") == 0)
        kiln_close(asked->session);
    if (step == 1 && strcmp(asked->what, "cancel") == 0)
        kiln_cancel(asked->session);
    if (step == 1 && strcmp(asked->what, "run") == 0)
        asked->refused = kiln_run(asked->session, asked->input, asked->output);
    return 0;
}

static void try_on_step(const char *what, const unsigned char *given, size_t out_bytes) {
    const kiln_model *m = &KILN_MODEL;
    unsigned char *result = calloc(out_bytes, 1);
    DLTensor input = kiln_bind(&m->inputs[0], m->inputs[0].shape, given);
    DLTensor output = kiln_bind(&m->outputs[0], m->outputs[0].shape, result);
    kiln_session session;
    struct asked asked = {what, &session, &input, &output, KILN_OK};
    const kiln_config config = {.gpu = 0, .on_step = call_from_on_step, .user = &asked};
    say("open", &session, kiln_open(&session, m, &config));
    say("run", &session, kiln_run(&session, &input, &output));
    printf("inner\t%s\t\n", kiln_status_name(asked.refused));
    show("output", result, out_bytes);
    kiln_close(&session);
    free(result);
}

/* The driver's functions that a caller with work of its own on the GPU uses. */
static struct {
    int (*retain)(void **context, int device);
    int (*release)(int device);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*create)(void **stream, unsigned flags);
    int (*destroy)(void *stream);
    int (*wait)(void *stream);
    int (*copy)(uint64_t to, uint64_t from, size_t bytes, void *stream);
} cuda;

static void find(void *where, const char *name) {
    void *const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *const function = library == NULL ? NULL : dlsym(library, name);
    if (function == NULL)
        exit(3);
    memcpy(where, &function, sizeof function);
}

/* Tensors on the GPU that are written, and read, by copies on `stream`, waited for by nobody. */
static void use_among_copies(const char *what, const unsigned char *given, void *stream,
                             bool enqueue) {
    const kiln_model *m = &KILN_MODEL;
    const size_t in_bytes = kiln_tensor_shape(&m->inputs[0], NULL, NULL);
    const size_t out_bytes = kiln_tensor_shape(&m->outputs[0], NULL, NULL);
    unsigned char *in = calloc(in_bytes, 1), *out = calloc(out_bytes, 1),
                  *copy = calloc(out_bytes, 1);
    DLTensor input = kiln_bind(&m->inputs[0], m->inputs[0].shape, in);
    DLTensor output = kiln_bind(&m->outputs[0], m->outputs[0].shape, out);
    kiln_session session;
    const kiln_config config = {.gpu_stream = stream};
    say("open", &session, kiln_open(&session, m, &config));
    input.device.device_type = output.device.device_type = kDLCUDA;
    (void)cuda.copy((uintptr_t)in, (uintptr_t)given, in_bytes, stream);
    const kiln_status status = enqueue ? kiln_cuda_enqueue(&session, &input, &output)
                                       : kiln_run(&session, &input, &output);
    say(what, &session, status);
    if (enqueue)
        show("early", out, out_bytes);
    (void)cuda.copy((uintptr_t)copy, (uintptr_t)out, out_bytes, stream);
    (void)cuda.wait(stream);
    show("output", copy, out_bytes);
    input.device.device_type = kDLCPU;
    if (enqueue)
        say("pageable", &session, kiln_cuda_enqueue(&session, &input, &output));
    kiln_close(&session);
    say("closed", &session, kiln_cuda_enqueue(&session, &input, &output));
    free(in);
    free(out);
    free(copy);
}

static void try_streams(const unsigned char *given) {
    void *context, *stream;
    find(&cuda.retain, "cuDevicePrimaryCtxRetain");
    find(&cuda.release, "cuDevicePrimaryCtxRelease_v2");
    find(&cuda.push, "cuCtxPushCurrent_v2");
    find(&cuda.pop, "cuCtxPopCurrent_v2");
    find(&cuda.create, "cuStreamCreate");
    find(&cuda.destroy, "cuStreamDestroy_v2");
    find(&cuda.wait, "cuStreamSynchronize");
    find(&cuda.copy, "cuMemcpyDtoDAsync_v2");
    if (cuda.retain(&context, 40) != 0 || cuda.push(context) != 0 || cuda.create(&stream, 1) != 0)
        exit(4);
    use_among_copies("default stream", given, NULL, false);
    use_among_copies("own stream", given, stream, false);
    use_among_copies("enqueued", given, stream, true);
    (void)cuda.destroy(stream);
    (void)cuda.pop(&context);
    (void)cuda.release(40);
}

static void try_again(const unsigned char *given, size_t out_bytes) {
    const kiln_model *m = &KILN_MODEL;
    unsigned char *result = calloc(out_bytes, 1);
    const DLTensor input = kiln_bind(&m->inputs[0], m->inputs[0].shape, given);
    DLTensor output = kiln_bind(&m->outputs[0], m->outputs[0].shape, result);
    kiln_session first, second;
    const kiln_config config = {.gpu = 0};
    const kiln_status opened = kiln_open(&first, m, &config);
    say("open", &first, opened);
    if (opened == KILN_OK) {
        say("open another", &second, kiln_open(&second, m, &config));
        say("run", &first, kiln_run(&first, &input, &output));
        say("run", &first, kiln_run(&first, &input, &output));
        kiln_close(&first);
        kiln_close(&second);
    }
    free(result);
}

int main(int argc, char **argv) {
    const kiln_model *m = &KILN_MODEL;
    const size_t in_bytes = kiln_tensor_shape(&m->inputs[0], NULL, NULL);
    const size_t out_bytes = kiln_tensor_shape(&m->outputs[0], NULL, NULL);
    unsigned char *given = malloc(in_bytes);
    FILE *file = argc >= 2 ? fopen(argv[1], "rb") : NULL;
    if (file == NULL || given == NULL || fread(given, 1, in_bytes, file) != in_bytes)
        return 2;
    fclose(file);
    if (argc == 3 && strcmp(argv[2], "streams") == 0) {
        try_streams(given);
        free(given);
        return 0;
    }
    if (argc == 3 && strcmp(argv[2], "again") == 0) {
        try_again(given, out_bytes);
        free(given);
        return 0;
    }
    if (argc == 3) {
        try_on_step(argv[2], given, out_bytes);
        free(given);
        return 0;
    }
    kiln_session first, second;
    const kiln_config config = {.gpu = 0};
    const kiln_status opened = kiln_open(&first, m, &config);
    say("open", &first, opened);
    if (opened == KILN_OK) {
        const kiln_status again = kiln_open(&second, m, &config);
        say("open another", &second, again);
        use(&first, given, in_bytes, out_bytes);
        kiln_close(&first);
        printf("closed\t%d\t\n",
               kiln_cuda_input(&first, 0) == NULL && kiln_cuda_stream(&first) == NULL);
        if (again == KILN_OK)
            use(&second, given, in_bytes, out_bytes);
        kiln_close(&second);
    }
    free(given);
    return 0;
}
