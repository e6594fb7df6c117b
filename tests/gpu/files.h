/* files.h: the files that test programs read, and the bytes that they print. */
#ifndef FILES_H
#define FILES_H

#include <stdio.h>
#include <stdlib.h>

/* The first `bytes` bytes of FOLDER/NAME.bin, which the caller frees; exits with 2 without them. */
static inline void *content(const char *folder, const char *name, size_t bytes) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s.bin", folder, name);
    FILE *file = fopen(path, "rb");
    void *data = malloc(bytes);
    if (file == NULL || data == NULL || fread(data, 1, bytes, file) != bytes)
        exit(2);
    fclose(file);
    return data;
}

/* Print bytes in hexadecimal, and end the line. */
static inline void print_bytes(const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        printf("%02x", ((const unsigned char *)data)[i]);
    printf("\n");
}

#endif
