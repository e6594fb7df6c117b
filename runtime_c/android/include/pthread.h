/* pthread.h: threads, mutexes and condition variables.
 *
 * The C library alone looks into these objects; here they are memory, of at least the size and
 * alignment that any C library for 64-bit Linux asks for (Android's: 40 and 48 bytes).
 */
#ifndef KILN_ANDROID_PTHREAD_H
#define KILN_ANDROID_PTHREAD_H

typedef long pthread_t;
typedef struct {
    long opaque[8];
} pthread_mutex_t;
typedef struct {
    long opaque[8];
} pthread_cond_t;

int pthread_create(pthread_t *thread, const void *attributes, void *(*start)(void *), void *given);
int pthread_join(pthread_t thread, void **result);
int pthread_mutex_init(pthread_mutex_t *mutex, const void *attributes);
int pthread_mutex_destroy(pthread_mutex_t *mutex);
int pthread_mutex_lock(pthread_mutex_t *mutex);
int pthread_mutex_unlock(pthread_mutex_t *mutex);
int pthread_cond_init(pthread_cond_t *condition, const void *attributes);
int pthread_cond_destroy(pthread_cond_t *condition);
int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
int pthread_cond_signal(pthread_cond_t *condition);
int pthread_cond_broadcast(pthread_cond_t *condition);

#endif
