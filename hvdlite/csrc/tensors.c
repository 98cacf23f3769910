#include "tensors.h"

#include "map.h"

#include <stdlib.h>

struct tensors {
    struct monitor monitor; /* guards everything below, and the links of every tensor */
    struct map names;
    struct tensor *oldest, *newest;
    struct tensor *fresh; /* the oldest that tensors_next has not given out */
    bool closed;
    hvd_error why;
};

struct tensors *tensors_new(void) {
    struct tensors *t = calloc(1, sizeof *t);
    if (t) monitor_init(&t->monitor);
    return t;
}

void tensors_free(struct tensors *t) {
    if (!t) return;
    map_clear(&t->names);
    monitor_destroy(&t->monitor);
    free(t);
}

static void link_newest(struct tensors *t, struct tensor *tensor) {
    tensor->newer = NULL;
    tensor->older = t->newest;
    *(t->newest ? &t->newest->newer : &t->oldest) = tensor;
    t->newest = tensor;
    if (!t->fresh) t->fresh = tensor;
}

static void unlink_tensor(struct tensors *t, struct tensor *tensor) {
    if (t->fresh == tensor) t->fresh = tensor->newer;
    *(tensor->newer ? &tensor->newer->older : &t->newest) = tensor->older;
    *(tensor->older ? &tensor->older->newer : &t->oldest) = tensor->newer;
    map_remove(&t->names, tensor->request.name);
}

static int add_locked(struct tensors *t, const struct tensor *tensor, hvd_error *err) {
    if (t->closed) return error_set(err, (hvd_code)t->why.code, "%s", t->why.text);
    if (map_get(&t->names, tensor->request.name))
        return error_set(err, HVD_DUPLICATE,
                         "tensor '%s' was submitted twice on this rank: wait for the first one, or "
                         "give each its own "
                         "name",
                         tensor->request.name);
    struct tensor *copy = malloc(sizeof *copy);
    if (!copy)
        return error_set(err, HVD_NO_MEMORY, "no memory for tensor '%s'", tensor->request.name);
    *copy = *tensor;
    copy->id = 0;
    copy->rows = NULL;
    int code = map_put(&t->names, copy->request.name, copy, err);
    if (code)
        free(copy);
    else
        link_newest(t, copy);
    return code;
}

int tensors_add(struct tensors *t, const struct tensor *tensor, hvd_error *err) {
    monitor_lock(&t->monitor);
    int code = add_locked(t, tensor, err);
    monitor_unlock(&t->monitor);
    return code;
}

size_t tensors_count(struct tensors *t) {
    monitor_lock(&t->monitor);
    size_t count = t->names.count;
    monitor_unlock(&t->monitor);
    return count;
}

struct tensor *tensors_next(struct tensors *t) {
    monitor_lock(&t->monitor);
    struct tensor *tensor = t->fresh;
    if (tensor) t->fresh = tensor->newer;
    monitor_unlock(&t->monitor);
    return tensor;
}

struct tensor *tensors_find(struct tensors *t, const char *name) {
    monitor_lock(&t->monitor);
    struct tensor *tensor = map_get(&t->names, name);
    monitor_unlock(&t->monitor);
    return tensor;
}

/* Tensors finish about in the order in which they were added, so the search ends early. */
struct tensor *tensors_find_id(struct tensors *t, uint64_t id) {
    monitor_lock(&t->monitor);
    struct tensor *tensor = t->oldest;
    while (tensor && tensor->id != id) tensor = tensor->newer;
    monitor_unlock(&t->monitor);
    return tensor;
}

static void complete(struct tensor *tensor, const hvd_error *error) {
    tensor->complete(tensor->arg, error);
    free(tensor->rows);
    free(tensor->message);
    free(tensor);
}

void tensors_finish(struct tensors *t, struct tensor *tensor, const hvd_error *error) {
    monitor_lock(&t->monitor);
    unlink_tensor(t, tensor);
    monitor_unlock(&t->monitor);
    complete(tensor, error);
}

void tensors_refuse(struct tensors *t, const hvd_error *error) {
    monitor_lock(&t->monitor);
    if (!t->closed) t->why = *error;
    t->closed = true;
    monitor_unlock(&t->monitor);
}

static struct tensor *take_oldest(struct tensors *t) {
    monitor_lock(&t->monitor);
    struct tensor *tensor = t->oldest;
    if (tensor) unlink_tensor(t, tensor);
    monitor_unlock(&t->monitor);
    return tensor;
}

void tensors_close(struct tensors *t, const hvd_error *error) {
    tensors_refuse(t, error);
    for (struct tensor *tensor; (tensor = take_oldest(t));) complete(tensor, error);
}
