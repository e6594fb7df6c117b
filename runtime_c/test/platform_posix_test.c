/* platform_posix_test.c: params files that are there, empty, or not there. Takes a folder. */
#define _POSIX_C_SOURCE 200809L

#include "test.h"
#include "test_model.h"

#include <errno.h>
#include <sys/stat.h>

static workload work;

static void write_file(const char *path, const void *data, size_t bytes) {
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    if (file == NULL)
        return;
    CHECK(fwrite(data, 1, bytes, file) == bytes);
    CHECK(fclose(file) == 0);
}

int main(int count, char **arguments) {
    char path[1024];
    const void *params = NULL;
    size_t bytes = 0;
    kiln_session session;
    if (count != 2)
        return 2;
    workload_make(&work, 2, 16);
    (void)snprintf(path, sizeof path, "%s/params.bin", arguments[1]);

    write_file(path, work.image, sizeof work.image);
    CHECK(kiln_map_params(path, &params, &bytes) == KILN_OK);
    CHECK(bytes == sizeof work.image);
    work.config.params = params;
    work.config.params_bytes = bytes;
    CHECK(kiln_open(&session, &sums, &work.config) == KILN_OK);
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_OK && workload_right(&work));
    kiln_unmap_params(params, bytes);

    write_file(path, work.image, sizeof work.image - 1);
    CHECK(kiln_map_params(path, &params, &bytes) == KILN_OK);
    work.config.params = params;
    work.config.params_bytes = bytes;
    CHECK(kiln_open(&session, &sums, &work.config) == KILN_PARAMS_TRUNCATED);
    kiln_unmap_params(params, bytes);

    /* Read into memory, the file may be changed or go away. */
    static _Alignas(64) unsigned char memory[SUMS_IMAGE_BYTES];
    write_file(path, work.image, sizeof work.image);
    CHECK(kiln_read_params(path, memory, sizeof memory - 1, &bytes) == KILN_PARAMS_MEMORY);
    CHECK(bytes == 0);
    CHECK(kiln_read_params(path, memory, sizeof memory, &bytes) == KILN_OK);
    CHECK(bytes == sizeof work.image && memcmp(memory, work.image, bytes) == 0);
    work.config.params = memory;
    work.config.params_bytes = bytes;
    CHECK(kiln_open(&session, &sums, &work.config) == KILN_OK);
    write_file(path, "", 0);
    CHECK(kiln_run(&session, work.inputs, work.outputs) == KILN_OK && workload_right(&work));
    CHECK(kiln_check_params(&sums, memory, bytes, NULL) == KILN_OK);
    memory[130] ^= 1;
    CHECK(kiln_check_params(&sums, memory, bytes, NULL) == KILN_PARAMS_CORRUPT);
    CHECK(kiln_read_params(path, memory, sizeof memory, &bytes) == KILN_OK && bytes == 0);
    work.config.params_bytes = 0;
    CHECK(kiln_open(&session, &sums, &work.config) == KILN_PARAMS_TRUNCATED);

    params = memory;
    write_file(path, work.image, 0);
    CHECK(kiln_map_params(path, &params, &bytes) == KILN_PARAMS_TRUNCATED);
    (void)remove(path);
    errno = 0;
    CHECK(kiln_map_params(path, &params, &bytes) == KILN_SYSTEM_FILE);
    CHECK(errno == ENOENT);
    CHECK(kiln_read_params(path, memory, sizeof memory, &bytes) == KILN_SYSTEM_FILE);
    params = memory;
    CHECK(kiln_map_params(arguments[1], &params, &bytes) == KILN_SYSTEM_FILE); /* a folder */
    CHECK(params == NULL && bytes == 0);
    CHECK(kiln_read_params(arguments[1], memory, sizeof memory, &bytes) == KILN_SYSTEM_FILE);
    CHECK(mkfifo(path, 0600) == 0); /* nobody writes to it: to wait would be for ever */
    CHECK(kiln_map_params(path, &params, &bytes) == KILN_SYSTEM_FILE);
    CHECK(kiln_read_params(path, memory, sizeof memory, &bytes) == KILN_SYSTEM_FILE);
    (void)remove(path);
    CHECK(kiln_read_params(NULL, memory, 1, &bytes) == KILN_NULL_ARGUMENT);
    CHECK(kiln_read_params(path, NULL, 1, &bytes) == KILN_NULL_ARGUMENT);
    CHECK(kiln_read_params(path, memory, 1, NULL) == KILN_NULL_ARGUMENT);
    CHECK(kiln_map_params(NULL, &params, &bytes) == KILN_NULL_ARGUMENT);
    kiln_unmap_params(NULL, 0);
    return test_result();
}
