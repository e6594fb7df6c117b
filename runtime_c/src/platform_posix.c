/* platform_posix.c: params.bin mapped read-only, for hosted builds. Pages are shared between
 * processes and read when first touched. A freestanding build leaves this file out. */
#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kiln.h"

kiln_status kiln_map_params(const char *path, const void **params, size_t *bytes) {
    if (path == NULL || params == NULL || bytes == NULL)
        return KILN_NULL_ARGUMENT;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return KILN_SYSTEM_FILE;
    struct stat facts;
    kiln_status status = KILN_SYSTEM_FILE;
    if (fstat(file, &facts) == 0) {
        if (facts.st_size == 0) { /* cannot be mapped */
            status = KILN_PARAMS_TRUNCATED;
        } else if (facts.st_size > 0 && (uint64_t)facts.st_size <= SIZE_MAX / 2) {
            void *image = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, file, 0);
            if (image != MAP_FAILED) {
                *params = image;
                *bytes = (size_t)facts.st_size;
                status = KILN_OK;
            }
        }
    }
    (void)close(file); /* the mapping stays */
    return status;
}

void kiln_unmap_params(const void *params, size_t bytes) {
    if (params != NULL)
        (void)munmap((void *)params, bytes);
}
