/* Parcel: a message or data that one simulated rank sends to another; and queues of parcels. */
#ifndef HVDLITE_SIM_PARCEL_H
#define HVDLITE_SIM_PARCEL_H

#include <stdbool.h>
#include <stddef.h>

struct parcel {
    struct parcel *next;
    int from, to;
    bool message;
    size_t size;
    double due; /* when the parcel arrives; set when it leaves the stream */
    unsigned char data[];
};

struct queue {
    struct parcel *first, **last;
};

static inline void put(struct queue *q, struct parcel *p) {
    p->next = NULL;
    if (!q->first) q->last = &q->first;
    *q->last = p;
    q->last = &p->next;
}

static inline struct parcel *take(struct queue *q) {
    struct parcel *p = q->first;
    if (p) q->first = p->next;
    return p;
}

#endif
