/* sched.h: give up the processor for other threads. */
#ifndef KILN_ANDROID_SCHED_H
#define KILN_ANDROID_SCHED_H

int sched_yield(void);

#endif
