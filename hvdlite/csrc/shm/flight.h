/* The flight recorder: a record of a rank's last operations, in memory that outlives the rank.
 *
 * The memory contains a ring of the last operations, this rank's counters, and the last stall or
 * failure. Other processes of this user read it while the job runs; a process that has the file
 * open can read it even after the rank's SIGKILL. The file has no name, so no file is left behind.
 * A text at the start of the file lists the fields and their offsets. Any thread writes. A reader
 * skips an operation if its version is odd or changes during the read. */
#ifndef HVDLITE_SHM_FLIGHT_H
#define HVDLITE_SHM_FLIGHT_H

#include "base/os.h"
#include "base/stats.h"
#include "negotiation/request.h"

#define FLIGHT_FORMAT "hvdlite flight 1"

/* With names of 56 bytes an operation has 128 bytes, two cache lines, so 1000 of them have 128 KB.
 * Chosen, not measured: a report has only the last 1000 operations. */
enum { FLIGHT_OPS = 1000, FLIGHT_NAME = 56, FLIGHT_LABEL = 64, FLIGHT_TEXT = 1024 };

/* How far an operation has progressed: one row for each phase, with the name that readers see.
 * WAITS: some ranks have not submitted it. AGREED: all ranks have submitted it. MOVES: its data
 * moves. DONE, FAILED: it has ended. */
#define FLIGHT_PHASES(ROW)                                                                         \
    ROW(NONE, "none")                                                                              \
    ROW(WAITS, "waits")                                                                            \
    ROW(AGREED, "agreed")                                                                          \
    ROW(MOVES, "moves")                                                                            \
    ROW(DONE, "done")                                                                              \
    ROW(FAILED, "failed")
#define FLIGHT_PHASE(PHASE, NAME) FLIGHT_##PHASE,
enum flight_phase { FLIGHT_PHASES(FLIGHT_PHASE) };

/* The kind of an operation that this rank does alone; all other kinds are kinds of tensors. */
enum { FLIGHT_ALONE = HVD_KINDS };

/* One tensor. Times are those of clock_now; 0: has not happened yet. */
struct flight_op {
    uint64_t version; /* odd while a thread writes the operation */
    uint64_t number;  /* number of the tensor in the order of submission, from 1 */
    uint64_t bytes;
    /* number of the tensor's first batch (a cut tensor has several); the group counts from 1 */
    uint64_t batch;
    double submitted, agreed, started, ended;
    uint16_t fused; /* number of tensors in the batch */
    int16_t group;  /* number of the group, equal on the group's ranks; 0: all ranks */
    uint8_t phase, kind, dtype;
    uint8_t waited;         /* 1: the caller only waited for the operation and did nothing else */
    char name[FLIGHT_NAME]; /* the name, or its last characters if it is longer */
};

enum { FLIGHT_WORDS = sizeof(struct flight_op) / sizeof(uint64_t) };

/* Hashes of the names of two tensors: the mark, which each training step submits once, and the
 * candidate (`next`), which may replace the mark. See count_step in flight.c. */
struct flight_marks {
    _Atomic uint64_t mark, next;
    /* The candidate's first operation has the number next_at; it was submitted `submitted` times
     * after that. After `life` operations of all tensors, another tensor may replace it. */
    _Atomic uint64_t next_at, submitted, life;
};

/* The memory that other processes map and read. */
struct flight_memory {
    char layout[2048]; /* FLIGHT_FORMAT, ";...;kind.0 allreduce;...;rank i4@2056:4;...;" */
    int64_t pid;
    int32_t rank, size, local_rank;
    int32_t stacks; /* the signal that appends the process's stacks to this file; 0: none */
    char host[HVD_MAX_HOST], job[FLIGHT_LABEL], transport[8];
    double began; /* time of the start, by clock_now */
    /* seconds by which rank 0's clock is ahead of this rank's clock, and the largest possible
     * error */
    double clock_offset, clock_error;
    struct stats stats;
    _Atomic uint64_t ops;      /* number of operations submitted so far */
    _Atomic uint64_t steps;    /* number of training steps so far, as count_step counts them */
    struct flight_marks marks; /* the tensors by which steps are counted */
    /* number of texts written to `trouble` so far */
    _Atomic uint64_t troubles;
    char trouble[FLIGHT_TEXT]; /* the last stall or failure */
    /* 1: the job has failed, and `trouble` has the reason */
    int32_t failed;
    _Atomic uint64_t ring[FLIGHT_OPS][FLIGHT_WORDS]; /* each slot holds a struct flight_op */
};

struct flight {
    struct flight_memory *memory;
    int file;
    struct mutex mutex; /* guards the fields below and the text of `trouble` */
    int bell;           /* file descriptor; -1: none */
    char word[32];      /* each stall or failure writes this word to `bell` */
};

/* Writes the text that describes the memory's fields. */
void flight_layout(char *text, size_t size);

/* Opens this process's recorder. Until flight_set_rank(), the recorder says rank 0 of 1. */
int flight_open(struct flight **out, hvd_error *err);
/* this and the next functions do nothing for a NULL recorder */
void flight_close(struct flight *f);

void flight_set_rank(struct flight *f, int rank, int size, int local_rank);
void flight_describe(struct flight *f, const char *job, const char *transport, int stacks);
void flight_set_clock(struct flight *f, double offset, double error);

/* Records a submitted tensor of the group; returns the operation's number; 0: there is no recorder.
 * `again`: the hash of the tensor's name if the name was submitted before, else 0. */
uint64_t flight_add(struct flight *f, const struct request *r, double submitted, int group,
                    uint64_t again);
/* Records a tensor that has already finished, as a separate batch. */
void flight_add_done(struct flight *f, const struct request *r, double submitted, int group,
                     uint64_t again, uint64_t batch, double now);
/* Records work that involves no other rank, such as "update". */
void flight_note(struct flight *f, const char *what, double begin, double end);
/* Record the operation's next phase, unless a newer operation has taken its place in the ring. */
void flight_agreed(struct flight *f, uint64_t number, uint64_t batch, size_t fused, double now);
void flight_started(struct flight *f, uint64_t number, double now);
void flight_ended(struct flight *f, uint64_t number, bool failed, double now);

/* cdef begin */
#define HVD_FAST_BATCHES 0x4000000000000000 /* the fast path's first batch number */
/* cdef end */

/* Records a stall or the failure that ends the job, and writes to the bell (flight_set_bell). */
void flight_trouble(struct flight *f, const char *text, bool failed);
/* If other ranks caused this rank's failure, writes to the file of flight_set_bell: HVD_BLAME; the
 * cause (HVD_BLAME_STALLED, HVD_BLAME_SILENT or 0); how many ranks caused it; the first of them. */
void flight_blame(struct flight *f, const hvd_error *error);
/* Sets the bell, a file of the caller to which each stall or failure writes `word`; -1: no file. */
void flight_set_bell(struct flight *f, int file, const char *word);

/* Tries once to read the operation at this index of the ring. Returns false if a thread is writing
 * the operation. */
bool flight_read(const struct flight_memory *memory, size_t index, struct flight_op *out);

#endif
