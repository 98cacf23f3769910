#include "base/free_list.h"

#include <stdlib.h>

void free_list_init(struct free_list *s) {
    mutex_init(&s->mutex);
    s->first = NULL;
}

void *free_list_take(struct free_list *s, size_t bytes) {
    mutex_lock(&s->mutex);
    void **block = s->first;
    if (block) s->first = *block;
    mutex_unlock(&s->mutex);
    return block ? block : malloc(bytes);
}

#ifdef __SANITIZE_ADDRESS__
void free_list_give(struct free_list *s, void *block) {
    (void)s;
    free(block); /* so that the address sanitizer finds later uses */
}
#else
void free_list_give(struct free_list *s, void *block) {
    mutex_lock(&s->mutex);
    *(void **)block = s->first;
    s->first = block;
    mutex_unlock(&s->mutex);
}
#endif
