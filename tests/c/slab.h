/* Memory aligned to an element and no more; detects a write before it, and the address sanitizer
 * one after it. */
#ifndef HVDLITE_SLAB_H
#define HVDLITE_SLAB_H

#include "check.h"

struct slab {
    unsigned char *whole, *data;
    size_t front;
};

static inline struct slab slab_new(size_t bytes, size_t element) {
    struct slab s = {malloc(bytes + element), NULL, element};
    REQUIRE(s.whole != NULL);
    memset(s.whole, 0xa5, element);
    s.data = s.whole + element;
    return s;
}

static inline void slab_free(struct slab *s) {
    for (size_t i = 0; i < s->front; i++) CHECK_INT(s->whole[i], 0xa5);
    free(s->whole);
}

#endif
