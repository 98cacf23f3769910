/* A pending tensor: some ranks have submitted it; the coordinator waits for the others.
 *
 * Holds each rank's request; its texts name the ranks that differ or are missing. Waiting tensors
 * are found by name and listed in order of arrival. 100,000 may wait, so no call for one tensor
 * walks over all. */
#ifndef HVDLITE_NEGOTIATION_PENDING_H
#define HVDLITE_NEGOTIATION_PENDING_H

#include "base/map.h"
#include "negotiation/request.h"

struct pending {
    struct map_node node;   /* the node in the coordinator's map of names */
    struct request **other; /* by rank: the request if it conflicts with the first, else NULL */
    int64_t *rows;          /* by rank: the rank's rows, if ranks may have different numbers */
    bool *submitted;        /* by rank */
    char **why;             /* by rank: why the rank has no data; NULL: no text */
    int size, nsubmitted;   /* number of ranks; number of ranks that have submitted the tensor */
    /* by rank: the rank's number in the job, for texts; NULL: the same number */
    const int *job_ranks;
    uint64_t id;          /* the cache id; 0: some rank has sent a whole request */
    bool direct;          /* so far all ranks' tensors have the same offset in a region */
    bool joined;          /* some ranks have joined instead of submitting the tensor */
    bool failed, refused; /* a rank has no data; a rank has given a text for that */
    bool conflict;        /* a rank has no data, or its request conflicts with the first */
    double since;         /* when the first rank submitted it */
    bool warned;          /* a stall was reported */
    uint64_t order;       /* number in order of arrival; once ready, in order of readiness */
    size_t decided;       /* once ready: bytes that are in decided batches */
    bool done;            /* all of the tensor is decided */
    struct pending *next, *older; /* in order of arrival */
    /* request of the first rank; last, because request_copy leaves out its end */
    struct request request;
};

/* NULL: no memory. */
struct pending *pending_new(const struct request *first, int size, const int *job_ranks,
                            double now);
void pending_free(struct pending *p);
void pending_free_all(struct pending *first); /* also frees the tensors linked behind `first` */

/* By priority, then by order. */
void pending_sort(struct pending **list, size_t n);

/* Adds a rank's request; id 0: it was sent whole. */
int pending_add(struct pending *p, int rank, const struct request *request, uint64_t id,
                hvd_error *err);

/* Keeps the text of a rank whose request has failed. */
int pending_refused(struct pending *p, int rank, const char *why, hvd_error *err);

/* The first field on which ranks disagree. */
enum request_field pending_conflict(const struct pending *p);
/* The smallest number of tensors in the grouped call of a rank that has submitted this tensor. */
int pending_common(const struct pending *p);
/* If a rank has given a text: "rank 1: <text>". If a rank has no data: "tensor 'x': no data from
 * rank 1: ...". Else "tensor 'x': ranks disagree on the shape: ranks 0, 2: (17, 3); rank 1: (18,
 * 3). ..." */
void pending_explain_conflict(const struct pending *p, hvd_error *err);

/* Names only the first rank that left without submitting the tensor, so that all ranks get the same
 * text. */
void pending_explain_left(const struct pending *p, int first, const char *reason, hvd_error *err);

/* The rank waits for its last tensor, `last`, and has not submitted this tensor. */
void pending_explain_last(const struct pending *p, int rank, const struct pending *last,
                          hvd_error *err);
/* Some ranks have joined, and zeros can't stand in for their tensors. */
void pending_explain_joined(const struct pending *p, hvd_error *err);

/* "tensor 'x' and 7 more have waited for 60 s: submitted by rank 0, not by rank 1 (rank 1 waits for
 * 'broadcast.w')". Users want to know what the missing ranks do instead. oldest[rank]: the tensor
 * that the rank waits for, or NULL. silent[rank]: the rank does not answer; silent may be NULL. */
void pending_explain_wait(const struct pending *p, size_t more, const struct pending *const *oldest,
                          const bool *silent, double now, char *text, size_t size);

/* "rank 1", "ranks 0-2, 5": the ranks whose `set` is `value`. */
void ranks_text(const bool *set, bool value, int size, const int *job_ranks, char *text,
                size_t length);

/* ---- waiting.c: the tensors that at least one rank has not submitted ---- */

/* A zeroed struct waiting is empty. */
struct waiting {
    struct map names;
    struct pending *first, *last; /* in order of arrival, and so of `since` */
    struct pending *unseen;       /* the first tensor that was not checked yet; NULL: none */
};

/* `name`: the node of the request's name, hashed before. The rest: see pending_new. */
int waiting_add(struct waiting *w, const struct request *request, const struct map_node *name,
                int size, const int *job_ranks, double now, struct pending **out, hvd_error *err);
/* from then on the caller owns the tensor */
void waiting_remove(struct waiting *w, struct pending *p);
void waiting_free(struct waiting *w);

/* Returns [rank]: the oldest tensor that the rank waits for, or NULL. The caller frees the array.
 * NULL: no memory. */
const struct pending **waiting_of_ranks(const struct waiting *w, int size);

/* Reports each tensor that has waited for more than `limit` seconds once; tensors that miss the
 * same ranks share a text. Joins may wait for ever and are not reported. silent: see
 * pending_explain_wait. */
typedef void waiting_text(void *arg, const char *text);
void waiting_report(struct waiting *w, int size, const bool *silent, double now, double limit,
                    waiting_text *report, void *arg);

#endif
