/* Error values: fields for the program, a text with its chain of causes for the reader.
 *
 * The caller owns the hvd_error; a function that fails fills it and returns the code. Each caller
 * on the way up may add what it was doing ("..., while running a ring of 4096 bytes, while
 * allreduce 'conv0_weight'"). Any thread; nothing is shared. */
#ifndef HVDLITE_BASE_ERROR_H
#define HVDLITE_BASE_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cdef begin */
typedef enum hvd_code {
    HVD_OK = 0,
    HVD_INVALID,         /* a wrong argument */
    HVD_UNSUPPORTED,     /* a dtype, storage type or build that hvdlite does not handle */
    HVD_NOT_INITIALIZED, /* a call before init() or after shutdown() */
    HVD_DUPLICATE,       /* this rank has already submitted a tensor of that name */
    HVD_MISMATCH,        /* the ranks disagree about a tensor */
    HVD_RANK_LEFT,       /* a rank that the tensor needs has left */
    HVD_STALLED,         /* some ranks did not submit the tensor in time */
    HVD_FAILED,          /* an operator failed on a rank, which so has no data for the tensor */
    HVD_TRANSPORT,       /* MPI, a connection or another rank's engine failed */
    HVD_RANK_DEAD,       /* a rank's process has died or is silent: the job can't go on */
    HVD_NO_MEMORY,
    HVD_INTERNAL /* a defect of hvdlite */
} hvd_code;

#define HVD_MAX_NAME 256 /* bytes of a tensor's name, with the final zero */
#define HVD_MAX_HOST 64  /* bytes of a host's name, with the final zero */
#define HVD_MAX_BLAMED 8
typedef struct hvd_error {
    int code;                   /* an hvd_code */
    int nblamed;                /* number of ranks that caused the error; 0: none, or not known */
    int blamed[HVD_MAX_BLAMED]; /* the first of these ranks, numbered as in the job */
    int64_t pid;                /* process id of blamed[0]; 0: not known */
    char host[HVD_MAX_HOST];    /* host of blamed[0]; "": not known */
    char tensor[HVD_MAX_NAME];  /* name; "": the error is about no tensor, or about all */
    char text[1024];            /* UTF-8; a longer text is cut */
} hvd_error;
/* cdef end */

/* Sets code and text, clears the other fields; returns the code. `err` may be NULL. */
int error_set(hvd_error *err, hvd_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Adds a rank of the job as a cause of a set error; returns the error's code. */
int error_blame(hvd_error *err, int rank);

/* Names the tensor of a set error; returns the error's code. */
int error_of(hvd_error *err, const char *tensor);

/* The number of ranks that `blamed` lists. */
static inline int error_nlisted(const hvd_error *err) {
    return err->nblamed < HVD_MAX_BLAMED ? err->nblamed : HVD_MAX_BLAMED;
}

/* Appends the text of the error `more` to `all`; copies `more` if `all` has no error yet. */
void error_also(hvd_error *all, const hvd_error *more);

/* Appends ", while ..." to the text of a set error; returns the error's code. */
int error_while(hvd_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns the code from the enclosing function when `call` fails. The only control-flow macro. */
#define HVD_TRY(call)                                                                              \
    do {                                                                                           \
        int hvd_try_code_ = (call);                                                                \
        if (hvd_try_code_ != HVD_OK) return hvd_try_code_;                                         \
    } while (0)

#endif
