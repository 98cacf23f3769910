#include "stores.h"

#include <stdint.h>
#include <string.h>

/* Passes. A prime: training repeats the same ones, and the other way is to meet each of them. */
enum { FIRST_TRIALS = 6, AGAIN = 61 };

static size_t size_class(size_t bytes) {
    size_t log = 0;
    while (bytes >>= 1) log++;
    return log < STORE_SIZES ? log : STORE_SIZES - 1;
}

static enum store_way other(enum store_way way) {
    return way == STORE_CACHED ? STORE_PAST_CACHES : STORE_CACHED;
}

enum store_way stores_choose(const struct stores *s, size_t bytes) {
    const struct store_record *r = &s->of_size[size_class(bytes)];
    if (r->passes < FIRST_TRIALS) return (enum store_way)(r->passes % STORE_WAYS);
    enum store_way best =
        r->seconds[STORE_PAST_CACHES] < r->seconds[STORE_CACHED] ? STORE_PAST_CACHES : STORE_CACHED;
    return r->passes % AGAIN == 0 ? other(best) : best;
}

/* Less than before counts at once: a pass is slow for many reasons, but fast for one. */
void stores_note(struct stores *s, size_t bytes, enum store_way way, double seconds) {
    struct store_record *r = &s->of_size[size_class(bytes)];
    double now = seconds / (double)bytes, *lately = &r->seconds[way];
    *lately = *lately > 0 && now > *lately ? *lately + (now - *lately) / 4 : now;
    r->passes++;
}

void store_cached(void *to, const void *from, size_t bytes) {
    if (bytes) memcpy(to, from, bytes);
}

#ifdef __SSE2__
#include <emmintrin.h>

enum { LINE = 64 };

static void stream_line(char *to, const char *from) {
    for (int i = 0; i < LINE; i += (int)sizeof(__m128i))
        _mm_stream_si128((__m128i *)(void *)(to + i),
                         _mm_loadu_si128((const __m128i *)(const void *)(from + i)));
}

static void store_past_caches(void *to, const void *from, size_t bytes) {
    char *out = to;
    const char *in = from;
    size_t head = (LINE - (uintptr_t)out % LINE) % LINE, done = head < bytes ? head : bytes;
    store_cached(out, in, done);
    for (; bytes - done >= LINE; done += LINE) stream_line(out + done, in + done);
    store_cached(out + done, in + done, bytes - done);
    _mm_sfence(); /* else they may come after the flag */
}
#else
static void store_past_caches(void *to, const void *from, size_t bytes) {
    store_cached(to, from, bytes);
}
#endif

store_copy *stores_copy(enum store_way way) {
    return way == STORE_PAST_CACHES ? store_past_caches : store_cached;
}
