/* A pending tensor: one that some ranks have submitted and the coordinator waits for.
 *
 * Holds who submitted what, and puts into words where ranks differ or are missing.
 */
#ifndef HVDLITE_NEGOTIATION_PENDING_H
#define HVDLITE_NEGOTIATION_PENDING_H

#include "base/map.h"
#include "negotiation/request.h"

struct pending {
    struct map_node node;   /* the coordinator's, by its name */
    struct request **other; /* [rank]: its request where that differs, else NULL */
    int64_t *rows;          /* [rank]: rows it brings, where they vary */
    bool *submitted;        /* [rank] */
    int size, nsubmitted;   /* ranks; how many have submitted */
    const int *job_ranks;   /* [rank]: what texts call it; NULL: its number here */
    uint64_t id;   /* cache id when every rank so far came by it; 0: a whole request came */
    bool direct;   /* all so far lie at the same place of a region */
    bool joined;   /* some ranks have joined instead of submitting it */
    bool failed;   /* some rank has no data for it */
    bool conflict; /* so it is, or some rank's request can't go with the first one's */
    double since;  /* when the first rank submitted it */
    bool warned;   /* a stall was reported */
    uint64_t turn; /* of two that came, or were ready, the first has the lower one */
    struct pending *next, *older; /* in order of arrival; `next` of those ready: in its batch */
    struct request request;       /* of the first rank that submitted it; last, see request_copy */
};

/* NULL: no memory. */
struct pending *pending_new(const struct request *first, int size, const int *job_ranks,
                            double now);
void pending_free(struct pending *p);
void pending_free_all(struct pending *first); /* and those that are linked behind it */

/* By priority, then by turn. */
void pending_sort(struct pending **list, size_t n);

/* Rank brings its request (its rows, where they vary, are kept beside it); id 0 for a whole request. */
int pending_add(struct pending *p, int rank, const struct request *request, uint64_t id,
                hvd_error *err);

/* The request of a rank that has submitted. */
struct request pending_of(const struct pending *p, int rank);

/* "rank 1 has nothing to submit: ...", or "ranks disagree on the shape of 'x': ranks 0, 2: (17, 3); rank 1: (18, 3). ..." */
void pending_explain_conflict(const struct pending *p, hvd_error *err);

/* Of the ranks that have left without submitting it only the first one is named, so that all who wait
 * are told the same, though others may have left meanwhile. */
void pending_explain_left(const struct pending *p, int first, const char *reason, hvd_error *err);

/* Some ranks have joined, and it is nothing that zeros could stand in for. */
void pending_explain_joined(const struct pending *p, hvd_error *err);

/* "tensor 'x' and 7 more have waited for 60 s: submitted by rank 0, not by rank 1 (rank 1 waits for
 * 'broadcast.w')": what the missing ranks do instead is what the user looks for. oldest[rank]: what it
 * waits for, or NULL. */
void pending_explain_wait(const struct pending *p, size_t more, const struct pending *const *oldest,
                          double now, char *text, size_t size);

/* "rank 1", "ranks 0-2, 5": those whose `set` is `value`. */
void ranks_text(const bool *set, bool value, int size, const int *job_ranks, char *text,
                size_t length);

static inline int job_rank(const int *job_ranks, int rank) {
    return job_ranks ? job_ranks[rank] : rank;
}

#endif
