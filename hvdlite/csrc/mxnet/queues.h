/* Queues submit the collectives of one name in the order in which they were pushed.
 *
 * MXNet may drop an operation, then run a later operation on the same array, and only then delete
 * the dropped operation. Only the deletion reports the failure. Without queues, the tensor of the
 * next step could overtake the failed tensor of the same name, and be summed with the other ranks'
 * tensors of the failed step: a wrong sum without an error. Any thread may call these functions. */
#ifndef HVDLITE_MXNET_QUEUES_H
#define HVDLITE_MXNET_QUEUES_H

#include "base/os.h"

enum { QUEUES = 1024 }; /* a power of two; keeps queues short for up to 10,000 gradients */

struct queue_entry {
    struct queue_entry *next; /* the next entry of the same queue, which entered later */
    uint64_t hash;            /* hash of the name */
    const char *name;
    int group;
    bool ready; /* true: the entry may be submitted when it is the oldest entry of its name */
    void *value;
};

struct queues {
    struct mutex mutex; /* guards the queues and `ready` */
    struct queue_entry *first[QUEUES];
};

void queues_init(struct queues *q);

/* Adds an entry. The name must outlive the entry. Equal names in different groups are different
 * names. */
void queue_enter(struct queues *q, struct queue_entry *entry, int group, const char *name,
                 void *value);

/* Makes the entry ready. Returns the entry if the caller must submit it now and then call
 * queue_next. NULL: the thread that submits the older entries of its name submits this entry,
 * too. */
struct queue_entry *queue_ready(struct queues *q, struct queue_entry *entry);

/* Removes a submitted entry. Returns the next entry of its name if the caller must submit that
 * entry, too; else NULL. */
struct queue_entry *queue_next(struct queues *q, struct queue_entry *entry);

#endif
