/* cuda_library.h: how the files of the runtime load libraries for the GPU, the driver among them.
 *
 * The functions that are used of a library are listed once, by a macro of F(member, symbol,
 * parameters), each of which returns an int; the members of a struct and the names to look up are
 * made of that list.
 */
#ifndef KILN_CUDA_LIBRARY_H
#define KILN_CUDA_LIBRARY_H

#include <stdbool.h>
#include <stdint.h>

#define KILN_CUDA_MEMBER(member, symbol, parameters) int(*member) parameters;
#define KILN_CUDA_SYMBOL(member, symbol, parameters) symbol,

/* A library that is loaded when it is first asked for, and never unloaded: the texts of its errors
 * are part of it. */
typedef struct kiln_cuda_loader {
    const char *file;
    const char *const *symbols; /* (count) */
    void *functions;            /* (count) where their addresses go: a struct of functions */
    uint32_t count;
    bool loaded;     /* false at first */
    char error[160]; /* why it could not be loaded */
} kiln_cuda_loader;

/* gpu_cuda.c: load the library and look up its functions, unless that was done. On an error returns
 * false and sets *text to the message of the system's loader, or null; the next call tries again.
 */
bool kiln_cuda_load(kiln_cuda_loader *loader, const char **text);

#endif
