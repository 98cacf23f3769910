/* Turns: collectives of one name are submitted in the order in which they were pushed.
 *
 * MXNet may run an operation that waits for an array before it deletes a dropped operation and
 * reports the failure. So the next step's tensor could overtake the failed tensor of the same name,
 * and meet the other ranks' failed step: wrong sums without an error. Any thread. */
#ifndef HVDLITE_MXNET_TURNS_H
#define HVDLITE_MXNET_TURNS_H

#include "base/sync.h"

enum { TURN_QUEUES = 1024 }; /* a power of two: the queues are short even for 10,000 gradients */

struct turn {
    struct turn *next; /* entered later, in the same queue */
    uint64_t hash;     /* of the name */
    const char *name;
    int group;
    bool ready; /* may be submitted as soon as it is the oldest of its name */
    void *value;
};

struct turns {
    struct mutex mutex; /* guards the queues and `ready` */
    struct turn *queues[TURN_QUEUES];
};

void turns_init(struct turns *t);

/* The name must outlive the turn. Names of different groups are different. */
void turn_enter(struct turns *t, struct turn *turn, int group, const char *name, void *value);

/* Makes the turn ready. Returns it if the caller must submit it now, then call turn_pass. NULL: the
 * thread that submits the earlier turns will. */
struct turn *turn_come(struct turns *t, struct turn *turn);

/* Ends a submitted turn. Returns the next turn of its name if the caller must submit that, too;
 * else NULL. */
struct turn *turn_pass(struct turns *t, struct turn *turn);

#endif
