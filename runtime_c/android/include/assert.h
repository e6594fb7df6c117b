/* assert.h */
#undef assert
#if defined(NDEBUG)
#define assert(condition) ((void)0)
#else
#define assert(condition)                                                                          \
    ((condition) ? (void)0 : __assert2(__FILE__, __LINE__, __func__, #condition))
#endif
#ifndef KILN_ANDROID_ASSERT_H
#define KILN_ANDROID_ASSERT_H

#define static_assert _Static_assert

_Noreturn void __assert2(const char *file, int line, const char *function, const char *condition);

#endif
