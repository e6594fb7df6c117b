"""Once-only initialisation: the generated guard that calls a library's SYMBOL_make once in a process.

Several threads may open sessions at the same time. The first thread initialises; the others wait and then see
the result, because the guard's last store has release order and the waiting threads' load has acquire order
(C11 7.17.3). The guard uses no thread library, as there may be none to link.
"""

from __future__ import annotations

_GUARD = """
#include <stdatomic.h>
#if __STDC_HOSTED__
#include <sched.h>
#endif

/* Calls SYMBOL_make once in this process; another thread waits for it. Where it fails (not 0), a
 * later call tries again. */
int32_t SYMBOL_open({parameters}) {{
    enum {{ NOT_MADE, BEING_MADE, MADE }};
    static _Atomic int state;
    int seen = NOT_MADE;
    while (!atomic_compare_exchange_strong(&state, &seen, BEING_MADE)) {{
        if (seen == MADE)
            return 0;
#if __STDC_HOSTED__
        (void)sched_yield();
#endif
        seen = NOT_MADE;
    }}
    const int32_t status = SYMBOL_make({arguments});
    atomic_store(&state, status == 0 ? MADE : NOT_MADE);
    return status;
}}
"""


def guard(count: int) -> str:
    """C source of `int32_t SYMBOL_open(const void *constant, …)` with `count` constants."""
    names = [f"c{i}" for i in range(count)]
    parameters = ", ".join(f"const void *{name}" for name in names) or "void"
    return _GUARD.format(parameters=parameters, arguments=", ".join(names))
