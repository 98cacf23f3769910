/* Counts the events that another thread reports; the test can wait for them. */
#ifndef HVDLITE_COUNTER_H
#define HVDLITE_COUNTER_H

#include "base/os.h"

struct counter {
    struct mutex mutex; /* guards `count` */
    int count;
};

static inline void counter_init(struct counter *c) {
    *c = (struct counter){.count = 0};
    mutex_init(&c->mutex);
}

static inline void counter_add(struct counter *c) {
    mutex_lock(&c->mutex);
    c->count++;
    mutex_notify(&c->mutex);
    mutex_unlock(&c->mutex);
}

static inline int counter_value(struct counter *c) {
    mutex_lock(&c->mutex);
    int count = c->count;
    mutex_unlock(&c->mutex);
    return count;
}

/* Returns whether `count` reaches `least` within a minute. */
static inline bool counter_reaches(struct counter *c, int least) {
    double until = clock_now() + 60;
    mutex_lock(&c->mutex);
    while (c->count < least && clock_now() < until) mutex_wait(&c->mutex, 1);
    bool enough = c->count >= least;
    mutex_unlock(&c->mutex);
    return enough;
}

#endif
