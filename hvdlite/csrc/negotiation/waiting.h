/* The coordinator's waiting tensors, by name and in order of arrival.
 *
 * 100,000 tensors may wait, so no call for a single tensor walks over all of them. */
#ifndef HVDLITE_NEGOTIATION_WAITING_H
#define HVDLITE_NEGOTIATION_WAITING_H

#include "negotiation/pending.h"

/* Zeroed: nothing waits. */
struct waiting {
    struct map names;
    struct pending *first, *last; /* in order of arrival, and so of `since` */
    struct pending *unseen;       /* the first one added since waiting_seen; NULL: none */
};

struct pending *waiting_find(const struct waiting *w, const struct map_node *name);
/* `name`: the node of the request's name, hashed before. The rest: see pending_new. */
int waiting_add(struct waiting *w, const struct request *request, const struct map_node *name,
                int size, const int *job_ranks, double now, struct pending **out, hvd_error *err);
void waiting_remove(struct waiting *w, struct pending *p); /* the caller owns it then */
void waiting_free(struct waiting *w);

/* All tensors that wait now count as seen. */
void waiting_seen(struct waiting *w);

/* [rank]: the oldest tensor it waits for; NULL: none. To be freed by the caller. NULL: no
 * memory. */
const struct pending **waiting_of_ranks(const struct waiting *w, int size);

/* Reports tensors that have waited for more than `limit` seconds, each once: one text for all that
 * miss the same ranks. Joins may wait for ever and are not reported. silent: see pending_explain_wait. */
typedef void waiting_text(void *arg, const char *text);
void waiting_report(struct waiting *w, int size, const bool *silent, double now, double limit,
                    waiting_text *report, void *arg);

#endif
