#include "shm/copy_policy.h"

#include <stdint.h>
#include <string.h>

/* Stretches. The slower way is tried again after SOONEST; each time it loses, the pause doubles. */
enum { FIRST_TRIALS = 6, SOONEST = 4, LATEST = 256 };

static size_t size_class(size_t bytes) {
    size_t log = 0;
    while (bytes >>= 1) log++;
    return log < COPY_SIZES ? log : COPY_SIZES - 1;
}

static enum copy_way choose(struct copy_record *r, unsigned long stretch) {
    if (stretch < FIRST_TRIALS) {
        r->tried = stretch;
        r->pause = SOONEST;
        return (enum copy_way)(stretch % COPY_WAYS);
    }
    bool past = r->seconds[COPY_NONTEMPORAL] < r->seconds[COPY_CACHED];
    enum copy_way best = past ? COPY_NONTEMPORAL : COPY_CACHED;
    if (best != r->best) r->pause = SOONEST;
    r->best = best;
    if (stretch - r->tried < r->pause) return best;
    r->tried = stretch;
    r->pause = r->pause < LATEST ? 2 * r->pause : LATEST;
    return past ? COPY_CACHED : COPY_NONTEMPORAL;
}

enum copy_way copy_policy_begin(struct copy_policy *s, size_t pass) {
    size_t size = size_class(pass);
    struct copy_record *r = &s->of_size[size];
    unsigned char *ways = s->board->ways[size];
    unsigned long stretch = r->stretches++;
    if (s->leads) ways[(stretch + 1) % 2] = (unsigned char)choose(r, stretch + 1);
    unsigned char way = ways[stretch % 2]; /* read from shared memory: check it */
    return way < COPY_WAYS ? (enum copy_way)way : COPY_CACHED;
}

/* A faster stretch counts at once, a slower one only by a quarter: much can slow a stretch down. */
void copy_policy_end(struct copy_policy *s, size_t pass, enum copy_way way, double seconds) {
    double *lately = &s->of_size[size_class(pass)].seconds[way];
    *lately = *lately > 0 && seconds > *lately ? *lately + (seconds - *lately) / 4 : seconds;
}

void copy_cached(void *to, const void *from, size_t bytes) {
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

static void copy_nontemporal(void *to, const void *from, size_t bytes) {
    char *out = to;
    const char *in = from;
    size_t head = (LINE - (uintptr_t)out % LINE) % LINE, done = head < bytes ? head : bytes;
    copy_cached(out, in, done);
    for (; bytes - done >= LINE; done += LINE) stream_line(out + done, in + done);
    copy_cached(out + done, in + done, bytes - done);
    _mm_sfence(); /* else these stores may become visible after the flag */
}
#else
static void copy_nontemporal(void *to, const void *from, size_t bytes) {
    copy_cached(to, from, bytes);
}
#endif

copy_function *copy_function_of(enum copy_way way) {
    return way == COPY_NONTEMPORAL ? copy_nontemporal : copy_cached;
}
