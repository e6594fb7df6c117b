/* threads_pthread.c: a pool of POSIX threads that spin for the next kernel, then park.
 *
 * A job is handed out through one 32-bit word, the gate: generation << 8 | OPEN | workers inside.
 * 1. kiln_parallel writes the job, then opens the gate under a new generation, and wakes the
 * parked.
 * 2. A worker that sees a generation it has not served enters by compare-and-swap (count + 1),
 * takes chunks from the shared counter until none is left, and leaves (count - 1).
 * 3. The caller takes chunks too, closes the gate, and waits for the count to fall to zero.
 * So the caller waits only for workers that are inside: a worker that still sleeps, or was
 * preempted before it entered, delays no other thread and never takes tasks of a later job by
 * mistake. Chunks become smaller towards the end, down to one task, so that threads end together:
 * chunks of one size would give ten tasks to two threads as six and four (guided self-scheduling:
 * Polychronopoulos and Kuck, IEEE Transactions on Computers C-36, 1987).
 * Tasks of a kernel are independent: which thread takes which chunk does not change a result.
 *
 * One job at a time: a caller that finds the pool busy (another session, or a task of the job)
 * does its work in its own thread. Parking: a worker counts itself among the sleepers before it
 * looks at the gate for the last time, and the caller opens the gate before it reads that count;
 * both are sequentially consistent, so one of the two sees the other.
 *
 * fork() copies the pool without its workers, and perhaps with a mutex that one of them held: the
 * child computes alone, and neither locks nor joins.
 */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

#include "../core/internal.h"

#define COUNT_MASK 0x7fu /* workers inside, at most KILN_POOL_MAX_THREADS - 1 */
#define OPEN       0x80u
#define GENERATION 0x100u /* the least bit of the generation */
#define SPIN_NS    100000 /* then a worker parks; bridges short serial steps between parallel ones */
#define LOOKS      64   /* at the gate between two looks at the clock: a pause takes 1 to 100 ns */
#define YIELD_AT   2000 /* looks before the caller offers its processor to the last worker */
#define SHARE      2    /* a chunk is what remains, divided among so many times the threads */

typedef struct pool {
    _Alignas(64) _Atomic uint32_t gate;
    _Alignas(64) _Atomic uint32_t next; /* first task that nobody has taken */
    _Alignas(64) kiln_task task;        /* the job; written only while the gate is shut and empty */
    const void *args;
    uint32_t extent, parts;
    atomic_flag busy;
    _Atomic uint32_t sleepers;
    _Atomic bool closing;
    int32_t threads; /* the caller among them; 0: closed */
    pid_t process;   /* that the workers belong to */
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    pthread_t workers[KILN_POOL_MAX_THREADS - 1];
} pool;

_Static_assert(sizeof(pool) + _Alignof(pool) <= sizeof(((kiln_pool *)NULL)->opaque),
               "kiln_pool is too small");
_Static_assert(KILN_POOL_MAX_THREADS - 1 <= COUNT_MASK, "the gate counts too few workers");

/* kiln_pool asks for no alignment of its own, so that C and C++ callers can declare one anywhere.
 */
static pool *pool_of(const kiln_pool *memory) {
    const uintptr_t at = (uintptr_t)memory->opaque + _Alignof(pool) - 1;
    return (pool *)(at & ~(uintptr_t)(_Alignof(pool) - 1));
}

static void pause_processor(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
    __asm__ volatile("yield");
#endif
}

static void take_chunks(pool *self) {
    const uint32_t extent = self->extent, parts = self->parts;
    uint32_t begin = atomic_load_explicit(&self->next, memory_order_relaxed);
    while (begin < extent) {
        const uint32_t size = (extent - begin) / parts, end = begin + (size > 0 ? size : 1);
        if (!atomic_compare_exchange_weak_explicit(&self->next, &begin, end, memory_order_relaxed,
                                                   memory_order_relaxed))
            continue;
        self->task(self->args, (int32_t)begin, (int32_t)end);
        begin = atomic_load_explicit(&self->next, memory_order_relaxed);
    }
}

static bool has_job(uint32_t gate, uint32_t served) {
    return (gate & OPEN) != 0 && gate / GENERATION != served;
}

static int64_t nanoseconds(void) {
    struct timespec now = {0, 0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Wait for a job of another generation than `served`, or for the end. */
static void wait_for_job(pool *self, uint32_t served) {
    const int64_t until = nanoseconds() + SPIN_NS;
    do {
        for (int look = 0; look < LOOKS; look++) {
            if (has_job(atomic_load_explicit(&self->gate, memory_order_relaxed), served) ||
                atomic_load_explicit(&self->closing, memory_order_relaxed))
                return;
            pause_processor();
        }
    } while (nanoseconds() < until);
    pthread_mutex_lock(&self->mutex);
    atomic_fetch_add(&self->sleepers, 1);
    while (!has_job(atomic_load(&self->gate), served) && !atomic_load(&self->closing))
        pthread_cond_wait(&self->wake, &self->mutex);
    atomic_fetch_sub(&self->sleepers, 1);
    pthread_mutex_unlock(&self->mutex);
}

static void *work(void *memory) {
    pool *self = memory;
    uint32_t served = UINT32_MAX; /* no generation: the gate holds 24 bits of it */
    while (!atomic_load(&self->closing)) {
        wait_for_job(self, served);
        uint32_t gate = atomic_load(&self->gate);
        while (has_job(gate, served)) {
            if (!atomic_compare_exchange_weak(&self->gate, &gate, gate + 1))
                continue;
            served = gate / GENERATION;
            take_chunks(self);
            atomic_fetch_sub_explicit(&self->gate, 1, memory_order_release);
            break;
        }
    }
    return NULL;
}

static void wake_all(pool *self) {
    pthread_mutex_lock(&self->mutex);
    pthread_cond_broadcast(&self->wake);
    pthread_mutex_unlock(&self->mutex);
}

kiln_status kiln_pool_open(kiln_pool *memory, int32_t threads) {
    if (memory == NULL)
        return KILN_NULL_ARGUMENT;
    pool *self = pool_of(memory);
    memory->parallel = kiln_parallel;
    *self = (pool){.busy = ATOMIC_FLAG_INIT, .process = getpid()};
    if (threads <= 0) {
        threads = kiln_processors();
        if (threads > KILN_POOL_MAX_THREADS)
            threads = KILN_POOL_MAX_THREADS;
    }
    if (threads > KILN_POOL_MAX_THREADS)
        return KILN_SYSTEM_THREADS;
    if (pthread_mutex_init(&self->mutex, NULL) != 0)
        return KILN_SYSTEM_THREADS;
    if (pthread_cond_init(&self->wake, NULL) != 0) {
        pthread_mutex_destroy(&self->mutex);
        return KILN_SYSTEM_THREADS;
    }
    for (self->threads = 1; self->threads < threads; self->threads++) {
        if (pthread_create(&self->workers[self->threads - 1], NULL, work, self) != 0) {
            (void)kiln_pool_close(memory);
            return KILN_SYSTEM_THREADS;
        }
    }
    return KILN_OK;
}

kiln_status kiln_pool_close(kiln_pool *memory) {
    pool *self = memory == NULL ? NULL : pool_of(memory);
    if (self == NULL || self->threads == 0)
        return KILN_OK;
    if (self->process != getpid()) {
        self->threads = 0;
        return KILN_OK;
    }
    if (atomic_flag_test_and_set_explicit(&self->busy, memory_order_acquire))
        return KILN_BUSY;
    atomic_store(&self->closing, true);
    wake_all(self);
    for (; self->threads > 1; self->threads--)
        pthread_join(self->workers[self->threads - 2], NULL);
    self->threads = 0;
    pthread_cond_destroy(&self->wake);
    pthread_mutex_destroy(&self->mutex);
    return KILN_OK;
}

int32_t kiln_pool_threads(const kiln_pool *memory) {
    return memory == NULL || pool_of(memory)->threads == 0 ? 1 : pool_of(memory)->threads;
}

void kiln_parallel(kiln_pool *memory, kiln_task task, const void *args, int32_t extent) {
    if (extent <= 0)
        return;
    pool *self = memory == NULL ? NULL : pool_of(memory);
    if (self == NULL || extent == 1 || self->threads <= 1 ||
        atomic_flag_test_and_set_explicit(&self->busy, memory_order_acquire)) {
        task(args, 0, extent);
        return;
    }
    self->task = task;
    self->args = args;
    self->extent = (uint32_t)extent;
    self->parts = (uint32_t)self->threads * SHARE;
    atomic_store_explicit(&self->next, 0, memory_order_relaxed);

    /* The gate is shut and empty here: its low byte is zero. */
    const uint32_t shut = atomic_load_explicit(&self->gate, memory_order_relaxed);
    atomic_store(&self->gate, (shut + GENERATION) | OPEN);
    if (atomic_load(&self->sleepers) > 0 && self->process == getpid())
        wake_all(self);
    take_chunks(self);
    uint32_t gate = atomic_fetch_and(&self->gate, ~OPEN);
    for (int spin = 0; (gate & COUNT_MASK) != 0; spin++) {
        if (spin < YIELD_AT)
            pause_processor();
        else
            (void)sched_yield();
        gate = atomic_load_explicit(&self->gate, memory_order_acquire);
    }
    atomic_flag_clear_explicit(&self->busy, memory_order_release);
}
