/* time.h: clocks. */
#ifndef KILN_ANDROID_TIME_H
#define KILN_ANDROID_TIME_H

#include <sys/types.h>

struct timespec {
    time_t tv_sec;
    long tv_nsec;
};

#define CLOCK_REALTIME          0
#define CLOCK_MONOTONIC         1
#define CLOCK_THREAD_CPUTIME_ID 3

int clock_gettime(int clock, struct timespec *time);
int nanosleep(const struct timespec *pause, struct timespec *left);
time_t time(time_t *seconds);

#endif
