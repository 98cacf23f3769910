#include "mxnet/queues.h"

#include "base/map.h"

#include <string.h>

void queues_init(struct queues *q) {
    memset(q->first, 0, sizeof q->first);
    mutex_init(&q->mutex);
}

static struct queue_entry **queue_of(struct queues *q, const struct queue_entry *entry) {
    return &q->first[entry->hash & (QUEUES - 1)];
}

/* Returns the first entry of the list with the same name and group. */
static struct queue_entry *first_like(struct queue_entry *list, const struct queue_entry *entry) {
    while (list && (list->hash != entry->hash || list->group != entry->group ||
                    strcmp(list->name, entry->name) != 0))
        list = list->next;
    return list;
}

void queue_enter(struct queues *q, struct queue_entry *entry, int group, const char *name,
                 void *value) {
    uint64_t hash = map_node_of(name, NULL).hash;
    *entry = (struct queue_entry){.hash = hash, .name = name, .group = group, .value = value};
    mutex_lock(&q->mutex);
    struct queue_entry **end = queue_of(q, entry);
    while (*end) end = &(*end)->next;
    *end = entry;
    mutex_unlock(&q->mutex);
}

struct queue_entry *queue_ready(struct queues *q, struct queue_entry *entry) {
    mutex_lock(&q->mutex);
    entry->ready = true;
    bool oldest = first_like(*queue_of(q, entry), entry) == entry;
    mutex_unlock(&q->mutex);
    return oldest ? entry : NULL;
}

struct queue_entry *queue_next(struct queues *q, struct queue_entry *entry) {
    mutex_lock(&q->mutex);
    struct queue_entry **at = queue_of(q, entry), *next = first_like(entry->next, entry);
    while (*at != entry) at = &(*at)->next;
    *at = entry->next;
    if (next && !next->ready) next = NULL;
    mutex_unlock(&q->mutex);
    return next;
}
