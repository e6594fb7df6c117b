/* test.h: the least that a test program needs. A failed CHECK says where, and the program goes on;
 * main ends with `return test_result();`. */
#ifndef KILN_TEST_H
#define KILN_TEST_H

#include <stdio.h>
#include <string.h>

static int test_checks, test_failures;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        test_checks++;                                                                             \
        if (!(condition)) {                                                                        \
            test_failures++;                                                                       \
            (void)fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);          \
        }                                                                                          \
    } while (0)

static inline int test_result(void) {
    (void)printf("%d checks, %d failures\n", test_checks, test_failures);
    return test_failures == 0 && test_checks > 0 ? 0 : 1;
}

#endif
