/* Counts what another thread reports, and lets the test wait for it. */
#ifndef HVDLITE_COUNTER_H
#define HVDLITE_COUNTER_H

#include "base/clock.h"
#include "base/sync.h"

struct counter {
    struct monitor monitor; /* guards `count` */
    int count;
};

static inline void counter_init(struct counter *c) {
    *c = (struct counter){.count = 0};
    monitor_init(&c->monitor);
}

static inline void counter_add(struct counter *c) {
    monitor_lock(&c->monitor);
    c->count++;
    monitor_notify(&c->monitor);
    monitor_unlock(&c->monitor);
}

static inline int counter_value(struct counter *c) {
    monitor_lock(&c->monitor);
    int count = c->count;
    monitor_unlock(&c->monitor);
    return count;
}

/* Tells whether `count` comes to `least` within 20 seconds. */
static inline bool counter_reaches(struct counter *c, int least) {
    double until = clock_now() + 20;
    monitor_lock(&c->monitor);
    while (c->count < least && clock_now() < until) monitor_wait(&c->monitor, 1);
    bool enough = c->count >= least;
    monitor_unlock(&c->monitor);
    return enough;
}

#endif
