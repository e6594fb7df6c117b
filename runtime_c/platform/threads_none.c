/* threads_none.c: the policy of a single-threaded build. Linked in place of threads_pthread.c; a
 * program written for a pool works unchanged, in one thread. */
#include "kiln.h"

kiln_status kiln_pool_open(kiln_pool *pool, int32_t threads) {
    (void)threads;
    if (pool == NULL)
        return KILN_NULL_ARGUMENT;
    pool->parallel = NULL; /* images run in one thread, too */
    return KILN_OK;
}

kiln_status kiln_pool_close(kiln_pool *pool) {
    (void)pool;
    return KILN_OK;
}

int32_t kiln_pool_threads(const kiln_pool *pool) {
    (void)pool;
    return 1;
}

void kiln_parallel(kiln_pool *pool, kiln_task task, const void *args, int32_t extent) {
    (void)pool;
    if (extent > 0)
        task(args, 0, extent);
}
