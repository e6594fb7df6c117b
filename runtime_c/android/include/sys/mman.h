/* sys/mman.h: files in memory. */
#ifndef KILN_ANDROID_SYS_MMAN_H
#define KILN_ANDROID_SYS_MMAN_H

#include <sys/types.h>

#define PROT_READ   1
#define PROT_WRITE  2
#define MAP_SHARED  1
#define MAP_PRIVATE 2
#define MAP_FAILED  ((void *)-1)

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
int munmap(void *address, size_t bytes);

#endif
