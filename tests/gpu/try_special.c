/* try_special.c: runs a model with special contents of its input 1, for test_cuda_special.py: from
 * plain memory, pinned, and on the GPU (of the stand-in, whose memory can be written from here). It
 * says which bucket each run took, and the bytes of output 0.
 *
 *     try_special FOLDER     x.bin, and mask_<what>.bin: any, ones, zeros
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include KILN_HEADER
#include "files.h"
#include "kiln_cuda.h"

enum {
    OUTPUTS = 3,
    MOST = 4096 /* bytes of one of them */
};

int main(int argc, char **argv) {
    static const char *const contents[] = {"mask_any", "mask_ones", "mask_zeros"};
    static const char *const places[] = {"plain", "pinned", "gpu"};
    static _Alignas(64) unsigned char results[OUTPUTS][MOST];
    const kiln_model *m = &KILN_MODEL;
    const size_t x_bytes = kiln_tensor_shape(&m->inputs[0], NULL, NULL);
    const size_t mask_bytes = kiln_tensor_shape(&m->inputs[1], NULL, NULL);
    const size_t out_bytes = kiln_tensor_shape(&m->outputs[0], NULL, NULL);
    kiln_session session;
    const kiln_config config = {.gpu = 0};
    if (argc != 2 || m->outputs_count != OUTPUTS || kiln_open(&session, m, &config) != KILN_OK)
        return 3;
    void *x = content(argv[1], "x", x_bytes);
    for (int i = 0; i < 3; i++) {
        void *mask = content(argv[1], contents[i], mask_bytes);
        for (int place = 0; place < 3; place++) {
            DLTensor inputs[] = {kiln_bind(&m->inputs[0], m->inputs[0].shape, x),
                                 kiln_bind(&m->inputs[1], m->inputs[1].shape, mask)};
            DLTensor outputs[OUTPUTS];
            for (unsigned o = 0; o < OUTPUTS; o++)
                outputs[o] = kiln_bind(&m->outputs[o], m->outputs[o].shape, results[o]);
            if (place == 1)
                inputs[1].device.device_type = kDLCUDAHost;
            if (place == 2) {
                inputs[1].device.device_type = kDLCUDA;
                inputs[1].data = kiln_cuda_input(&session, 1);
                memcpy(inputs[1].data, mask, mask_bytes);
            }
            memset(results, 0xCD, sizeof results);
            const kiln_status status = kiln_run(&session, inputs, outputs);
            printf("%s\t%s\t%s\t%s\t", contents[i], places[place], kiln_status_name(status),
                   m->buckets[session.bucket].name);
            print_bytes(results[0], out_bytes);
        }
        free(mask);
    }
    free(x);
    kiln_close(&session);
    return 0;
}
