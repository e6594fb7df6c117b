/* threads_test.c: every task once, by any policy; linked with threads_none.c and with
 * threads_pthread.c. */
#define _POSIX_C_SOURCE 200809L

#include "test.h"
#include "test_model.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#ifndef __ANDROID__ /* its headers here are those that the runtime needs */
#include <sys/wait.h>
#include <unistd.h>
#endif

#define MOST 1000

static kiln_pool pool;

struct count_args {
    unsigned char *hits; /* (extent) */
    int32_t extent;
    kiln_pool *inner; /* or null; used from inside the task */
};

static void count_task(const void *memory, int32_t begin, int32_t end) {
    const struct count_args *args = memory;
    for (int32_t i = begin; i < end; i++)
        args->hits[i]++;
}

static void nested_task(const void *memory, int32_t begin, int32_t end) {
    const struct count_args *args = memory;
    for (int32_t i = begin; i < end; i++) {
        const struct count_args inner = {args->hits + 10 * i, 10, NULL};
        kiln_parallel(args->inner, count_task, &inner, 10);
    }
}

static int all_once(const unsigned char *hits, int32_t extent) {
    for (int32_t i = 0; i < MOST; i++)
        if (hits[i] != (i < extent))
            return 0;
    return 1;
}

static void test_extents(kiln_pool *with) {
    static const int32_t extents[] = {-5, 0, 1, 2, 3, 7, 8, 9, 31, 64, 65, 999, MOST};
    unsigned char hits[MOST];
    for (int round = 0; round < 30; round++) {
        for (size_t i = 0; i < sizeof extents / sizeof extents[0]; i++) {
            memset(hits, 0, sizeof hits);
            const struct count_args args = {hits, extents[i], NULL};
            kiln_parallel(with, count_task, &args, extents[i]);
            CHECK(all_once(hits, extents[i]));
        }
    }
}

static void test_nested(void) {
    unsigned char hits[MOST] = {0};
    const struct count_args args = {hits, MOST, &pool};
    kiln_parallel(&pool, nested_task, &args, MOST / 10);
    CHECK(all_once(hits, MOST));
}

/* Workers park between runs, and wake for the next. */
static void test_parked(void) {
    for (int round = 0; round < 5; round++) {
        unsigned char hits[MOST] = {0};
        const struct count_args args = {hits, MOST, NULL};
        const struct timespec pause = {0, 20 * 1000 * 1000};
        (void)nanosleep(&pause, NULL);
        kiln_parallel(&pool, count_task, &args, MOST);
        CHECK(all_once(hits, MOST));
    }
}

/* Threads end together: no chunk is more than half of a thread's share of what is left. */
struct size_args {
    int32_t *sizes; /* (extent): of the chunk that begins there */
};

static void size_task(const void *memory, int32_t begin, int32_t end) {
    const struct size_args *args = memory;
    args->sizes[begin] = end - begin;
}

static void test_even_shares(void) {
    const int32_t threads = kiln_pool_threads(&pool);
    for (int32_t extent = 2; threads > 1 && extent <= 40; extent++) {
        int32_t sizes[40] = {0};
        const struct size_args args = {sizes};
        kiln_parallel(&pool, size_task, &args, extent);
        for (int32_t begin = 0; begin < extent; begin += sizes[begin]) {
            CHECK(sizes[begin] >= 1);
            CHECK(sizes[begin] == 1 || sizes[begin] * threads * 2 <= extent - begin);
            if (sizes[begin] < 1)
                break;
        }
    }
}

/* The greatest extent: chunks must not run over the counter's end. */
struct range_args {
    int64_t *covered; /* written by one thread at a time: the pool has one */
};

static void range_task(const void *memory, int32_t begin, int32_t end) {
    const struct range_args *args = memory;
    *args->covered += (int64_t)end - begin;
}

static void test_greatest_extent(void) {
    int64_t covered = 0;
    const struct range_args args = {&covered};
    kiln_pool one;
    CHECK(kiln_pool_open(&one, 1) == KILN_OK);
    kiln_parallel(&one, range_task, &args, INT32_MAX);
    CHECK(covered == INT32_MAX);
    kiln_pool_close(&one);
}

/* Two threads, a session each, one model, one pool. */
static void *run_many(void *memory) {
    workload *work = memory;
    kiln_session session;
    intptr_t wrong = 0;
    work->config.pool = &pool;
    if (kiln_open(&session, &sums, &work->config) != KILN_OK)
        return (void *)1;
    for (int i = 0; i < 300; i++) {
        memset(work->y, 0, sizeof work->y);
        wrong += kiln_run(&session, work->inputs, work->outputs) != KILN_OK;
        wrong += !workload_right(work);
    }
    return (void *)wrong;
}

static void test_sessions(void) {
    static workload works[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        workload_make(&works[i], 8 - 3 * i, 64 - 8 * i);
        CHECK(pthread_create(&threads[i], NULL, run_many, &works[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        void *wrong = (void *)1;
        CHECK(pthread_join(threads[i], &wrong) == 0);
        CHECK(wrong == NULL);
    }
}

static void test_open(void) {
    CHECK(kiln_pool_open(NULL, 2) == KILN_NULL_ARGUMENT);
    CHECK(kiln_pool_threads(NULL) == 1);
    kiln_pool_close(NULL);
    for (int32_t none = 0; none >= -1; none--) { /* one for each processor */
        CHECK(kiln_pool_open(&pool, none) == KILN_OK);
        CHECK(kiln_pool_threads(&pool) >= 1);
        kiln_pool_close(&pool);
    }
    for (int i = 0; i < 20; i++) { /* closed while workers spin, or before they have begun */
        CHECK(kiln_pool_open(&pool, 4) == KILN_OK);
        kiln_pool_close(&pool);
    }
}

/* A child process has the pool's memory and none of its workers: it computes alone, and can close.
 */
static void test_forked(void) {
#ifndef __ANDROID__
    const pid_t child = fork();
    if (child == 0) {
        unsigned char hits[MOST] = {0};
        const struct count_args args = {hits, MOST, NULL};
        (void)alarm(30); /* ends a child that waits for workers */
        kiln_parallel(&pool, count_task, &args, MOST);
        const int right = all_once(hits, MOST) && kiln_pool_close(&pool) == KILN_OK &&
                          kiln_pool_threads(&pool) == 1;
        _exit(right ? 0 : 1);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(status == 0);
#endif
}

int main(int count, char **arguments) {
    const int32_t threads = count > 1 ? (int32_t)atoi(arguments[1]) : 3;
    test_extents(NULL);
    test_greatest_extent();
    test_open();
    CHECK(kiln_pool_open(&pool, threads) == KILN_OK);
    /* argument 2: how many threads there must be, 1 under threads_none.c */
    CHECK(kiln_pool_threads(&pool) == (count > 2 ? (int32_t)atoi(arguments[2]) : threads));
    test_extents(&pool);
    test_even_shares();
    test_nested();
    test_parked();
    test_forked();
    test_sessions();
    kiln_pool_close(&pool);
    return test_result();
}
