/* Compiles files of the core so that another task may run before each access to shared memory.
 *
 * Include it after the core's headers, then include the core's files. The Makefile lets the linker
 * take these functions instead of those of the core's objects. */
#ifndef HVDLITE_INTERLEAVE_CORE_H
#define HVDLITE_INTERLEAVE_CORE_H

#include "interleave.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>

#undef atomic_load
#undef atomic_load_explicit
#undef atomic_store
#undef atomic_store_explicit
#undef atomic_exchange
#undef atomic_fetch_add
#undef atomic_fetch_sub
#undef atomic_compare_exchange_strong
#define atomic_load_explicit(p, order) (turn(), __atomic_load_n((p), (order)))
#define atomic_load(p) atomic_load_explicit(p, __ATOMIC_SEQ_CST)
#define atomic_store_explicit(p, v, order) (turn(), __atomic_store_n((p), (v), (order)))
#define atomic_store(p, v) atomic_store_explicit(p, v, __ATOMIC_SEQ_CST)
#define atomic_exchange(p, v) (turn(), __atomic_exchange_n((p), (v), __ATOMIC_SEQ_CST))
#define atomic_fetch_add(p, v) (turn(), __atomic_fetch_add((p), (v), __ATOMIC_SEQ_CST))
#define atomic_fetch_sub(p, v) (turn(), __atomic_fetch_sub((p), (v), __ATOMIC_SEQ_CST))
#define atomic_compare_exchange_strong(p, expected, v)                                             \
    (turn(),                                                                                       \
     __atomic_compare_exchange_n((p), (expected), (v), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
#define memcpy(to, from, n) (turn(), (memcpy)(to, from, n))

static bool asleep[TASKS_MOST];

static bool is_awake(const void *task) { return !*(const bool *)task; }

/* A futex without a time-out: a task that misses a ring sleeps for ever, so the test fails. */
static void simulated_futex(const atomic_uint *word, int op, unsigned value) {
    turn();
    if (op == FUTEX_WAKE) {
        for (int i = 0; i < search.n; i++) asleep[i] = false;
    } else if (__atomic_load_n(word, __ATOMIC_SEQ_CST) == value) {
        asleep[search.running] = true;
        wait_until(is_awake, &asleep[search.running]);
    }
}

#define syscall(number, word, op, value, timeout, ...)                                             \
    ((void)(timeout), simulated_futex(word, op, value))
#include "shm/doorbell.c"

#endif
