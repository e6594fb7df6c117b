/* sys/stat.h: facts about an open file. */
#ifndef KILN_ANDROID_SYS_STAT_H
#define KILN_ANDROID_SYS_STAT_H

#include <sys/types.h>

/* As the kernel of the architecture has it; of the parts that nothing here reads only the place. */
struct stat {
    unsigned long st_dev, st_ino;
#if defined(__x86_64__)
    unsigned long st_nlink;
    mode_t st_mode;
    unsigned int st_uid, st_gid, unused;
#else
    mode_t st_mode;
    unsigned int st_nlink, st_uid, st_gid;
#endif
    unsigned long st_rdev;
#if !defined(__x86_64__)
    unsigned long unused;
#endif
    off_t st_size;
    long rest[16]; /* more than follows on either architecture */
};

#define S_IFMT     0170000
#define S_ISDIR(m) (((m)&S_IFMT) == 0040000)
#define S_ISREG(m) (((m)&S_IFMT) == 0100000)

int fstat(int file, struct stat *facts);
int mkfifo(const char *path, mode_t mode);

#endif
