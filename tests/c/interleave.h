/* Runs tasks in every order that matters. Between two points a task runs without interruption; at a
 * point another task may continue.
 *
 * Tasks are coroutines of one thread, so the same choices give the same run, and a depth-first
 * search tries the choices. A point is `turn()`, or a wait for a condition. If a task has to wait,
 * any other task may continue. `most` limits how often a task that need not wait is interrupted,
 * because most bugs need few interruptions: Musuvathi and Qadeer, "Iterative Context Bounding for
 * Systematic Testing of Multithreaded Programs", PLDI'07. Memory is sequentially consistent
 * here. */
#ifndef HVDLITE_INTERLEAVE_H
#define HVDLITE_INTERLEAVE_H

#include "check.h"

#include <ucontext.h>

enum { TASKS_MOST = 5, POINTS_MOST = 1000, STACK_BYTES = 256 << 10, AT_WILL = 1000 };

typedef void task_main(int task);
typedef bool task_ready(const void *arg);

static struct {
    ucontext_t home, contexts[TASKS_MOST];
    task_main *main;
    int n, running, interrupted, most;
    bool done[TASKS_MOST], stuck;
    task_ready *awaits[TASKS_MOST]; /* the condition that the task waits for; NULL: none */
    const void *arg[TASKS_MOST];
    int at, depth; /* index of this run's next choice of a task; number of recorded choices */
    unsigned char chosen[POINTS_MOST], options[POINTS_MOST];
} search;

static inline bool task_can_run(int task) {
    return !search.done[task] && (!search.awaits[task] || search.awaits[task](search.arg[task]));
}

/* Returns the recorded choice at this place; if none is recorded, records and returns option 0. */
static inline int choose(int options) {
    if (options < 2) return 0;
    REQUIRE(search.at < POINTS_MOST);
    if (search.at == search.depth) {
        search.chosen[search.depth] = 0;
        search.options[search.depth++] = (unsigned char)options;
    }
    return search.chosen[search.at++];
}

/* Chooses the task that continues; the running task is the first option. -1: no task can
 * continue. */
static inline int next_task(void) {
    int can[TASKS_MOST], n = 0;
    bool goes_on = task_can_run(search.running);
    if (goes_on) can[n++] = search.running;
    for (int i = 0; i < search.n && (!goes_on || search.interrupted < search.most); i++)
        if (i != search.running && task_can_run(i)) can[n++] = i;
    if (!n) return -1;
    int next = can[choose(n)];
    search.interrupted += goes_on && next != search.running;
    return next;
}

static inline void turn(void) {
    int before = search.running, next = next_task();
    if (next == before) return;
    search.stuck = next < 0;
    search.running = next;
    swapcontext(&search.contexts[before], next < 0 ? &search.home : &search.contexts[next]);
}

/* Lets other tasks run until `ready` returns true and the search chooses this task. */
static inline void wait_until(task_ready *ready, const void *arg) {
    search.awaits[search.running] = ready;
    search.arg[search.running] = arg;
    turn();
    search.awaits[search.running] = NULL;
}

static inline void task_entry(int task) {
    search.main(task);
    search.done[task] = true;
    int next = next_task();
    for (int i = 0; i < search.n; i++) search.stuck |= next < 0 && !search.done[i];
    search.running = next;
    setcontext(next < 0 ? &search.home : &search.contexts[next]);
}

static inline void prepare_task(int task) {
    static char stacks[TASKS_MOST][STACK_BYTES];
    search.done[task] = false;
    search.awaits[task] = NULL;
    getcontext(&search.contexts[task]);
    search.contexts[task].uc_stack.ss_sp = stacks[task];
    search.contexts[task].uc_stack.ss_size = STACK_BYTES;
    makecontext(&search.contexts[task], (void (*)(void))task_entry, 1, task);
}

static inline void run_once(void) {
    search.at = search.interrupted = 0;
    search.stuck = false;
    for (int i = 0; i < search.n; i++) prepare_task(i);
    search.running = choose(search.n);
    swapcontext(&search.home, &search.contexts[search.running]);
}

/* Prepares the choices of the next run: changes the last choice that has another option. False: all
 * orders have been run. */
static inline bool next_choices(void) {
    while (search.depth && search.chosen[search.depth - 1] + 1 == search.options[search.depth - 1])
        search.depth--;
    if (!search.depth) return false;
    search.chosen[search.depth - 1]++;
    return true;
}

/* Runs n tasks in all orders with at most `most` interruptions; each run starts with begin() and
 * ends with end(). Stops at the first order in which a check fails or tasks wait for ever. Returns
 * the number of runs. */
static inline long interleave(int n, int most, task_main *run, void (*begin)(void),
                              void (*end)(void)) {
    long runs = 0, failed = atomic_load(&check_failed);
    search.n = n;
    search.most = most;
    search.main = run;
    search.depth = 0;
    do {
        begin();
        run_once();
        runs++;
        CHECK_CASE(!search.stuck, "all tasks wait, in order %ld", runs);
        if (!search.stuck) end();
    } while (atomic_load(&check_failed) == failed && next_choices());
    return runs;
}

#endif
