/* hvdlite.core._prepared: runs collectives that come again, for prepared.py. In Python this takes
 * longer than a small collective itself. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

/* Of the C library that this process has loaded, see hvd.h. */
static int (*hvd_run)(void *plan, const void *in, void *out, double seconds);
static PyObject *kept, *array_type, *empty, *unprepared, *moved; /* see setup */
static PyObject *s_dtype, *s_shape, *s_set, *s_group, *s_idle, *s_pop, *s_in_place;
static PyObject *s_enter_group, *s_new, *s_end;
static PyObject *tensor_type, *strided, *empty_like; /* see setup_tensors */
static PyObject *s_layout, *s_is_cpu, *s_is_contiguous, *s_is_neg, *s_data_ptr;

/* setup(address of hvd_run, kept, ndarray, empty, unprepared, moved). */
static PyObject *setup(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long address;
    if (!PyArg_ParseTuple(args, "KOOOOO", &address, &kept, &array_type, &empty, &unprepared,
                          &moved))
        return NULL;
    PyObject **lasting[] = {&kept, &array_type, &empty, &unprepared, &moved};
    for (size_t i = 0; i < sizeof lasting / sizeof *lasting; i++) Py_INCREF(*lasting[i]);
    hvd_run = (int (*)(void *, const void *, void *, double))(uintptr_t)address;
    Py_RETURN_NONE;
}

/* setup_tensors(torch.Tensor, torch.strided, torch.empty_like). */
static PyObject *setup_tensors(PyObject *module, PyObject *args) {
    (void)module;
    if (!PyArg_ParseTuple(args, "OOO", &tensor_type, &strided, &empty_like)) return NULL;
    Py_INCREF(tensor_type);
    Py_INCREF(strided);
    Py_INCREF(empty_like);
    Py_RETURN_NONE;
}

static PyObject *call0(PyObject *object, PyObject *method) {
    return PyObject_CallMethodObjArgs(object, method, NULL);
}

/* Whether a new job has given the process set another number in C. -1: an exception is set. */
static int is_of_an_old_job(PyObject *prepared) {
    PyObject *set = PyObject_GetAttr(prepared, s_set), *ours = PyObject_GetAttr(prepared, s_group);
    PyObject *group = set ? PyObject_GetAttr(set, s_group) : NULL;
    int old = group && ours ? PyObject_RichCompareBool(ours, group, Py_NE) : -1;
    Py_XDECREF(set);
    Py_XDECREF(ours);
    Py_XDECREF(group);
    return old;
}

/* Pops a handle, a pair of its address and what keeps it. A new one where other threads have them
 * all, or did until Ctrl-C. */
static PyObject *take_handle(PyObject *prepared, PyObject *idle) {
    PyObject *handle = call0(idle, s_pop);
    if (handle || !PyErr_ExceptionMatches(PyExc_IndexError)) return handle;
    PyErr_Clear();
    return call0(prepared, s_new);
}

static PyObject *run_handle(PyObject *prepared, PyObject *idle, const void *in, void *out,
                            PyObject *owner) {
    PyObject *handle = take_handle(prepared, idle), *result = Py_None;
    if (!handle) return NULL;
    void *plan = PyLong_AsVoidPtr(PyTuple_GetItem(handle, 0));
    PyThreadState *state = PyEval_SaveThread();
    int done = hvd_run(plan, in, out, 0.1);
    PyEval_RestoreThread(state);
    if (done)
        Py_INCREF(result);
    else
        result = PyObject_CallMethodObjArgs(prepared, s_end, handle, owner, NULL);
    if (result == Py_None && PyList_Append(idle, handle)) {
        Py_DECREF(result);
        result = NULL;
    }
    Py_DECREF(handle);
    return result;
}

/* Returns None; or, if other ranks may have brought other numbers of rows, the handle. */
static PyObject *run_on(PyObject *prepared, const void *in, void *out, PyObject *owner) {
    int old = is_of_an_old_job(prepared);
    if (old < 0) return NULL;
    if (old) {
        PyObject *entered = call0(prepared, s_enter_group);
        if (!entered) return NULL;
        Py_DECREF(entered);
    }
    PyObject *idle = PyObject_GetAttr(prepared, s_idle);
    PyObject *result = idle ? run_handle(prepared, idle, in, out, owner) : NULL;
    Py_XDECREF(idle);
    return result;
}

static PyObject *wrong_number(void) {
    PyErr_SetString(PyExc_TypeError, "wrong number of arguments");
    return NULL;
}

/* run(prepared, address of the input, of the output, owner). */
static PyObject *run(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    if (nargs != 4) return wrong_number();
    void *in = PyLong_AsVoidPtr(args[1]), *out = PyLong_AsVoidPtr(args[2]);
    return PyErr_Occurred() ? NULL : run_on(args[0], in, out, args[3]);
}

/* Whether it is a NumPy array, dense and aligned. Its memory is then held: PyBuffer_Release. */
static bool hold(PyObject *array, int flags, Py_buffer *memory) {
    if ((PyObject *)Py_TYPE(array) != array_type) return false;
    if (PyObject_GetBuffer(array, memory, PyBUF_C_CONTIGUOUS | flags)) { /* no such dtype, too */
        PyErr_Clear();
        return false;
    }
    if (memory->itemsize && (uintptr_t)memory->buf % (size_t)memory->itemsize == 0) return true;
    PyBuffer_Release(memory);
    return false;
}

static bool same(PyObject *array, PyObject *name, PyObject *expected) {
    PyObject *value = PyObject_GetAttr(array, name);
    bool is = value && PyObject_RichCompareBool(value, expected, Py_EQ) == 1;
    Py_XDECREF(value);
    return is;
}

static bool overlap(const Py_buffer *a, const Py_buffer *b) {
    const char *start = a->buf, *other = b->buf;
    return start < other + b->len && other < start + a->len;
}

/* A call that comes again, and its arrays. */
struct call {
    PyObject *const *args; /* of again */
    PyObject *array, *how, *out, *dtype;
    Py_buffer source;
};

/* Runs it into `result`, which must fit. NULL without an exception: it does not. */
static PyObject *run_into(const struct call *c, PyObject *known, PyObject *result,
                          Py_buffer *there) {
    PyObject *owner = PyTuple_Pack(2, c->array, result);
    PyObject *handle = owner ? run_on(known, c->source.buf, there->buf, owner) : NULL;
    Py_XDECREF(owner);
    if (!handle) return NULL;
    if (handle == Py_None) {
        Py_DECREF(handle);
        Py_INCREF(result);
        return result;
    }
    PyObject *rows =
        PyObject_CallFunctionObjArgs(moved, handle, c->array, c->how, result, c->out, NULL);
    Py_DECREF(handle);
    return rows;
}

static PyObject *run_in_place(struct call *c, PyObject *known) {
    PyObject *in_place = PyObject_GetAttr(known, s_in_place);
    bool may = in_place == Py_True;
    Py_XDECREF(in_place);
    return may ? run_into(c, known, c->array, &c->source) : NULL;
}

static PyObject *run_to(struct call *c, PyObject *known, PyObject *shape) {
    PyObject *result = c->out, *ran = NULL;
    Py_buffer there;
    bool made = result == Py_None;
    if (made) {
        result = PyObject_CallFunctionObjArgs(empty, shape, c->dtype, NULL);
        if (!result) return NULL;
    }
    if (hold(result, PyBUF_WRITABLE, &there)) {
        bool fits = same(result, s_shape, shape) && same(result, s_dtype, c->dtype);
        if (fits && !overlap(&c->source, &there)) ran = run_into(c, known, result, &there);
        PyBuffer_Release(&there);
    }
    if (made) Py_DECREF(result);
    return ran;
}

static PyObject *run_known(struct call *c, PyObject *known) {
    if (c->out == c->array) return run_in_place(c, known);
    PyObject *shape = PyObject_GetAttr(known, s_shape);
    PyObject *result = shape ? run_to(c, known, shape) : NULL;
    Py_XDECREF(shape);
    return result;
}

/* What is prepared for the key, or NULL. */
static PyObject *find(PyObject *key) {
    PyObject *known = PyObject_GetItem(kept, key);
    if (!known) PyErr_Clear(); /* there is none, or the call has a wrong argument */
    if (known != Py_None) return known;
    Py_DECREF(known);
    return NULL;
}

/* The call's key, or NULL with an exception. */
static PyObject *key_of(struct call *c) {
    PyObject *shape = PyObject_GetAttr(c->array, s_shape);
    PyObject *key = shape ? PyTuple_Pack(4, c->args[0], c->how, c->dtype, shape) : NULL;
    Py_XDECREF(shape);
    return key;
}

static PyObject *run_anew(const struct call *c, PyObject *key) {
    return PyObject_CallFunctionObjArgs(unprepared, c->args[0], c->args[1], c->array, c->how,
                                        c->out, key, NULL);
}

static PyObject *run_dense(struct call *c) {
    PyObject *key = key_of(c), *result = NULL;
    if (!key) return NULL;
    PyObject *known = find(key);
    if (known) result = run_known(c, known);
    Py_XDECREF(known);
    if (!result && !PyErr_Occurred()) result = run_anew(c, key);
    Py_DECREF(key);
    return result;
}

/* again(verb, begin, array, how, out): see prepared.py. */
static PyObject *again(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    if (nargs != 5) return wrong_number();
    struct call c = {.args = args, .array = args[2], .how = args[3], .out = args[4]};
    if (!hold(c.array, c.out == c.array ? PyBUF_WRITABLE : 0, &c.source))
        return run_anew(&c, Py_None);
    c.dtype = PyObject_GetAttr(c.array, s_dtype);
    PyObject *result = c.dtype ? run_dense(&c) : NULL;
    Py_XDECREF(c.dtype);
    PyBuffer_Release(&c.source);
    return result;
}

static bool is(PyObject *value, PyObject *expected) {
    Py_XDECREF(value);
    return value == expected;
}

/* Whether a tensor's memory may be taken as it lies. */
static bool is_plain(PyObject *tensor) {
    return (PyObject *)Py_TYPE(tensor) == tensor_type &&
           is(PyObject_GetAttr(tensor, s_layout), strided) &&
           is(PyObject_GetAttr(tensor, s_is_cpu), Py_True) &&
           is(call0(tensor, s_is_contiguous), Py_True) && is(call0(tensor, s_is_neg), Py_False);
}

/* What is prepared for an allreduce of this tensor, or NULL. */
static PyObject *find_of_tensor(PyObject *tensor, PyObject *call) {
    PyObject *dtype = PyObject_GetAttr(tensor, s_dtype), *shape = PyObject_GetAttr(tensor, s_shape);
    PyObject *key = dtype && shape ? PyTuple_Pack(3, call, dtype, shape) : NULL;
    PyObject *known = key ? find(key) : NULL;
    if (!shape) PyErr_Clear(); /* of a nested tensor, which is refused by its name later */
    Py_XDECREF(dtype);
    Py_XDECREF(shape);
    Py_XDECREF(key);
    return known;
}

static void *memory_of(PyObject *tensor) {
    PyObject *address = call0(tensor, s_data_ptr);
    void *memory = address ? PyLong_AsVoidPtr(address) : NULL;
    Py_XDECREF(address);
    return memory;
}

static PyObject *run_tensor(PyObject *known, PyObject *tensor, PyObject *result) {
    void *in = memory_of(tensor), *out = tensor == result ? in : memory_of(result);
    PyObject *owner = PyErr_Occurred() ? NULL : PyTuple_Pack(2, tensor, result);
    PyObject *ran = owner ? run_on(known, in, out, owner) : NULL;
    Py_XDECREF(owner);
    if (!ran) return NULL;
    Py_DECREF(ran);
    Py_INCREF(result);
    return result;
}

/* again_tensor(tensor, call, in_place): see exchange.py of PyTorch. */
static PyObject *again_tensor(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    if (nargs != 3) return wrong_number();
    PyObject *tensor = args[0], *known = is_plain(tensor) ? find_of_tensor(tensor, args[1]) : NULL;
    if (PyErr_Occurred()) return NULL;
    if (!known) Py_RETURN_NONE;
    PyObject *result = args[2] == Py_True ? tensor : NULL, *done = NULL;
    if (result)
        Py_INCREF(result);
    else
        result = PyObject_CallFunctionObjArgs(empty_like, tensor, NULL);
    if (result) done = run_tensor(known, tensor, result);
    Py_XDECREF(result);
    Py_DECREF(known);
    return done;
}

static PyMethodDef methods[] = {
    {"setup_tensors", setup_tensors, METH_VARARGS, NULL},
    {"again_tensor", (PyCFunction)(void (*)(void))again_tensor, METH_FASTCALL, NULL},
    {"setup", setup, METH_VARARGS, NULL},
    {"run", (PyCFunction)(void (*)(void))run, METH_FASTCALL, NULL},
    {"again", (PyCFunction)(void (*)(void))again, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "_prepared", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__prepared(void) {
    struct {
        PyObject **string;
        const char *text;
    } names[] = {
        {&s_dtype, "dtype"},       {&s_shape, "shape"},
        {&s_set, "_set"},          {&s_group, "_group"},
        {&s_idle, "_idle"},        {&s_pop, "pop"},
        {&s_in_place, "in_place"}, {&s_enter_group, "_enter_group"},
        {&s_new, "_new"},          {&s_end, "_end"},
        {&s_layout, "layout"},     {&s_is_contiguous, "is_contiguous"},
        {&s_is_cpu, "is_cpu"},     {&s_data_ptr, "data_ptr"},
        {&s_is_neg, "is_neg"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*names[i].string = PyUnicode_InternFromString(names[i].text))) return NULL;
    PyObject *module = PyModule_Create(&module_def);
#ifdef Py_GIL_DISABLED
    if (module) PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    return module;
}
