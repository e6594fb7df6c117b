/* sys/types.h: types of the system calls on 64-bit Android. */
#ifndef KILN_ANDROID_SYS_TYPES_H
#define KILN_ANDROID_SYS_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef long off_t;
typedef long ssize_t;
typedef long time_t;
typedef int pid_t;
typedef unsigned int mode_t;

#endif
