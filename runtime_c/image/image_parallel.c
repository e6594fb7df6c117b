/* image_parallel.c: threads of an image: those of the program, through the pool that it opened. */
#include "kiln.h"

__attribute__((visibility("hidden"))) void kiln_parallel(kiln_pool *pool, kiln_task task,
                                                         const void *args, int32_t extent) {
    if (pool != NULL && pool->parallel != NULL)
        pool->parallel(pool, task, args, extent);
    else if (extent > 0)
        task(args, 0, extent);
}
