/* errno.h: numbers of errors, which are the kernel's. */
#ifndef KILN_ANDROID_ERRNO_H
#define KILN_ANDROID_ERRNO_H

int *__errno(void);
#define errno (*__errno())

#define EPERM     1
#define ENOENT    2
#define EINTR     4
#define EIO       5
#define EBADF     9
#define EAGAIN    11
#define ENOMEM    12
#define EACCES    13
#define EBUSY     16
#define EEXIST    17
#define ENODEV    19
#define ENOTDIR   20
#define EISDIR    21
#define EINVAL    22
#define EMFILE    24
#define EFBIG     27
#define ENOSPC    28
#define EDOM      33
#define ERANGE    34
#define ENOSYS    38
#define EOVERFLOW 75
#define ETIMEDOUT 110

#endif
