#include "engine/tensors.h"

#include "collectives/coded.h"

#include <stdlib.h>
#include <string.h>

struct tensors {
    struct mutex mutex; /* guards the fields up to `why` */
    struct map names;
    struct tensor_list fresh; /* added but not taken yet */
    int corks;                /* number of hvd_cork calls in force; > 0: holds tensors back */
    bool closed;
    hvd_error why;
    /* Only the stepping thread uses the following fields. */
    struct tensor_list taken;
    struct tensor_list zeros; /* owned: made by tensors_add_zeros */
    struct map ids;           /* tensors of `taken`, by the cache id that this rank has sent */
};

struct tensors *tensors_new(void) {
    struct tensors *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    mutex_init(&t->mutex);
    return t;
}

void tensor_list_remove(struct tensor_list *list, struct tensor *tensor) {
    *(tensor->newer ? &tensor->newer->older : &list->newest) = tensor->older;
    *(tensor->older ? &tensor->older->newer : &list->oldest) = tensor->newer;
}

void tensor_list_add(struct tensor_list *list, struct tensor *tensor, struct tensor *last) {
    tensor->older = list->newest;
    *(list->newest ? &list->newest->newer : &list->oldest) = tensor;
    list->newest = last;
    last->newer = NULL;
}

/* Frees the memory that the engine has added to the tensor since its submission. */
static void free_additions(struct tensor *tensor) {
    free(tensor->rows);
    free(tensor->message);
    tensor->rows = NULL;
    tensor->message = NULL;
}

static void finish_zeros(struct tensors *t, struct tensor *tensor) {
    tensor_list_remove(&t->zeros, tensor);
    free_additions(tensor);
    free(tensor->out);
    free(tensor);
}

void tensors_free(struct tensors *t) {
    if (!t) return;
    while (t->zeros.oldest) finish_zeros(t, t->zeros.oldest);
    map_clear(&t->names);
    map_clear(&t->ids);
    mutex_destroy(&t->mutex);
    free(t);
}

/* ---- the table ---- */

/* Adds a tensor whose name is not in the table. */
static int add_name(struct tensors *t, struct tensor *tensor, hvd_error *err) {
    HVD_TRY(map_put(&t->names, &tensor->node, err));
    tensor_list_add(&t->fresh, tensor, tensor);
    return HVD_OK;
}

/* Removes the tensor's name; adds the next tensor of this name, if there is one. */
static void remove_name(struct tensors *t, struct tensor *tensor) {
    hvd_error none; /* map_put can't fail, because the removal has made room */
    map_remove(&t->names, &tensor->node);
    if (!tensor->behind) return;
    tensor->behind->last = tensor->last;
    add_name(t, tensor->behind, &none);
}

int tensor_duplicate(const struct tensor *tensor, hvd_error *err) {
    return error_set(err, HVD_DUPLICATE,
                     "tensor '%s' was submitted twice on this rank: wait until the first has "
                     "completed, or give each tensor its own name",
                     tensor->request.name);
}

/* *first: the first tensor with this name; NULL: none. */
static int check_locked(struct tensors *t, const struct tensor *tensor, struct tensor **first,
                        hvd_error *err) {
    *first = map_find(&t->names, &tensor->node);
    if (t->closed) return *err = t->why, err->code;
    int failed = *first ? (*first)->last->request.failed : HVD_OK;
    /* no caller waits for a failed tensor, unless the tensor failed because memory was short */
    bool may = !*first || (failed && failed != HVD_NO_MEMORY) || tensor->queued;
    return may ? HVD_OK : tensor_duplicate(tensor, err);
}

static int check(struct tensors *t, const struct tensor *tensor, hvd_error *err) {
    struct tensor *first;
    mutex_lock(&t->mutex);
    int code = check_locked(t, tensor, &first, err);
    mutex_unlock(&t->mutex);
    return code;
}

int tensors_encode(struct tensors *t, const struct comm *comm, struct tensor *tensor,
                   hvd_error *err) {
    const struct request *r = &tensor->request;
    size_t n = request_count(r);
    tensor->message = NULL;
    if (r->codec.kind == HVD_CODEC_NONE) return HVD_OK;
    HVD_TRY(check(t, tensor, err)); /* before encoding, which changes the residual */
    if (n && !tensor->residual && !codec_is_cast(r->codec))
        return error_set(err, HVD_INVALID, "tensor '%s': compression %s needs a residual", r->name,
                         codec_name(r->codec.kind));
    /* + 1 because malloc(0) may return NULL */
    tensor->message = malloc(codec_bytes(r->codec, n) + 1);
    if (!tensor->message) return error_set(err, HVD_NO_MEMORY, "no memory to encode '%s'", r->name);
    struct codec_input input = {r->codec, tensor->in, r->prescale, tensor->residual,
                                tensor->message};
    int code = coded_encode(comm, &input, n, err);
    if (code) {
        free(tensor->message);
        tensor->message = NULL;
    }
    return code;
}

static int add_locked(struct tensors *t, struct tensor *tensor, hvd_error *err) {
    struct tensor *first;
    HVD_TRY(check_locked(t, tensor, &first, err));
    if (!first) return add_name(t, tensor, err);
    first->last->behind = tensor;
    first->last = tensor;
    return HVD_OK;
}

int tensors_add(struct tensors *t, struct tensor *tensor, bool *corked, hvd_error *err) {
    tensor->id = 0;
    tensor->rows = NULL;
    tensor->zeros = false;
    tensor->stage = TENSOR_NEW;
    tensor->agreed = 0;
    tensor->newer = tensor->behind = NULL;
    tensor->last = tensor;
    mutex_lock(&t->mutex);
    int code = add_locked(t, tensor, err);
    *corked = t->corks > 0;
    mutex_unlock(&t->mutex);
    return code;
}

size_t tensors_count(struct tensors *t) {
    mutex_lock(&t->mutex);
    size_t count = t->names.count;
    mutex_unlock(&t->mutex);
    return count;
}

size_t tensors_oldest(struct tensors *t, char name[HVD_MAX_NAME]) {
    if (t->taken.oldest) memcpy(name, t->taken.oldest->request.name, HVD_MAX_NAME);
    return tensors_count(t);
}

void tensors_cork(struct tensors *t, bool corked) {
    mutex_lock(&t->mutex);
    t->corks += corked ? 1 : -1;
    if (t->corks < 0) t->corks = 0;
    mutex_unlock(&t->mutex);
}

/* After tensors_refuse, also returns tensors that tensors_cork holds back. */
struct tensor *tensors_take(struct tensors *t) {
    struct tensor_list fresh = {0};
    mutex_lock(&t->mutex);
    if (t->closed || !t->corks) {
        fresh = t->fresh;
        t->fresh = (struct tensor_list){0};
    }
    mutex_unlock(&t->mutex);
    if (fresh.oldest) tensor_list_add(&t->taken, fresh.oldest, fresh.newest);
    return fresh.oldest;
}

struct tensor *tensors_find(struct tensors *t, const char *name) {
    mutex_lock(&t->mutex);
    struct tensor *tensor = map_get(&t->names, name);
    mutex_unlock(&t->mutex);
    return tensor;
}

struct tensor *tensors_find_id(struct tensors *t, uint64_t id) {
    return map_get_number(&t->ids, id);
}

int tensors_set_id(struct tensors *t, struct tensor *tensor, uint64_t id, hvd_error *err) {
    if (tensor->id) map_remove(&t->ids, &tensor->by_id);
    tensor->id = 0;
    if (!id) return HVD_OK;
    tensor->by_id = map_node_of_number(id, tensor);
    HVD_TRY(map_put(&t->ids, &tensor->by_id, err));
    tensor->id = id;
    return HVD_OK;
}

int tensors_add_zeros(struct tensors *t, const struct request *request, struct tensor **out,
                      hvd_error *err) {
    struct tensor *tensor = malloc(sizeof *tensor);
    void *memory = calloc(request_bytes(request) + 1, 1);
    bool coded = request->codec.kind != HVD_CODEC_NONE;
    void *message =
        coded ? calloc(codec_bytes(request->codec, request_count(request)) + 1, 1) : NULL;
    if (!tensor || !memory || (coded && !message)) {
        free(tensor);
        free(memory);
        free(message);
        return error_set(err, HVD_NO_MEMORY,
                         "tensor '%s': no memory for the zeros of this rank, which has joined",
                         request->name);
    }
    *tensor = (struct tensor){
        .request = *request, .in = memory, .out = memory, .message = message, .zeros = true};
    tensor_list_add(&t->zeros, tensor, tensor);
    *out = tensor;
    return HVD_OK;
}

void tensors_finish(struct tensors *t, struct tensor *tensor, const hvd_error *error) {
    if (tensor->zeros) {
        finish_zeros(t, tensor);
        return;
    }
    tensor_list_remove(&t->taken, tensor);
    if (tensor->id) map_remove(&t->ids, &tensor->by_id);
    mutex_lock(&t->mutex);
    remove_name(t, tensor);
    mutex_unlock(&t->mutex);
    free_additions(tensor);
    if (!error) return tensor->complete(tensor->arg, NULL); /* the completion may free the tensor */
    hvd_error own = *error;
    error_of(&own, tensor->request.name);
    tensor->complete(tensor->arg, &own);
}

void tensors_refuse(struct tensors *t, const hvd_error *error) {
    mutex_lock(&t->mutex);
    if (!t->closed) t->why = *error;
    t->closed = true;
    mutex_unlock(&t->mutex);
}

void tensors_close(struct tensors *t, const hvd_error *error) {
    tensors_refuse(t, error);
    do {
        for (struct tensor *tensor; (tensor = t->taken.oldest);) {
            hvd_error own = *error;
            error_while(&own, "tensor '%.300s' waited", tensor->request.name);
            tensors_finish(t, tensor, &own);
        }
    } while (tensors_take(t));
}
