/* platform_windows.c: params.bin mapped read-only, or read into the caller's memory, and the number
 * of processors, on Windows. Paths are UTF-8; errors are in errno, as on other systems. */
#define WIN32_LEAN_AND_MEAN
#include <errno.h>
#include <windows.h>

#include "../core/internal.h"

#define LONGEST_PATH 1024 /* UTF-16 units, with the zero */
#define MOST_AT_ONCE (1u << 30)

static void set_errno(void) {
    const DWORD error = GetLastError();
    errno = error == ERROR_FILE_NOT_FOUND || error == ERROR_PATH_NOT_FOUND     ? ENOENT
            : error == ERROR_ACCESS_DENIED || error == ERROR_SHARING_VIOLATION ? EACCES
            : error == ERROR_NOT_ENOUGH_MEMORY || error == ERROR_OUTOFMEMORY   ? ENOMEM
                                                                               : EIO;
}

/* Open a file on a disk; another kind is an error, since opening a pipe may wait for its other end.
 * Returns INVALID_HANDLE_VALUE, with errno set, on an error. */
static HANDLE open_file(const char *path, size_t *bytes) {
    WCHAR wide[LONGEST_PATH];
    LARGE_INTEGER size;
    if (MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, LONGEST_PATH) == 0) {
        errno = EINVAL;
        return INVALID_HANDLE_VALUE;
    }
    const HANDLE file = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_DELETE, NULL,
                                    OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
    if (file == INVALID_HANDLE_VALUE) {
        set_errno();
        return file;
    }
    int error = 0;
    if (GetFileType(file) != FILE_TYPE_DISK)
        error = EINVAL;
    else if (!GetFileSizeEx(file, &size))
        error = EIO;
    else if (size.QuadPart < 0 || (uint64_t)size.QuadPart > SIZE_MAX / 2)
        error = EFBIG;
    if (error == 0) {
        *bytes = (size_t)size.QuadPart;
        return file;
    }
    (void)CloseHandle(file);
    errno = error;
    return INVALID_HANDLE_VALUE;
}

kiln_status kiln_map_params(const char *path, const void **params, size_t *bytes) {
    if (path == NULL || params == NULL || bytes == NULL)
        return KILN_NULL_ARGUMENT;
    size_t size = 0;
    const void *image = NULL;
    *params = NULL;
    *bytes = 0;
    const HANDLE file = open_file(path, &size);
    if (file == INVALID_HANDLE_VALUE)
        return KILN_SYSTEM_FILE;
    if (size > 0) {
        const HANDLE mapping = CreateFileMappingW(file, NULL, PAGE_READONLY, 0, 0, NULL);
        if (mapping != NULL) {
            image = MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, 0);
            (void)CloseHandle(mapping); /* the view stays */
        }
        if (image == NULL)
            set_errno();
    }
    (void)CloseHandle(file);
    if (image == NULL)
        return size == 0 ? KILN_PARAMS_TRUNCATED : KILN_SYSTEM_FILE;
    *params = image;
    *bytes = size;
    return KILN_OK;
}

kiln_status kiln_read_params(const char *path, void *memory, size_t memory_bytes, size_t *bytes) {
    if (path == NULL || memory == NULL || bytes == NULL)
        return KILN_NULL_ARGUMENT;
    size_t size = 0, done = 0;
    *bytes = 0;
    const HANDLE file = open_file(path, &size);
    if (file == INVALID_HANDLE_VALUE)
        return KILN_SYSTEM_FILE;
    if (size > memory_bytes) {
        (void)CloseHandle(file);
        return KILN_PARAMS_MEMORY;
    }
    while (done < size) {
        const size_t left = size - done;
        DWORD got = 0;
        if (!ReadFile(file, (unsigned char *)memory + done,
                      (DWORD)(left < MOST_AT_ONCE ? left : MOST_AT_ONCE), &got, NULL)) {
            set_errno();
            (void)CloseHandle(file);
            return KILN_SYSTEM_FILE;
        }
        if (got == 0)
            break;
        done += got;
    }
    (void)CloseHandle(file);
    *bytes = done; /* fewer if the file was cut meanwhile: kiln_open refuses them */
    return KILN_OK;
}

void kiln_unmap_params(const void *params, size_t bytes) {
    (void)bytes;
    if (params != NULL)
        (void)UnmapViewOfFile(params);
}

int32_t kiln_processors(void) {
    SYSTEM_INFO about;
    GetSystemInfo(&about);
    return about.dwNumberOfProcessors < 1 ? 1 : (int32_t)about.dwNumberOfProcessors;
}
