/* What the C files of the module _prepared share.
 *
 * The interpreter owns the state. Every caller holds the interpreter's lock; in a Python without
 * this lock, only setup() writes the state, while a module is imported. */
#ifndef HVDLITE_CORE_PREPARED_H
#define HVDLITE_CORE_PREPARED_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#include "hvd.h"

/* Members of struct state. BY_NAME: the arguments of setup(); in the row `Prepared` they name the
 * attributes of the class Prepared. ATTRIBUTES: attributes of arrays, tensors and lists. */
/* clang-format off */
#define BY_NAME(A) \
    A(hvd_run) A(briefly) A(kept) A(array_type) A(empty) A(unprepared) A(moved) /* prepared.py */ \
    A(tensor_type) A(strided) A(empty_like)                                     /* PyTorch */ \
    A(set) A(group) A(idle) A(in_place) A(enter_group) A(new_handle) A(end)     /* Prepared */
#define ATTRIBUTES(A) \
    A(dtype, "dtype") A(shape, "shape") A(pop, "pop") A(layout, "layout") A(is_cpu, "is_cpu") \
    A(is_contiguous, "is_contiguous") A(is_neg, "is_neg") A(data_ptr, "data_ptr")
/* clang-format on */

/* The module's state. The PyObjects follow `run`; the state owns a reference to each. */
struct state {
    __typeof__(hvd_run) *run; /* hvd_run of the C library that this process has loaded */
#define MEMBER(MEMBER, ...) PyObject *MEMBER;
    BY_NAME(MEMBER) ATTRIBUTES(MEMBER)
};

static inline struct state *state_of(PyObject *module) { return PyModule_GetState(module); }

PyObject *prepared_wrong_number(void);
PyObject *prepared_call0(PyObject *object, PyObject *method);

/* Returns the Prepared for the key, or NULL. */
PyObject *prepared_find(const struct state *s, PyObject *key);

/* Runs the collective of a Prepared. Returns None; or the handle, if ranks may have sent different
 * numbers of rows. `owner` keeps the memory alive. */
PyObject *prepared_run_on(const struct state *s, PyObject *prepared, const void *in, void *out,
                          PyObject *owner);

/* again_tensor(tensor, call, in_place): see hvdlite/torch/exchange.py. */
PyObject *prepared_again_tensor(PyObject *module, PyObject *const *args, Py_ssize_t nargs);

#endif
