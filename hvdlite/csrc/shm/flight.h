/* The flight recorder: what a rank did last, in memory that outlives the rank.
 *
 * A ring of the last operations, this rank's counts, and the last stall or failure. Other
 * processes of this user read it while the job runs; a process that has the file open reads it
 * even after a SIGKILL. The file has no name, so none is left behind. A text at the start of the
 * file lists the fields and their offsets. Any thread writes; a reader skips an operation whose
 * version is odd, or changes during the read. */
#ifndef HVDLITE_SHM_FLIGHT_H
#define HVDLITE_SHM_FLIGHT_H

#include "base/stats.h"
#include "base/sync.h"
#include "negotiation/request.h"

enum { FLIGHT_OPS = 1000, FLIGHT_NAME = 56, FLIGHT_LABEL = 64, FLIGHT_TEXT = 1024 };

/* How far an operation has come: some ranks have not submitted it; all have; its data moves; it
 * has ended. */
enum flight_phase {
    FLIGHT_NONE,
    FLIGHT_WAITS,
    FLIGHT_AGREED,
    FLIGHT_MOVES,
    FLIGHT_DONE,
    FLIGHT_FAILED
};

/* The kind of an operation of this rank alone; the other kinds are those of tensors. */
enum { FLIGHT_ALONE = HVD_KINDS };

/* One tensor. Times are those of clock_now; 0: not yet. */
struct flight_op {
    uint64_t version; /* odd while a thread writes the operation */
    uint64_t number;  /* counted from 1, in order of submission */
    uint64_t bytes;
    /* number of the batch in its group, from 1; for a tensor in pieces that of its first batch */
    uint64_t batch;
    double submitted, agreed, started, ended;
    uint16_t fused; /* tensors in that batch */
    int16_t group;  /* the group's number, equal on its ranks; 0: all ranks */
    uint8_t phase, kind, dtype;
    uint8_t waited;         /* 1: the caller waited for the operation and did nothing else */
    char name[FLIGHT_NAME]; /* the name, or the end of a longer name */
};

enum { FLIGHT_WORDS = sizeof(struct flight_op) / sizeof(uint64_t) };

/* Hashes of the names of the mark, the tensor that counts steps, and of the candidate that may
 * replace the mark (count_step). */
struct flight_marks {
    _Atomic uint64_t mark, next;
    /* of the candidate: its operation's number, how often it came, its life */
    _Atomic uint64_t next_at, came, life;
};

/* The memory that other processes read. */
struct flight_memory {
    char layout[2048]; /* "hvdlite flight 1;...;kind.0 allreduce;...;rank i4@2056:4;...;" */
    int64_t pid;
    int32_t rank, size, local_rank;
    int32_t stacks; /* a signal on which the process appends its stacks to this file; 0: none */
    char host[HVD_MAX_HOST], job[FLIGHT_LABEL], transport[8];
    double began; /* by clock_now */
    /* seconds by which rank 0's clock is ahead of this rank's, and the largest error of that
     * value */
    double clock_offset, clock_error;
    struct stats stats;
    _Atomic uint64_t ops;      /* submitted so far */
    _Atomic uint64_t steps;    /* how often the mark was submitted again */
    struct flight_marks marks; /* the mark and its candidate */
    /* number of texts written to `trouble` so far */
    _Atomic uint64_t troubles;
    char trouble[FLIGHT_TEXT];                       /* the last stall or failure */
    int32_t failed;                                  /* 1: the job has failed; `trouble` says why */
    _Atomic uint64_t ring[FLIGHT_OPS][FLIGHT_WORDS]; /* each slot holds a struct flight_op */
};

struct flight {
    struct flight_memory *memory;
    int file;
    struct mutex mutex; /* guards the fields below, and the trouble's text */
    int bell;           /* file descriptor; -1: none */
    char word[32];      /* written to the bell with each trouble */
};

/* Writes the memory's layout. */
void flight_layout(char *text, size_t size);

/* Opens the recorder of this process, at first as rank 0 of 1. */
int flight_open(struct flight **out, hvd_error *err);
void flight_close(struct flight *f); /* here and below a NULL recorder does nothing */

void flight_set_rank(struct flight *f, int rank, int size, int local_rank);
void flight_describe(struct flight *f, const char *job, const char *transport, int stacks);
void flight_set_clock(struct flight *f, double offset, double error);

/* Notes a submitted tensor of the group; returns the operation's number, 0 without a recorder.
 * `again`: the hash of its name if the name was submitted before, else 0. */
uint64_t flight_add(struct flight *f, const struct request *r, double submitted, int group,
                    uint64_t again);
/* Notes a tensor that has already finished, as a batch of its own. */
void flight_add_done(struct flight *f, const struct request *r, double submitted, int group,
                     uint64_t again, uint64_t batch, double now);
/* Notes work without other ranks, such as "update". */
void flight_note(struct flight *f, const char *what, double begin, double end);
/* Note the operation's next phase, unless a newer operation has its place. */
void flight_agreed(struct flight *f, uint64_t number, uint64_t batch, size_t fused, double now);
void flight_started(struct flight *f, uint64_t number, double now);
void flight_ended(struct flight *f, uint64_t number, bool failed, double now);

/* Notes a stall, or the failure that ends the job, and rings the bell. */
void flight_trouble(struct flight *f, const char *text, bool failed);
/* If other ranks caused this rank's failure, writes them to the bell: "?", 1 for a stall or 0, the
 * number of ranks, the first of them. */
void flight_blame(struct flight *f, const hvd_error *error);
/* Sets the file to which each trouble writes `word`. -1: none. The caller closes the file. */
void flight_set_bell(struct flight *f, int file, const char *word);

/* Tries once to read the operation at that index of the ring; false: a thread is writing it. */
bool flight_read(const struct flight_memory *memory, size_t index, struct flight_op *out);

#endif
