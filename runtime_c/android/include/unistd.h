/* unistd.h: files, and facts about the machine. */
#ifndef KILN_ANDROID_UNISTD_H
#define KILN_ANDROID_UNISTD_H

#include <sys/types.h>

#define _SC_PAGESIZE         0x27
#define _SC_NPROCESSORS_ONLN 0x61

int close(int file);
ssize_t read(int file, void *memory, size_t bytes);
ssize_t write(int file, const void *memory, size_t bytes);
long sysconf(int name);
pid_t getpid(void);

#endif
