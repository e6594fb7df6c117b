/* time.h: as far as the programs that test a bundle use it. A nanosecond is an instruction here:
 * the machine is emulated, and its programs are measured in instructions.
 */
#ifndef KILN_BARE_TIME_H
#define KILN_BARE_TIME_H

struct timespec {
    long long tv_sec;
    long tv_nsec;
};

#define TIME_UTC        1
#define CLOCK_MONOTONIC 1

int timespec_get(struct timespec *time, int base);
int clock_gettime(int clock, struct timespec *time);

#endif
