#include "spare.h"

#include <stdlib.h>

void spare_init(struct spare *s) {
    monitor_init(&s->monitor);
    s->first = NULL;
}

void spare_destroy(struct spare *s) {
    for (void **block; (block = s->first);) {
        s->first = *block;
        free(block);
    }
    monitor_destroy(&s->monitor);
}

void *spare_take(struct spare *s, size_t bytes) {
    monitor_lock(&s->monitor);
    void **block = s->first;
    if (block) s->first = *block;
    monitor_unlock(&s->monitor);
    return block ? block : malloc(bytes);
}

#ifdef __SANITIZE_ADDRESS__
void spare_give(struct spare *s, void *block) {
    (void)s;
    free(block); /* so that a use after it is found */
}
#else
void spare_give(struct spare *s, void *block) {
    monitor_lock(&s->monitor);
    *(void **)block = s->first;
    s->first = block;
    monitor_unlock(&s->monitor);
}
#endif
