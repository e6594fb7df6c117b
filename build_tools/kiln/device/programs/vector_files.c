/* vector_files.c: tensors from and to files, whose form the comment in harness.h defines, and the
 * file of parameters. */
#include <string.h>

#include "harness.h"

static const char MAGIC[8] = {'K', 'I', 'L', 'N', 'V', 'E', 'C', '1'};

static void get(FILE *file, void *to, size_t bytes) {
    if (bytes > 0 && fread(to, 1, bytes, file) != bytes)
        harness_stop("ends too early", "vector file");
}

static void put(FILE *file, const void *from, size_t bytes) {
    if (bytes > 0 && fwrite(from, 1, bytes, file) != bytes)
        harness_stop("cannot be written", "output file");
}

FILE *vectors_open(const char *path, uint32_t tensors, uint32_t *vectors) {
    FILE *file = fopen(path, "rb");
    char magic[8];
    uint32_t counts[2];
    if (file == NULL)
        harness_stop("cannot be opened", path);
    get(file, magic, sizeof magic);
    get(file, counts, sizeof counts);
    if (memcmp(magic, MAGIC, sizeof magic) != 0 || counts[1] != tensors)
        harness_stop("is not a vector file of this model", path);
    *vectors = counts[0];
    return file;
}

FILE *vectors_create(const char *path, uint32_t vectors, uint32_t tensors) {
    FILE *file = fopen(path, "wb");
    uint32_t counts[2] = {vectors, tensors};
    if (file == NULL)
        harness_stop("cannot be created", path);
    put(file, MAGIC, sizeof MAGIC);
    put(file, counts, sizeof counts);
    return file;
}

void vectors_close(FILE *file) {
    if (fclose(file) != 0)
        harness_stop("cannot be written", "output file");
}

void vectors_put(FILE *file, const tensor *t) {
    uint32_t head[2] = {(uint32_t)t->about->rank, 0};
    uint64_t bytes = t->made;
    put(file, head, sizeof head);
    put(file, &bytes, sizeof bytes);
    put(file, t->made_shape, head[0] * sizeof t->made_shape[0]);
    put(file, t->memory.data, t->made);
}

void tensor_read(tensor *t, const kiln_tensor *about, FILE *file) {
    uint32_t head[2];
    uint64_t bytes;
    t->about = about;
    get(file, head, sizeof head);
    get(file, &bytes, sizeof bytes);
    if (head[0] != (uint32_t)about->rank || head[0] > HARNESS_MAX_RANK || bytes > SIZE_MAX / 2)
        harness_stop("has a tensor of another rank", "vector file");
    get(file, t->shape, head[0] * sizeof t->shape[0]);
    tensor_make(t, (size_t)bytes);
    get(file, t->memory.data, (size_t)bytes);
}

unsigned char *params_loaded(const char *path) {
    const size_t bytes = harness_params_bytes();
    if (harness_model()->params != NULL || harness_model()->params_bytes == 0)
        return NULL;
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        harness_stop("cannot be opened", path);
    guarded g = guarded_make("the parameters", bytes + KILN_PARAMS_ALIGN, KILN_PARAMS_ALIGN, 0);
    get(file, g.data, bytes);
    fclose(file);
    return g.data; /* kept until the program ends */
}
