/* Error values: a code for the program, a text with its chain of causes for the reader.
 *
 * The caller owns the hvd_error; a function that fails fills it and returns the code. Each
 * caller on the way up may add what it was doing ("ring step 3 of 7 failed: ..., while allreduce
 * 'conv0_weight' (float32, (17, 3))"). Any thread; nothing is shared. */
#ifndef HVDLITE_BASE_ERROR_H
#define HVDLITE_BASE_ERROR_H

/* cdef begin */
typedef enum hvd_code {
    HVD_OK = 0,
    HVD_INVALID,         /* an argument that can't be right */
    HVD_UNSUPPORTED,     /* a dtype, storage type or build that hvdlite does not handle */
    HVD_NOT_INITIALIZED, /* a call before init() or after shutdown() */
    HVD_DUPLICATE,       /* this rank has a tensor of that name under way already */
    HVD_MISMATCH,        /* the ranks disagree about a tensor */
    HVD_RANK_LEFT,       /* a rank has left that the tensor needs */
    HVD_STALLED,         /* some ranks did not submit the tensor in time */
    HVD_FAILED,          /* some rank could not compute the tensor */
    HVD_TRANSPORT,       /* MPI failed or a peer went silent: nothing works any more */
    HVD_NO_MEMORY,
    HVD_INTERNAL /* a defect of hvdlite */
} hvd_code;

typedef struct hvd_error {
    int code;        /* an hvd_code */
    char text[1024]; /* UTF-8, cut at the end when too long */
} hvd_error;
/* cdef end */

/* Sets code and text; returns the code. `err` may be NULL. */
int error_set(hvd_error *err, hvd_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Appends ", while ..." to a set error; returns its code. */
int error_while(hvd_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns the code out of the enclosing function when `call` fails. The only control-flow macro. */
#define HVD_TRY(call)                                                                              \
    do {                                                                                           \
        int hvd_try_code_ = (call);                                                                \
        if (hvd_try_code_ != HVD_OK) return hvd_try_code_;                                         \
    } while (0)

#endif
