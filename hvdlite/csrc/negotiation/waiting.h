/* What waits: the pending tensors of the coordinator, by name and in order of arrival.
 *
 * Nothing here walks over all that waits for one tensor's sake: 10^5 may. */
#ifndef HVDLITE_NEGOTIATION_WAITING_H
#define HVDLITE_NEGOTIATION_WAITING_H

#include "negotiation/pending.h"

/* Zeroed: nothing waits. */
struct waiting {
    struct map names;
    struct pending *first, *last; /* in order of arrival, and so of `since` */
    struct pending *unseen;       /* the first that came since waiting_seen; NULL: none */
};

struct pending *waiting_find(const struct waiting *w, const struct map_node *name);
/* `name` is the request's, hashed before. The rest is as for pending_new. */
int waiting_add(struct waiting *w, const struct request *request, const struct map_node *name,
                int size, const int *job_ranks, double now, struct pending **out, hvd_error *err);
void waiting_remove(struct waiting *w, struct pending *p); /* it is the caller's then */
void waiting_free(struct waiting *w);

/* What waits by now has been looked at. */
void waiting_seen(struct waiting *w);

/* [rank]: the oldest tensor that it waits for; NULL: none. free() it. NULL: no memory. */
const struct pending **waiting_of_ranks(const struct waiting *w, int size);

/* Puts what has waited for more than `limit` seconds and was not reported before into words: one text
 * for all that miss the same ranks. A join waits for other ranks' data: that is fine. */
typedef void waiting_text(void *arg, const char *text);
void waiting_report(struct waiting *w, int size, double now, double limit, waiting_text *report,
                    void *arg);

#endif
