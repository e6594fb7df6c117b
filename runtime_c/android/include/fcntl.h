/* fcntl.h: open files. */
#ifndef KILN_ANDROID_FCNTL_H
#define KILN_ANDROID_FCNTL_H

#define O_RDONLY   00000000
#define O_NONBLOCK 00004000
#define O_CLOEXEC  02000000

int open(const char *path, int flags, ...);

#endif
