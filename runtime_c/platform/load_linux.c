/* load_linux.c: a model from a shared library that comes while the program runs.
 *
 * 1. The file is copied into memory of this process (memfd), which nobody can change afterwards
 *    (seals): the loader loads the bytes that the caller has checked.
 * 2. The caller's check accepts or refuses these bytes, before any of their code runs.
 * 3. The loader opens the copy by its name in /proc. The copy stays open with the model, so no
 * other model gets the same name: the loader would take it for the same library.
 */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../core/internal.h"

/* Names that older C libraries lack: linux/memfd.h, linux/fcntl.h. */
#define CLOSE_ON_EXEC  0x0001u
#define ALLOW_SEALING  0x0002u
#define ADD_SEALS      1033
#define SEAL_ALL       0x000f
#define COPIED_AT_ONCE 65536u

static kiln_status fail(kiln_detail *detail, kiln_status status, const char *name) {
    const kiln_detail error = {.status = status, .name = name, .index = -1, .axis = -1};
    return kiln_fail(detail, &error);
}

/* Write all bytes; returns 0, or -1 with errno. */
static int write_all(int file, const unsigned char *bytes, size_t count) {
    while (count > 0) {
        const ssize_t done = write(file, bytes, count);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return -1;
        bytes += done;
        count -= (size_t)done;
    }
    return 0;
}

/* A sealed copy of the file in memory, and its size; -1 with errno. */
static int copy_of(const char *path, size_t *bytes) {
    unsigned char block[COPIED_AT_ONCE];
    struct stat facts;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return -1;
    int copy = -1, error = 0;
    if (fstat(file, &facts) != 0)
        error = errno;
    else if (!S_ISREG(facts.st_mode))
        error = S_ISDIR(facts.st_mode) ? EISDIR : EINVAL;
    if (error == 0) {
        copy = (int)syscall(SYS_memfd_create, "kiln model", CLOSE_ON_EXEC | ALLOW_SEALING);
        error = copy < 0 ? errno : 0;
    }
    *bytes = 0;
    for (ssize_t got = 1; error == 0 && got > 0;) {
        got = read(file, block, sizeof block);
        if (got < 0 && errno == EINTR)
            got = 1;
        else if (got < 0 || (got > 0 && write_all(copy, block, (size_t)got) != 0))
            error = errno;
        else
            *bytes += (size_t)got;
    }
    if (error == 0 && fcntl(copy, ADD_SEALS, SEAL_ALL) != 0)
        error = errno;
    (void)close(file);
    if (error != 0 && copy >= 0)
        (void)close(copy);
    errno = error;
    return error == 0 ? copy : -1;
}

/* Whether the caller accepts the copy. */
static kiln_status checked(int copy, size_t bytes, const char *path, kiln_load_check check,
                           void *user, kiln_detail *detail) {
    void *seen = bytes == 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ, MAP_SHARED, copy, 0);
    if (seen == MAP_FAILED)
        return fail(detail, KILN_SYSTEM_FILE, path);
    const int32_t refused = check(user, seen, bytes);
    (void)munmap(seen, bytes);
    if (refused == 0)
        return KILN_OK;
    const kiln_detail error = {
        .status = KILN_LOAD_REFUSED, .index = -1, .axis = -1, .value = refused};
    return kiln_fail(detail, &error);
}

/* Whether the file has all that its header names: reading beyond its end would end the process in
 * the loader. What is no library is left to the loader. */
static bool is_whole(int copy, size_t bytes) {
    if (bytes < sizeof(ElfW(Ehdr)))
        return true;
    const unsigned char *const seen = mmap(NULL, bytes, PROT_READ, MAP_SHARED, copy, 0);
    if (seen == MAP_FAILED)
        return true;
    const ElfW(Ehdr) *const head = (const void *)seen;
    bool whole = true;
    if (memcmp(head->e_ident, ELFMAG, SELFMAG) == 0 && head->e_phentsize == sizeof(ElfW(Phdr)) &&
        head->e_phoff % _Alignof(ElfW(Phdr)) == 0) {
        const size_t room = head->e_phoff <= bytes ? bytes - head->e_phoff : 0;
        whole = head->e_phnum <= room / sizeof(ElfW(Phdr));
        for (size_t number = 0; whole && number < head->e_phnum; number++) {
            const ElfW(Phdr) *const part = (const void *)(seen + head->e_phoff);
            whole = part[number].p_type != PT_LOAD ||
                    (part[number].p_offset <= bytes &&
                     part[number].p_filesz <= bytes - part[number].p_offset);
        }
    }
    (void)munmap((void *)seen, bytes);
    return whole;
}

/* "/proc/self/fd/" and the number. */
static void name_of(int copy, char *name) {
    static const char folder[] = "/proc/self/fd/";
    char digits[12];
    size_t count = 0, at = 0;
    for (; folder[at] != '\0'; at++)
        name[at] = folder[at];
    do {
        digits[count++] = (char)('0' + copy % 10);
        copy /= 10;
    } while (copy != 0);
    while (count > 0)
        name[at++] = digits[--count];
    name[at] = '\0';
}

/* The loader's last reason, without the name of the copy, which means nothing to the caller. */
static const char *reason_of(const char *name) {
    const char *const text = dlerror();
    const size_t count = strlen(name);
    if (text != NULL && strncmp(text, name, count) == 0 && strncmp(text + count, ": ", 2) == 0)
        return text + count + 2;
    return text;
}

kiln_status kiln_load(kiln_loaded *loaded, const char *path, const kiln_model *built,
                      kiln_load_check check, void *user, kiln_detail *detail) {
    if (loaded == NULL)
        return fail(detail, KILN_NULL_ARGUMENT, "loaded");
    *loaded = (kiln_loaded){.model = NULL, .file = -1};
    if (path == NULL || built == NULL)
        return fail(detail, KILN_NULL_ARGUMENT, path == NULL ? "path" : "built");
    size_t bytes = 0;
    char name[40];
    kiln_loaded found = {.file = copy_of(path, &bytes)};
    if (found.file < 0)
        return fail(detail, KILN_SYSTEM_FILE, path);
    kiln_status status = KILN_OK;
    if (check != NULL)
        status = checked(found.file, bytes, path, check, user, detail);
    if (status == KILN_OK && !is_whole(found.file, bytes))
        status = fail(detail, KILN_SYSTEM_LIBRARY, "the file is cut short");
    if (status == KILN_OK) {
        name_of(found.file, name);
        found.library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (found.library != NULL)
            found.model = (const kiln_model *)dlsym(found.library, built->name);
        /* The loader's text is gone after its next call, such as dlclose in kiln_unload. */
        status = found.model != NULL ? kiln_compatible(found.model, built, detail)
                                     : fail(detail, KILN_SYSTEM_LIBRARY,
                                            found.library == NULL ? reason_of(name) : built->name);
    }
    if (status == KILN_OK)
        *loaded = found;
    else
        kiln_unload(&found);
    return status;
}

void kiln_unload(kiln_loaded *loaded) {
    if (loaded == NULL)
        return;
    const int error = errno;
    if (loaded->library != NULL)
        (void)dlclose(loaded->library);
    if (loaded->file >= 0)
        (void)close(loaded->file);
    errno = error;
    *loaded = (kiln_loaded){.model = NULL, .file = -1};
}
