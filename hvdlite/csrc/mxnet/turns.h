/* Turns: collectives of one name are submitted in the order in which they were pushed.
 *
 * MXNet runs what waits for an array before it deletes an operation that it has dropped, and before
 * it tells of the failure. So the next step's tensor could overtake the failed one of its name, and
 * would be paired with the other ranks' failed step: wrong sums that nobody reports. Any thread. */
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

/* The name must outlive the turn. The same name of another group is another name. */
void turn_enter(struct turns *t, struct turn *turn, int group, const char *name, void *value);

/* Makes it ready. Returns it if the caller has to submit it now, and then call turn_pass; NULL: the
 * one who submits those before it will. */
struct turn *turn_come(struct turns *t, struct turn *turn);

/* Ends the turn, which was submitted. Returns the next one of its name if the caller has to submit
 * that, too; else NULL. */
struct turn *turn_pass(struct turns *t, struct turn *turn);

#endif
