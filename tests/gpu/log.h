/* log.h: the calls that the stand-ins for NVIDIA's driver and libraries have had, as lines `NAME
 * RESULT` at the end of the file that KILN_FAKE_LOG names. */
#ifndef LOG_H
#define LOG_H

#include <stdio.h>
#include <stdlib.h>

static inline void say(const char *name, int result) {
    const char *path = getenv("KILN_FAKE_LOG");
    FILE *file = path == NULL ? NULL : fopen(path, "a");
    if (file == NULL)
        return;
    fprintf(file, "%s %d\n", name, result);
    fclose(file);
}

#endif
