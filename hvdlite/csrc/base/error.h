/* Error values. The program reads their fields; the user reads their text, a chain of causes.
 *
 * The caller owns the hvd_error; a function that fails fills it and returns the code. Each caller
 * up the stack may append its own task to the text ("..., while moving part 2 of 9, while moving
 * 4096 bytes (ring)"). Any thread may call these functions. */
#ifndef HVDLITE_BASE_ERROR_H
#define HVDLITE_BASE_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cdef begin */
typedef enum hvd_code {
    HVD_OK = 0,
    HVD_INVALID,         /* a wrong argument */
    HVD_UNSUPPORTED,     /* hvdlite does not handle this dtype, storage type or build */
    HVD_NOT_INITIALIZED, /* a call before init() or after shutdown() */
    HVD_DUPLICATE,       /* a tensor with this name is already under way on this rank */
    HVD_MISMATCH,        /* the ranks disagree about a tensor */
    HVD_RANK_LEFT,       /* a rank that the tensor needs has left */
    HVD_STALLED,         /* some ranks did not submit the tensor in time */
    /* an operator failed on one rank, so that rank has no data for the tensor */
    HVD_FAILED,
    HVD_TRANSPORT, /* MPI, a connection or another rank's engine failed */
    HVD_RANK_DEAD, /* a rank's process has died or does not answer: the job can't go on */
    HVD_NO_MEMORY,
    HVD_INTERNAL /* a bug in hvdlite */
} hvd_code;

#define HVD_MAX_NAME 256 /* bytes of a tensor's name, including the final zero */
#define HVD_MAX_HOST 64  /* bytes of a host's name, including the final zero */
#define HVD_MAX_BLAMED 8 /* the most ranks that an error lists; chosen, not measured */
typedef struct hvd_error {
    int code; /* an hvd_code */
    /* number of ranks that caused the error; 0: no rank did, or unknown */
    int nblamed;
    int blamed[HVD_MAX_BLAMED]; /* the first of these ranks, as ranks of the job */
    int fate;                   /* HVD_RANK_DEAD: an enum fate (shm/life.h) */
    int64_t pid;                /* process id of blamed[0]; 0: unknown */
    char host[HVD_MAX_HOST];    /* host of blamed[0]; "": unknown */
    /* tensor's name; "": the error concerns no tensor, or all tensors */
    char tensor[HVD_MAX_NAME];
    char text[1024]; /* UTF-8; a longer text is truncated */
} hvd_error;

/* The line that flight_blame (shm/flight.h) writes begins with HVD_BLAME and says how the blamed
 * ranks caused the failure. core/agent_protocol.py reads the values here. */
enum {
    HVD_BLAME = '?',
    HVD_BLAME_STALLED = 1, /* the ranks did not submit a tensor */
    HVD_BLAME_SILENT = 2,  /* the ranks are dead or silent */
};
/* cdef end */

/* Sets code and text, clears the other fields; returns the code. `err` may be NULL. */
int error_set(hvd_error *err, hvd_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Adds a rank of the job to the ranks that caused an error. The error must be set already; returns
 * the error's code. */
int error_blame(hvd_error *err, int rank);

/* Stores the tensor's name in an error that is set already; returns the error's code. */
int error_of(hvd_error *err, const char *tensor);

/* Returns the number of entries of `blamed` that are used. */
static inline int error_nlisted(const hvd_error *err) {
    return err->nblamed < HVD_MAX_BLAMED ? err->nblamed : HVD_MAX_BLAMED;
}

/* Appends the text of `more` to the text of `all`; if `all` has no error yet, copies `more`. */
void error_also(hvd_error *all, const hvd_error *more);

/* Appends ", while ..." to the text of an error that is set already; returns the error's code. */
int error_while(hvd_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* If `call` fails, returns its code from the enclosing function. No other macro hides a return. */
#define HVD_TRY(call)                                                                              \
    do {                                                                                           \
        int hvd_try_code_ = (call);                                                                \
        if (hvd_try_code_ != HVD_OK) return hvd_try_code_;                                         \
    } while (0)

#endif
