/* Queues: collectives of one name are submitted in the order in which they were pushed.
 *
 * MXNet may run an operation that waits for an array before it deletes a dropped operation and
 * reports the failure. So the next step's tensor could overtake the failed tensor of the same name,
 * and meet the other ranks' failed step: wrong sums without an error. Any thread. */
#ifndef HVDLITE_MXNET_QUEUES_H
#define HVDLITE_MXNET_QUEUES_H

#include "base/sync.h"

enum { QUEUES = 1024 }; /* a power of two; enough to keep queues short for 10,000 gradients */

struct queue_entry {
    struct queue_entry *next; /* the next entry of the same queue, which entered later */
    uint64_t hash;            /* hash of the name */
    const char *name;
    int group;
    bool ready; /* true: may be submitted when it is the oldest entry of its name */
    void *value;
};

struct queues {
    struct mutex mutex; /* guards the queues and `ready` */
    struct queue_entry *first[QUEUES];
};

void queues_init(struct queues *q);

/* The name must outlive the entry. Names of different groups are different. */
void queue_enter(struct queues *q, struct queue_entry *entry, int group, const char *name,
                 void *value);

/* Makes the entry ready. Returns it if the caller must submit it now, then call queue_next. NULL:
 * the thread that submits the older entries of its name also submits this one. */
struct queue_entry *queue_ready(struct queues *q, struct queue_entry *entry);

/* Removes a submitted entry. Returns the next entry of its name if the caller must submit that,
 * too; else NULL. */
struct queue_entry *queue_next(struct queues *q, struct queue_entry *entry);

#endif
