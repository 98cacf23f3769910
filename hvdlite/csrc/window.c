#include "window.h"

size_t window_bytes(int n) { return (size_t)n * sizeof(struct window_member); }

void window_init(struct window *w, void *memory, int n, int self) {
    *w = (struct window){.members = memory, .n = n, .self = self};
}
