/* cuda_library.h: how the files of the runtime load libraries for the GPU. */
#ifndef KILN_CUDA_LIBRARY_H
#define KILN_CUDA_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* gpu_cuda.c: load a library and look its functions up; it is never unloaded. False: `error` says
 * why, in the loader's words. */
bool kiln_cuda_load(const char *file, const char *const *symbols, void **functions, uint32_t count,
                    char *error, size_t error_bytes);

#endif
