/* bare.c: start and end of a program without an operating system, its files, and its time.
 *
 * stdout and stderr are the files kiln-stdout and kiln-stderr of the debugger or emulator, in which
 * the build machine finds them apart. Arguments are in the file kiln-arguments of a debugger, or
 * come from the emulator's command line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "machine.h"
#include "semihosting.h"

#define FILES     4 /* open at the same time, besides stdout and stderr */
#define BUFFER    256
#define WORDS     16 /* most arguments */
#define TEXT      512
#define NO_HANDLE (-1)

struct bare_file {
    int32_t handle; /* of semihosting; NO_HANDLE: not open */
    int failed;
    size_t used; /* bytes in the buffer that are not yet written */
    unsigned char buffer[BUFFER];
};

static FILE out = {.handle = NO_HANDLE}, errors = {.handle = NO_HANDLE}, files[FILES];
FILE *const stdout = &out, *const stderr = &errors;

static int32_t open_file(const char *path, uint32_t mode) {
    const uintptr_t block[3] = {(uintptr_t)path, mode, strlen(path)};
    return semihosting(SYS_OPEN, block);
}

static void flush(FILE *file) {
    if (file->used > 0 && file->handle != NO_HANDLE) {
        const uintptr_t block[3] = {(uintptr_t)file->handle, (uintptr_t)file->buffer, file->used};
        if (semihosting(SYS_WRITE, block) != 0)
            file->failed = 1;
    }
    file->used = 0;
}

FILE *fopen(const char *path, const char *mode) {
    for (size_t i = 0; i < FILES; i++) {
        FILE *file = &files[i];
        if (file->handle != NO_HANDLE)
            continue;
        memset(file, 0, sizeof *file);
        file->handle = open_file(path, mode[0] == 'w' ? OPEN_WB : OPEN_RB);
        return file->handle == NO_HANDLE ? NULL : file;
    }
    return NULL;
}

int fclose(FILE *file) {
    flush(file);
    const uintptr_t block[1] = {(uintptr_t)file->handle};
    const int status = semihosting(SYS_CLOSE, block) == 0 && !file->failed ? 0 : -1;
    file->handle = NO_HANDLE;
    return status;
}

size_t fread(void *to, size_t size, size_t count, FILE *file) {
    const uintptr_t block[3] = {(uintptr_t)file->handle, (uintptr_t)to, size * count};
    const size_t missing = size * count > 0 ? (size_t)semihosting(SYS_READ, block) : 0;
    return missing == 0 ? count : (size * count - missing) / size;
}

size_t fwrite(const void *from, size_t size, size_t count, FILE *file) {
    const unsigned char *bytes = from;
    for (size_t left = size * count; left > 0;) {
        const size_t room = BUFFER - file->used, part = left < room ? left : room;
        memcpy(file->buffer + file->used, bytes, part);
        file->used += part;
        bytes += part;
        left -= part;
        if (file->used == BUFFER)
            flush(file);
    }
    return file->failed ? 0 : count;
}

/* A debugger stops here; an emulator ends. */
__attribute__((noinline, used)) static _Noreturn void kiln_exit(int status) {
    const uintptr_t block[2] = {0x20026u /* ADP_Stopped_ApplicationExit */, (uintptr_t)status};
    for (;;)
        semihosting(SYS_EXIT_EXTENDED, block);
}

void exit(int status) {
    flush(&out);
    flush(&errors);
    kiln_exit(status);
}

void machine_fault(const char *what, uintptr_t address, uintptr_t cause) {
    fprintf(stderr, "%s at 0x%x, cause 0x%x\n", what, (unsigned)address, (unsigned)cause);
    exit(132);
}

int timespec_get(struct timespec *time, int base) {
    const uint64_t count = machine_instructions();
    time->tv_sec = (long long)(count / 1000000000u);
    time->tv_nsec = (long)(count % 1000000000u);
    return base;
}

int clock_gettime(int clock, struct timespec *time) {
    timespec_get(time, clock);
    return 0;
}

/* Reads the arguments, apart by spaces, into `text`, which is zero. */
static void read_arguments(char *text, size_t most) {
    const int32_t file = open_file("kiln-arguments", OPEN_RB);
    const uintptr_t given[2] = {(uintptr_t)text, most},
                    read[3] = {(uintptr_t)file, (uintptr_t)text, most};
    const uintptr_t closed[1] = {(uintptr_t)file};
    if (file == NO_HANDLE) {
        semihosting(SYS_GET_CMDLINE, given);
        return;
    }
    semihosting(SYS_READ, read);
    semihosting(SYS_CLOSE, closed);
}

int main(int argc, char **argv);

void machine_main(void) {
    static char text[TEXT];
    static char *words[WORDS + 1];
    int count = 0;
    memcpy(kiln_data_start, kiln_data_load, (size_t)(kiln_data_end - kiln_data_start));
    memset(kiln_bss_start, 0, (size_t)(kiln_bss_end - kiln_bss_start));
    for (size_t i = 0; i < FILES; i++)
        files[i].handle = NO_HANDLE;
    out.handle = open_file("kiln-stdout", OPEN_WB);
    errors.handle = open_file("kiln-stderr", OPEN_WB);
    read_arguments(text, TEXT - 1);
    for (char *at = text; *at != '\0' && count < WORDS;) {
        words[count++] = at;
        while (*at != '\0' && *at != ' ')
            at++;
        if (*at == ' ')
            *at++ = '\0';
    }
    machine_count_start();
    exit(main(count, words));
}
