#include "mxnet/turns.h"

#include "base/map.h"

#include <string.h>

void turns_init(struct turns *t) {
    memset(t->queues, 0, sizeof t->queues);
    mutex_init(&t->mutex);
}

static struct turn **queue_of(struct turns *t, const struct turn *turn) {
    return &t->queues[turn->hash & (TURN_QUEUES - 1)];
}

/* The first in the list that has the same name and group. */
static struct turn *first_like(struct turn *list, const struct turn *turn) {
    while (list && (list->hash != turn->hash || list->group != turn->group ||
                    strcmp(list->name, turn->name) != 0))
        list = list->next;
    return list;
}

void turn_enter(struct turns *t, struct turn *turn, int group, const char *name, void *value) {
    uint64_t hash = map_node_of(name, NULL).hash;
    *turn = (struct turn){.hash = hash, .name = name, .group = group, .value = value};
    mutex_lock(&t->mutex);
    struct turn **end = queue_of(t, turn);
    while (*end) end = &(*end)->next;
    *end = turn;
    mutex_unlock(&t->mutex);
}

struct turn *turn_come(struct turns *t, struct turn *turn) {
    mutex_lock(&t->mutex);
    turn->ready = true;
    bool oldest = first_like(*queue_of(t, turn), turn) == turn;
    mutex_unlock(&t->mutex);
    return oldest ? turn : NULL;
}

struct turn *turn_pass(struct turns *t, struct turn *turn) {
    mutex_lock(&t->mutex);
    struct turn **at = queue_of(t, turn), *next = first_like(turn->next, turn);
    while (*at != turn) at = &(*at)->next;
    *at = turn->next;
    if (next && !next->ready) next = NULL;
    mutex_unlock(&t->mutex);
    return next;
}
