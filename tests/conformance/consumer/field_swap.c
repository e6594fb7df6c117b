/* field_swap.c: loads libresnet.so with its signature, runs it, and falls back to the older of two
 * slots.
 *
 * Arguments: the public key as 64 hexadecimal digits, then the slots: a library and its record,
 * each. Prints the release of the slot that runs; 1 where no slot is valid. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kiln_verify.h"
#include "resnet.h"

typedef struct slot {
    unsigned char record[KILN_VERIFY_RECORD_BYTES];
    size_t record_bytes;
    uint64_t release;
} slot;

static uint8_t key[32];

static int32_t signed_by_us(void *user, const void *bytes, size_t count) {
    slot *one = user;
    return kiln_verify(bytes, count, one->record, one->record_bytes, NULL, key, &one->release);
}

int main(int count, char **arguments) {
    static _Alignas(RESNET_ARENA_ALIGN) unsigned char arena[2 * RESNET_ARENA_BYTES];
    kiln_loaded best = {NULL, NULL, -1};
    uint64_t release = 0;
    for (int i = 0; i < 32; i++) {
        unsigned byte;
        if (sscanf(arguments[1] + 2 * i, "%2x", &byte) != 1)
            return 2;
        key[i] = (uint8_t)byte;
    }
    /* The rule: of the slots whose signature is right, the one of the greatest release. */
    for (int i = 2; i + 1 < count; i += 2) {
        slot one = {.release = release};
        kiln_loaded next;
        kiln_detail detail;
        FILE *file = fopen(arguments[i + 1], "rb");
        if (file != NULL) {
            one.record_bytes = fread(one.record, 1, sizeof one.record, file);
            (void)fclose(file);
        }
        const kiln_status status =
            kiln_load(&next, arguments[i], &resnet, signed_by_us, &one, &detail);
        if (status != KILN_OK) {
            printf("%s %d\n", kiln_status_name(status), (int)detail.value);
            continue;
        }
        kiln_unload(&best);
        best = next;
        release = one.release;
    }
    if (best.model == NULL)
        return 1;
    static int8_t input[RESNET_INPUT_0_BYTES], output[RESNET_OUTPUT_0_BYTES];
    static int8_t of_program[RESNET_OUTPUT_0_BYTES];
    int64_t input_shape[] = RESNET_INPUT_0_SHAPE, output_shape[] = RESNET_OUTPUT_0_SHAPE;
    const DLTensor in = kiln_bind(&best.model->inputs[0], input_shape, input);
    const DLTensor out = kiln_bind(&best.model->outputs[0], output_shape, output);
    kiln_config config = {.arena = arena, .arena_bytes = sizeof arena};
    kiln_session session;
    for (size_t i = 0; i < sizeof input; i++)
        input[i] = (int8_t)(i * 37);
    if (kiln_open(&session, best.model, &config) != KILN_OK ||
        kiln_run(&session, &in, &out) != KILN_OK)
        return 3;
    (void)kiln_close(&session);
    /* The model that the program was built with is still there. */
    if (kiln_open(&session, &resnet, &config) != KILN_OK ||
        resnet_run(&session, input, of_program) != KILN_OK ||
        memcmp(output, of_program, sizeof output) != 0)
        return 4;
    printf("release %d\n", (int)release);
    (void)kiln_close(&session);
    kiln_unload(&best);
    return 0;
}
