/* A pending tensor: some ranks have submitted it, and the coordinator waits for the other ranks.
 *
 * It keeps each rank's request, so that error texts can name the ranks that differ or are missing.
 * Waiting tensors are found by name, and are listed in order of arrival. Up to 100,000 tensors may
 * wait, so no function for one tensor walks over all waiting tensors. */
#ifndef HVDLITE_NEGOTIATION_PENDING_H
#define HVDLITE_NEGOTIATION_PENDING_H

#include "base/map.h"
#include "negotiation/request.h"

struct pending {
    struct map_node node; /* the node in the coordinator's map of names */
    /* by rank: the rank's request if it conflicts with the first request, else NULL */
    struct request **other;
    /* by rank: number of the rank's rows, if ranks may have different numbers */
    int64_t *rows;
    bool *submitted;      /* by rank */
    char **why;           /* by rank: reason why the rank has no data; NULL: none given */
    int size, nsubmitted; /* number of ranks; number of ranks that have submitted the tensor */
    /* by rank: the rank's number in the job, for texts; NULL: the same number */
    const int *job_ranks;
    uint64_t id;   /* the id in the cache; 0: some rank has sent the whole request */
    bool direct;   /* so far the tensor has the same offset in a region on all ranks */
    bool joined;   /* some ranks have joined and so have not submitted the tensor */
    bool failed;   /* some rank has no data */
    bool refused;  /* some rank has no data and has said why */
    bool conflict; /* a rank has no data, or its request conflicts with the first request */
    double since;  /* time when the first rank submitted the tensor */
    bool warned;   /* a stall has been reported */
    /* the tensor's number: first in the order of arrival, later in the order of becoming ready */
    uint64_t order;
    size_t decided;               /* for a ready tensor: bytes that are in decided batches */
    bool done;                    /* all bytes of the tensor are decided */
    struct pending *next, *older; /* next and previous tensor in order of arrival */
    /* the first rank's request; the last field, because pending_new zeroes all fields before it */
    struct request request;
};

/* NULL: memory is short. */
struct pending *pending_new(const struct request *first, int size, const int *job_ranks,
                            double now);
void pending_free(struct pending *p);
void pending_free_all(struct pending *first); /* also frees the tensors linked after `first` */

/* Sorts by priority, then by order. */
void pending_sort(struct pending **list, size_t n);

/* Adds a rank's request. id 0: the rank sent the whole request. */
int pending_add(struct pending *p, int rank, const struct request *request, uint64_t id,
                hvd_error *err);

/* Keeps the reason that a rank without data has given. */
int pending_refused(struct pending *p, int rank, const char *why, hvd_error *err);

/* Returns the first field on which the ranks disagree. */
enum request_field pending_conflict(const struct pending *p);
/* Returns the smallest `grouped` (tensors in the grouped call) of the ranks that have submitted
 * this tensor. */
int pending_common(const struct pending *p);
/* If a rank has given a reason: "rank 1: <reason>". Else, if a rank has no data: "tensor 'x': no
 * data from rank 1: ...". Else "tensor 'x': ranks disagree on the shape: ranks 0, 2: (17, 3); rank
 * 1: (18, 3). ..." */
void pending_explain_conflict(const struct pending *p, hvd_error *err);

/* Sets the error of a tensor that waits for a rank that has left. first: the rank that left first
 * without submitting the tensor; the error names only this rank, so that all ranks get one text. */
void pending_explain_left(const struct pending *p, int first, const char *reason, hvd_error *err);

/* Sets the error of a tensor that `rank` has not submitted: `rank` waits for `last`, and submits no
 * other tensor before `last` has ended. */
void pending_explain_last(const struct pending *p, int rank, const struct pending *last,
                          hvd_error *err);
/* Sets the error of a tensor that needs data of ranks that have joined: zeros can't replace it. */
void pending_explain_joined(const struct pending *p, hvd_error *err);

/* Writes "tensor 'x' and 7 more have waited for 60 s: submitted by rank 0, not by rank 1 (rank 1
 * waits for 'broadcast.w')": users want to know what the missing ranks do instead. oldest: by rank,
 * the tensor that the rank waits for, or NULL. silent: by rank, true if the rank does not answer;
 * may be NULL. */
void pending_explain_wait(const struct pending *p, size_t more, const struct pending *const *oldest,
                          const bool *silent, double now, char *text, size_t size);

/* Writes the ranks whose `set` is `value`: "rank 1", "ranks 0-2, 5". */
void ranks_text(const bool *set, bool value, int size, const int *job_ranks, char *text,
                size_t length);

/* ---- waiting.c: tensors that at least one rank has not submitted ---- */

/* To open the struct, set `size` and `job_ranks` (see struct pending) and zero the rest. */
struct waiting {
    int size;
    const int *job_ranks;
    struct map names;
    struct pending *first, *last; /* in order of arrival, which is also the order of `since` */
    struct pending *unseen;       /* the first tensor that has not been checked yet; NULL: none */
};

/* `name`: a node of the request's name, which is hashed already. */
int waiting_add(struct waiting *w, const struct request *request, const struct map_node *name,
                double now, struct pending **out, hvd_error *err);
/* Removes the tensor from the list; the caller must free the tensor. */
void waiting_remove(struct waiting *w, struct pending *p);
void waiting_free(struct waiting *w);

/* Returns an array by rank: the oldest tensor that the rank waits for, or NULL. The caller frees
 * the array. NULL: memory is short. */
const struct pending **waiting_of_ranks(const struct waiting *w);

/* Reports once each tensor that has waited for more than `limit` seconds. Tensors that wait for the
 * same ranks share a text. Joins are not reported, because a join may wait for any length of time.
 * silent: see pending_explain_wait. */
typedef void waiting_text(void *arg, const char *text);
void waiting_report(struct waiting *w, const bool *silent, double now, double limit,
                    waiting_text *report, void *arg);

#endif
