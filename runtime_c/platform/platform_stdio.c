/* platform_stdio.c: params.bin read into the caller's memory with the C library's streams, for
 * systems without files in memory: there kiln_map_params always fails. */
#include <errno.h>
#include <stdio.h>

#include "kiln.h"

kiln_status kiln_map_params(const char *path, const void **params, size_t *bytes) {
    if (path == NULL || params == NULL || bytes == NULL)
        return KILN_NULL_ARGUMENT;
    *params = NULL;
    *bytes = 0;
    errno = ENOSYS;
    return KILN_SYSTEM_FILE;
}

void kiln_unmap_params(const void *params, size_t bytes) {
    (void)params;
    (void)bytes;
}

kiln_status kiln_read_params(const char *path, void *memory, size_t memory_bytes, size_t *bytes) {
    if (path == NULL || memory == NULL || bytes == NULL)
        return KILN_NULL_ARGUMENT;
    *bytes = 0;
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return KILN_SYSTEM_FILE;
    const size_t got = fread(memory, 1, memory_bytes, file);
    const int more = got == memory_bytes && fgetc(file) != EOF;
    const int failed = ferror(file);
    (void)fclose(file);
    if (failed != 0)
        return KILN_SYSTEM_FILE;
    if (more)
        return KILN_PARAMS_MEMORY;
    *bytes = got;
    return KILN_OK;
}
