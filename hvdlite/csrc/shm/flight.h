/* The flight recorder: what a rank did last, in memory that outlives the rank.
 *
 * A ring of the last operations, this rank's counts, and what went wrong. Other processes of this
 * user read it while the job runs, and a process that holds its file also after a SIGKILL. The file
 * has no name, so nothing of it is left over. A text at its begin tells readers where the fields
 * lie. Any thread writes; a reader skips an operation whose version is odd, or changes
 * meanwhile. */
#ifndef HVDLITE_SHM_FLIGHT_H
#define HVDLITE_SHM_FLIGHT_H

#include "base/stats.h"
#include "base/sync.h"
#include "negotiation/request.h"

enum { FLIGHT_OPS = 1000, FLIGHT_NAME = 56, FLIGHT_LABEL = 64, FLIGHT_TEXT = 1024 };

/* How far an operation came: waits until all ranks have submitted it; ready; moves; ended. */
enum flight_phase {
    FLIGHT_NONE,
    FLIGHT_WAITS,
    FLIGHT_AGREED,
    FLIGHT_MOVES,
    FLIGHT_DONE,
    FLIGHT_FAILED
};

/* The kind of what a rank did alone, beside those of tensors. */
enum { FLIGHT_ALONE = HVD_KINDS };

/* One tensor on its way. Times are clock_now's; 0: not yet. */
struct flight_op {
    uint64_t version; /* odd while it is written */
    uint64_t number;  /* from 1, in order of submission */
    uint64_t bytes;
    uint64_t batch; /* the group's, from 1, equal on all its ranks; of a cut tensor the first */
    double submitted, agreed, started, ended;
    uint16_t fused; /* tensors in that batch */
    int16_t group;  /* a number that its ranks share; 0: all ranks */
    uint8_t phase, kind, dtype;
    uint8_t waited;         /* 1: the caller did nothing else meanwhile */
    char name[FLIGHT_NAME]; /* the end of a longer one */
};

enum { FLIGHT_WORDS = sizeof(struct flight_op) / sizeof(uint64_t) };

/* Which tensor marks the steps, and which may take its place: the hashes of their names. */
struct flight_marks {
    _Atomic uint64_t mark, next;
    _Atomic uint64_t next_at, came, life; /* of the second one: its operation; how often it came */
};

/* The memory that others read. */
struct flight_memory {
    char layout[2048]; /* "hvdlite flight 1;rank i4@2056:4;...;op.name S@72:56;...;" */
    int64_t pid;
    int32_t rank, size, local_rank;
    int32_t stacks; /* signal by which the process appends its stacks to this file; 0: none */
    char host[FLIGHT_LABEL], job[FLIGHT_LABEL], transport[8];
    double began;                     /* by clock_now */
    double clock_offset, clock_error; /* rank 0's clock is ahead of this one by so much, +- */
    struct stats stats;
    _Atomic uint64_t ops;      /* submitted so far */
    _Atomic uint64_t steps;    /* how often a tensor of each step was submitted again */
    struct flight_marks marks; /* which tensor that is */
    _Atomic uint64_t troubles; /* texts so far */
    char trouble[FLIGHT_TEXT]; /* the last one: a stall, or a failure */
    int32_t failed;            /* 1: the job has failed, and the text says why */
    _Atomic uint64_t ring[FLIGHT_OPS][FLIGHT_WORDS]; /* of struct flight_op */
};

struct flight {
    struct flight_memory *memory;
    int file;
    struct mutex mutex; /* guards what follows, and the trouble's text */
    int bell;           /* a file; -1: none */
    char word[32];      /* written to it with each trouble */
};

/* Writes the memory's layout. */
void flight_layout(char *text, size_t size);

/* The recorder of this process, as yet of rank 0 of 1. */
int flight_open(struct flight **out, hvd_error *err);
void flight_close(struct flight *f); /* NULL does nothing, here and below */

void flight_place(struct flight *f, int rank, int size, int local_rank);
void flight_describe(struct flight *f, const char *job, const char *transport, int stacks);
void flight_set_clock(struct flight *f, double offset, double error);

/* Notes a submitted tensor of the group; returns the operation's number, 0 without a recorder.
 * `again`: the hash of its name, if it was submitted before; else 0. */
uint64_t flight_add(struct flight *f, const struct request *r, double submitted, int group,
                    uint64_t again);
/* The same of one that is done, as a batch of its own. */
void flight_add_done(struct flight *f, const struct request *r, double submitted, int group,
                     uint64_t again, uint64_t batch, double now);
/* Notes what this rank did alone, as "update". */
void flight_note(struct flight *f, const char *what, double begin, double end);
/* Notes that the operation, unless others have taken its place, came to the next phase. */
void flight_agreed(struct flight *f, uint64_t number, uint64_t batch, size_t fused, double now);
void flight_started(struct flight *f, uint64_t number, double now);
void flight_ended(struct flight *f, uint64_t number, bool failed, double now);

/* Notes a stall, or the failure that ends the job, and rings the bell. */
void flight_trouble(struct flight *f, const char *text, bool failed);
/* Writes to the bell whom a failure on this rank is due to, if others: "?", 1 for a stall, else 0;
 * of how many ranks; the first of them. */
void flight_blame(struct flight *f, const hvd_error *error);
/* From now on `word` is written to the file with each trouble. -1: none. The caller closes it. */
void flight_set_bell(struct flight *f, int file, const char *word);

/* One attempt to read the operation in that place of the ring; false: it is being written. */
bool flight_read(const struct flight_memory *memory, size_t place, struct flight_op *out);

#endif
