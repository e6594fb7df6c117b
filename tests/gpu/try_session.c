/* try_session.c: what a program does with sessions on a GPU, said on standard output, for
 * test_cuda_session.py. It is for the stand-in of the driver (fake_cuda.c), where memory on the GPU
 * can be written from here.
 *
 *     try_session INPUT                     INPUT holds the bytes of input 0
 *     try_session INPUT close|cancel|run    what on_step of a run calls before its second step
 */
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

    /* From where the session wants it, and left where the session has it. */
    memset(kiln_cuda_input(session, 0), 0, in_bytes);
    memcpy(kiln_cuda_input(session, 0), given, in_bytes);
    input.data = kiln_cuda_input(session, 0);
    output.data = kiln_cuda_output(session, 0);
    input.device.device_type = output.device.device_type = kDLCUDA;
    memset(output.data, 0, out_bytes);
    status = kiln_run(session, &input, &output);
    say("in place", session, status);
    show("output", output.data, out_bytes);

    /* Elsewhere on the GPU, and pinned. */
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

/* What on_step is to call, of which session. */
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

int main(int argc, char **argv) {
    const kiln_model *m = &KILN_MODEL;
    const size_t in_bytes = kiln_tensor_shape(&m->inputs[0], NULL, NULL);
    const size_t out_bytes = kiln_tensor_shape(&m->outputs[0], NULL, NULL);
    unsigned char *given = malloc(in_bytes);
    FILE *file = argc >= 2 ? fopen(argv[1], "rb") : NULL;
    if (file == NULL || given == NULL || fread(given, 1, in_bytes, file) != in_bytes)
        return 2;
    fclose(file);
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
