/* hvdlite.core._prepared: runs repeated collectives for prepared.py. In Python these steps would
 * take longer than a small collective itself. */

#include "prepared.h"

PyObject *prepared_wrong_number(void) {
    return PyErr_SetString(PyExc_TypeError, "wrong number of arguments"), NULL;
}

static bool store_object(PyObject **place, PyObject *object) {
    if (!object) return false;
    Py_INCREF(object);
    Py_XDECREF(*place);
    return (*place = object);
}

/* setup(names): stores the values of a dict whose keys are names of BY_NAME. */
static PyObject *setup(PyObject *module, PyObject *names) {
    struct state *s = state_of(module);
    Py_ssize_t known = 0;
#define PUT(NAME) known += store_object(&s->NAME, PyDict_GetItemString(names, #NAME));
    BY_NAME(PUT)
    if (known != PyDict_Size(names)) return prepared_wrong_number();
    if (s->hvd_run) s->run = (__typeof__(s->run))(uintptr_t)PyLong_AsVoidPtr(s->hvd_run);
    Py_RETURN_NONE;
}

PyObject *prepared_call0(PyObject *object, PyObject *method) {
    return PyObject_CallMethodObjArgs(object, method, NULL);
}

/* Returns 1 if a new job has renumbered the process set; -1: an error, with an exception. */
static int is_of_an_old_job(const struct state *s, PyObject *prepared) {
    PyObject *set = PyObject_GetAttr(prepared, s->set), *group = NULL;
    PyObject *ours = set ? PyObject_GetAttr(prepared, s->group) : NULL;
    if (ours) group = PyObject_GetAttr(set, s->group);
    int old = group ? PyObject_RichCompareBool(ours, group, Py_NE) : -1;
    Py_XDECREF(set);
    Py_XDECREF(ours);
    Py_XDECREF(group);
    return old;
}

/* Returns an idle handle: a pair of its address and the object that owns it. Makes a new handle if
 * none is idle: other threads may use all handles, or Ctrl-C may have interrupted such threads. */
static PyObject *take_handle(const struct state *s, PyObject *prepared, PyObject *idle) {
    PyObject *handle = prepared_call0(idle, s->pop);
    if (handle || !PyErr_ExceptionMatches(PyExc_IndexError)) return handle;
    PyErr_Clear();
    return prepared_call0(prepared, s->new_handle);
}

static PyObject *run_handle(const struct state *s, PyObject *prepared, PyObject *idle,
                            const void *in, void *out, PyObject *owner) {
    PyObject *handle = take_handle(s, prepared, idle), *result = Py_None;
    if (!handle) return NULL;
    void *plan = PyLong_AsVoidPtr(PyTuple_GetItem(handle, 0));
    double seconds = PyFloat_AsDouble(s->briefly);
    PyThreadState *state = PyEval_SaveThread();
    int done = s->run(plan, in, out, seconds);
    PyEval_RestoreThread(state);
    if (done)
        Py_INCREF(result);
    else
        result = PyObject_CallMethodObjArgs(prepared, s->end, handle, owner, NULL);
    if (result == Py_None && PyList_Append(idle, handle)) {
        Py_DECREF(result);
        result = NULL;
    }
    Py_DECREF(handle);
    return result;
}

PyObject *prepared_run_on(const struct state *s, PyObject *prepared, const void *in, void *out,
                          PyObject *owner) {
    int old = is_of_an_old_job(s, prepared);
    if (old < 0) return NULL;
    if (old) {
        PyObject *entered = prepared_call0(prepared, s->enter_group);
        if (!entered) return NULL;
        Py_DECREF(entered);
    }
    PyObject *idle = PyObject_GetAttr(prepared, s->idle);
    PyObject *result = idle ? run_handle(s, prepared, idle, in, out, owner) : NULL;
    Py_XDECREF(idle);
    return result;
}

/* run(prepared, address of the input, address of the output, owner): see prepared.py. */
static PyObject *run(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 4) return prepared_wrong_number();
    void *in = PyLong_AsVoidPtr(args[1]), *out = PyLong_AsVoidPtr(args[2]);
    return PyErr_Occurred() ? NULL : prepared_run_on(state_of(module), args[0], in, out, args[3]);
}

/* Gets the memory of a dense, aligned NumPy array; the caller releases it with PyBuffer_Release.
 * Returns false if the object is not such an array. */
static bool borrow_buffer(const struct state *s, PyObject *array, int flags, Py_buffer *memory) {
    if ((PyObject *)Py_TYPE(array) != s->array_type) return false;
    /* fails for an array that is not dense, and for a dtype that no buffer can have */
    if (PyObject_GetBuffer(array, memory, PyBUF_C_CONTIGUOUS | flags)) {
        PyErr_Clear();
        return false;
    }
    if (memory->itemsize && (uintptr_t)memory->buf % (size_t)memory->itemsize == 0) return true;
    PyBuffer_Release(memory);
    return false;
}

static bool attribute_is(PyObject *array, PyObject *name, PyObject *expected) {
    PyObject *value = PyObject_GetAttr(array, name);
    bool is = value && PyObject_RichCompareBool(value, expected, Py_EQ) == 1;
    Py_XDECREF(value);
    return is;
}

static bool overlap(const Py_buffer *a, const Py_buffer *b) {
    const char *start = a->buf, *other = b->buf;
    return start < other + b->len && other < start + a->len;
}

/* A call of again(), which repeats an earlier call. */
struct call {
    const struct state *s;
    PyObject *const *args; /* the arguments of again(), see prepared.py */
    PyObject *array, *options, *out, *dtype;
    Py_buffer source;
};

/* Runs the call into `result`; returns `result`, or a new array if the number of rows differs. */
static PyObject *run_into(const struct call *c, PyObject *known, PyObject *result,
                          Py_buffer *target) {
    PyObject *owner = PyTuple_Pack(2, c->array, result);
    PyObject *handle =
        owner ? prepared_run_on(c->s, known, c->source.buf, target->buf, owner) : NULL;
    Py_XDECREF(owner);
    if (!handle) return NULL;
    if (handle == Py_None) {
        Py_DECREF(handle);
        Py_INCREF(result);
        return result;
    }
    PyObject *rows = PyObject_CallFunctionObjArgs(c->s->moved, handle, c->array, c->options, result,
                                                  c->out, NULL);
    Py_DECREF(handle);
    return rows;
}

static PyObject *run_to(struct call *c, PyObject *known, PyObject *shape) {
    PyObject *result = c->out, *ran = NULL;
    Py_buffer target;
    bool made = result == Py_None;
    if (made && !(result = PyObject_CallFunctionObjArgs(c->s->empty, shape, c->dtype, NULL)))
        return NULL;
    if (borrow_buffer(c->s, result, PyBUF_WRITABLE, &target)) {
        bool fits =
            attribute_is(result, c->s->shape, shape) && attribute_is(result, c->s->dtype, c->dtype);
        if (fits && !overlap(&c->source, &target)) ran = run_into(c, known, result, &target);
        PyBuffer_Release(&target);
    }
    if (made) Py_DECREF(result);
    return ran;
}

static PyObject *run_known(struct call *c, PyObject *known) {
    bool in_place = c->out == c->array;
    PyObject *fits = PyObject_GetAttr(known, in_place ? c->s->in_place : c->s->shape), *ran = NULL;
    if (fits && !in_place) ran = run_to(c, known, fits);
    if (fits == Py_True && in_place) ran = run_into(c, known, c->array, &c->source);
    Py_XDECREF(fits);
    return ran;
}

PyObject *prepared_find(const struct state *s, PyObject *key) {
    PyObject *known = PyObject_GetItem(s->kept, key);
    if (!known) PyErr_Clear(); /* the key is unknown, or an argument has no hash */
    if (known != Py_None) return known;
    Py_DECREF(known);
    return NULL;
}

/* Returns the call's key, or NULL with an exception. */
static PyObject *key_of(struct call *c) {
    PyObject *shape = PyObject_GetAttr(c->array, c->s->shape);
    PyObject *key = shape ? PyTuple_Pack(4, c->args[0], c->options, c->dtype, shape) : NULL;
    Py_XDECREF(shape);
    return key;
}

static PyObject *run_anew(const struct call *c, PyObject *key) {
    return PyObject_CallFunctionObjArgs(c->s->unprepared, c->args[0], c->args[1], c->array,
                                        c->options, c->out, key, NULL);
}

static PyObject *run_dense(struct call *c) {
    PyObject *key = key_of(c), *result = NULL;
    if (!key) return NULL;
    PyObject *known = prepared_find(c->s, key);
    if (known) result = run_known(c, known);
    Py_XDECREF(known);
    if (!result && !PyErr_Occurred()) result = run_anew(c, key);
    Py_DECREF(key);
    return result;
}

/* again(verb, begin, array, options, out): see prepared.py. */
static PyObject *again(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 5) return prepared_wrong_number();
    struct call c = {
        .s = state_of(module), .args = args, .array = args[2], .options = args[3], .out = args[4]};
    if (!borrow_buffer(c.s, c.array, c.out == c.array ? PyBUF_WRITABLE : 0, &c.source))
        return run_anew(&c, Py_None);
    c.dtype = PyObject_GetAttr(c.array, c.s->dtype);
    PyObject *result = c.dtype ? run_dense(&c) : NULL;
    Py_XDECREF(c.dtype);
    PyBuffer_Release(&c.source);
    return result;
}

/* ---- the module ---- */

static int fill(struct state *s) {
#define FILL(MEMBER, NAME) || !(s->MEMBER = PyUnicode_InternFromString(NAME))
    return false ATTRIBUTES(FILL) ? -1 : 0;
}

enum { OBJECTS = (sizeof(struct state) - offsetof(struct state, hvd_run)) / sizeof(PyObject *) };

static int traverse(PyObject *module, visitproc visit, void *arg) {
    for (size_t i = 0; i < OBJECTS; i++) Py_VISIT((&state_of(module)->hvd_run)[i]);
    return 0;
}

static int clear(PyObject *module) {
    for (size_t i = 0; i < OBJECTS; i++) Py_CLEAR((&state_of(module)->hvd_run)[i]);
    return 0;
}

static void end(void *module) { clear(module); }

#define METHOD_OF(FUNCTION) (PyCFunction)(void (*)(void)) FUNCTION
#define METHOD(NAME, HOW) {#NAME, METHOD_OF(NAME), HOW, NULL}
static PyMethodDef methods[] = {
    METHOD(setup, METH_O),
    METHOD(run, METH_FASTCALL),
    METHOD(again, METH_FASTCALL),
    {"again_tensor", METHOD_OF(prepared_again_tensor), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_prepared",  .m_size = sizeof(struct state),
    .m_methods = methods,  .m_traverse = traverse, .m_clear = clear,
    .m_free = end};

PyMODINIT_FUNC PyInit__prepared(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && fill(state_of(module))) Py_CLEAR(module);
#ifdef Py_GIL_DISABLED
    if (module) PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    return module;
}
