#include "negotiation/ahead.h"

#include <math.h>
#include <stdlib.h>

/* Seconds to move a piece of a tensor: long compared with the pause of the links between pieces,
 * and short compared with a training step. On 4 hosts at 200 Mbit/s, 20 MB took 1.30 s, whether
 * pieces had 1 MiB, 2 MiB or all bytes. The gradient of the first layer, which is urgent, arrived
 * after 0.14 s with pieces of 1 MiB, after 0.31 s with 2 MiB, and after 0.50 s as one piece. */
static const double PIECE_SECONDS = 10e-3;
/* Maximum seconds that a decision needs to reach the ranks. The decision waits behind data in the
 * network's buffers. */
static const double LONGEST_LEAD = 30e-3;
enum {
    /* minimum bytes of a tensor's pieces; chosen: shorter pieces leave the links idle more often */
    LEAST_PIECE = 1 << 20,
    LARGE = 64 << 10, /* shorter batches measure the latency and not the rate */
};

void ahead_free(struct ahead *a) { free(a->ring); }

static bool is_limited(const struct ahead *a) { return a->bytes_ahead != AHEAD_UNLIMITED; }

/* Returns the median of the rates. A single late batch changes a mean, but not the median. */
static double median_rate(const struct ahead *a) {
    double sorted[AHEAD_RATES];
    size_t n = a->measured < AHEAD_RATES ? a->measured : AHEAD_RATES;
    for (size_t i = 0; i < n; i++) {
        size_t k = i;
        for (; k > 0 && sorted[k - 1] > a->rates[i]; k--) sorted[k] = sorted[k - 1];
        sorted[k] = a->rates[i];
    }
    return sorted[n / 2];
}

size_t ahead_piece(const struct ahead *a) {
    if (!is_limited(a)) return SIZE_MAX;
    if (a->bytes_ahead != AHEAD_MEASURED) return a->bytes_ahead / 2 + a->bytes_ahead % 2;
    double piece = a->rate * PIECE_SECONDS;
    if (piece > (double)(SIZE_MAX / 4)) return SIZE_MAX / 4;
    return piece > LEAST_PIECE ? (size_t)piece : LEAST_PIECE;
}

/* Returns when the oldest batch began: when it was decided or when the previous batch finished,
 * whichever was later. */
static double begin_of_oldest(const struct ahead *a) {
    double decided = a->ring[a->first].decided;
    return decided > a->finished ? decided : a->finished;
}

double ahead_opens(const struct ahead *a) {
    if (!is_limited(a) || a->n == 0) return 0;
    if (a->n > 1) return INFINITY;
    if (a->bytes_ahead != AHEAD_MEASURED || a->rate <= 0) return 0;
    double lead = (double)ahead_piece(a) / a->rate / 2;
    return begin_of_oldest(a) + (double)a->bytes / a->rate -
           (lead < LONGEST_LEAD ? lead : LONGEST_LEAD);
}

bool ahead_takes(const struct ahead *a, size_t bytes, double now) {
    size_t piece = ahead_piece(a);
    return now >= ahead_opens(a) || (a->bytes <= piece && bytes <= piece - a->bytes);
}

static int grow(struct ahead *a, hvd_error *err) {
    size_t capacity = 2 * a->capacity + 16;
    struct ahead_batch *ring = malloc(capacity * sizeof *ring);
    if (!ring) return error_set(err, HVD_NO_MEMORY, "no memory for %zu batches", capacity);
    for (size_t i = 0; i < a->n; i++) ring[i] = a->ring[(a->first + i) % a->capacity];
    free(a->ring);
    a->ring = ring;
    a->first = 0;
    a->capacity = capacity;
    return HVD_OK;
}

int ahead_decided(struct ahead *a, size_t bytes, double now, hvd_error *err) {
    if (a->n == a->capacity) HVD_TRY(grow(a, err));
    a->ring[(a->first + a->n++) % a->capacity] = (struct ahead_batch){bytes, now};
    a->bytes += bytes;
    return HVD_OK;
}

static void measure(struct ahead *a, size_t bytes, double seconds) {
    if (bytes < LARGE || seconds <= 0) return;
    a->rates[a->measured++ % AHEAD_RATES] = (double)bytes / seconds;
    a->rate = median_rate(a);
}

void ahead_finished(struct ahead *a, double now) {
    if (!a->n) return;
    size_t bytes = a->ring[a->first].bytes;
    measure(a, bytes, now - begin_of_oldest(a));
    a->first = (a->first + 1) % a->capacity;
    a->n--;
    a->bytes -= bytes;
    a->finished = now;
}
