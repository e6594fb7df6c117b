/* try_library.c: opens a session and runs it on inputs of each of the given sizes, whole and step
 * by step, for test_cuda_libraries.py. It says each status with its text.
 *
 *     try_library SIZE...     the first axis of input 0; the others are the model's
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

static DLTensor bound(const kiln_tensor *about, int64_t *shape, int64_t size, float *data) {
    memcpy(shape, about->shape, sizeof(int64_t) * (size_t)about->rank);
    shape[0] = size;
    return kiln_bind(about, shape, data);
}

int main(int argc, char **argv) {
    const kiln_model *m = &KILN_MODEL;
    static float in[4096], whole[4096], stepped[4096];
    static int64_t shapes[2][8];
    kiln_session session;
    const kiln_config config = {.gpu = 0};
    for (int i = 0; i < 4096; i++)
        in[i] = (float)(i * 37 % 101 - 50) / 50;
    kiln_status status = kiln_open(&session, m, &config);
    say("open", &session, status);
    for (int i = 1; status == KILN_OK && i < argc; i++) {
        const int64_t size = atoi(argv[i]);
        const DLTensor input = bound(&m->inputs[0], shapes[0], size, in);
        DLTensor output = bound(&m->outputs[0], shapes[1], size, whole);
        status = kiln_run(&session, &input, &output);
        say("run", &session, status);
        if (status != KILN_OK)
            break;
        output.data = stepped;
        status = kiln_begin(&session, &input, &output);
        while (status == KILN_OK && kiln_steps_left(&session) > 0)
            status = kiln_step(&session);
        say("steps", &session, status);
        printf("same\t%d\t\n", memcmp(whole, stepped, sizeof whole) == 0);
    }
    if (session.model != NULL)
        kiln_close(&session);
    return 0;
}
