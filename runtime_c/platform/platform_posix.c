/* platform_posix.c: params.bin mapped read-only, or read into the caller's memory, and the number
 * of processors, for hosted builds. A freestanding build leaves this file out. */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../core/internal.h"

/* Open a regular file; another kind is an error, since opening a pipe waits for its other end.
 * Returns -1, with errno, on an error. */
static int open_file(const char *path, size_t *bytes) {
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat facts;
    int error = 0;
    if (file < 0)
        return -1;
    if (fstat(file, &facts) != 0)
        error = errno;
    else if (!S_ISREG(facts.st_mode))
        error = S_ISDIR(facts.st_mode) ? EISDIR : EINVAL;
    else if (facts.st_size < 0 || (uint64_t)facts.st_size > SIZE_MAX / 2)
        error = EFBIG;
    if (error == 0) {
        *bytes = (size_t)facts.st_size;
        return file;
    }
    (void)close(file);
    errno = error;
    return -1;
}

kiln_status kiln_map_params(const char *path, const void **params, size_t *bytes) {
    if (path == NULL || params == NULL || bytes == NULL)
        return KILN_NULL_ARGUMENT;
    size_t size = 0;
    *params = NULL;
    *bytes = 0;
    const int file = open_file(path, &size);
    if (file < 0)
        return KILN_SYSTEM_FILE;
    void *image = size == 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0);
    (void)close(file); /* the mapping stays */
    if (image == MAP_FAILED)
        return size == 0 ? KILN_PARAMS_TRUNCATED : KILN_SYSTEM_FILE;
    *params = image;
    *bytes = size;
    return KILN_OK;
}

/* Read up to `bytes` bytes; returns their number, or -1 on an error. */
static ssize_t read_all(int file, unsigned char *memory, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
        const ssize_t got = read(file, memory + done, bytes - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

kiln_status kiln_read_params(const char *path, void *memory, size_t memory_bytes, size_t *bytes) {
    if (path == NULL || memory == NULL || bytes == NULL)
        return KILN_NULL_ARGUMENT;
    size_t size = 0;
    *bytes = 0;
    const int file = open_file(path, &size);
    if (file < 0)
        return KILN_SYSTEM_FILE;
    if (size > memory_bytes) {
        (void)close(file);
        return KILN_PARAMS_MEMORY;
    }
    const ssize_t got = read_all(file, memory, size);
    (void)close(file);
    if (got < 0)
        return KILN_SYSTEM_FILE;
    *bytes = (size_t)got; /* fewer if the file was cut meanwhile: kiln_open refuses them */
    return KILN_OK;
}

void kiln_unmap_params(const void *params, size_t bytes) {
    if (params != NULL)
        (void)munmap((void *)params, bytes);
}

int32_t kiln_processors(void) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online < 1 ? 1 : online > INT32_MAX ? INT32_MAX : (int32_t)online;
}
