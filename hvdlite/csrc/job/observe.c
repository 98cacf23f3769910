/* The functions of hvd.h that show what a job does: counters, recorder, timeline, kept errors. */
#define _POSIX_C_SOURCE 200809L /* strnlen */
#include "hvd.h"

#include "base/map.h"
#include "job/context.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *hvd_algorithm(void) {
    if (context_enter(NULL)) return NULL;
    const char *name = engine_algorithm(context_world()->engine);
    context_leave();
    return name;
}

int hvd_get_stats(hvd_stats *out, hvd_error *err) {
    HVD_TRY(context_enter(err));
    struct stats *stats = context_job()->config.stats;
    *out = (hvd_stats){stats->bytes_sent_network, stats->bytes_sent_window, stats->tensors,
                       stats->batches};
    context_leave();
    return HVD_OK;
}

const char hvd_flight_format[] = FLIGHT_FORMAT;

int hvd_flight_file(void) {
    if (context_enter(NULL)) return -1;
    int file = context_job()->flight ? context_job()->flight->file : -1;
    context_leave();
    return file;
}

void hvd_flight_describe(const char *job, const char *transport, int stacks) {
    if (context_enter(NULL)) return;
    flight_describe(context_job()->flight, job, transport, stacks);
    context_leave();
}

void hvd_flight_bell(int bell, const char *word) {
    if (context_enter(NULL)) return;
    flight_set_bell(context_job()->flight, bell, word);
    context_leave();
}

void hvd_set_clock(double offset, double error, const char *about) {
    if (context_enter(NULL)) return;
    flight_set_clock(context_job()->flight, offset, error);
    timeline_set_clock(&context_job()->timeline, offset, error, about);
    context_leave();
}

void hvd_note(const char *what, double begin, double end) {
    if (context_enter(NULL)) return;
    flight_note(context_job()->flight, what, begin, end);
    if (timeline_on(&context_job()->timeline))
        timeline_note(&context_job()->timeline, what, begin, end);
    context_leave();
}

int hvd_timeline_start(const char *path, int mark_cycles, hvd_error *err) {
    HVD_TRY(context_enter(err));
    int code = job_start_timeline(context_job(), path, mark_cycles != 0, err);
    context_leave();
    return code;
}

int hvd_timeline_stop(hvd_error *err) {
    HVD_TRY(context_enter(err));
    int code = timeline_stop(&context_job()->timeline, err);
    context_leave();
    return code;
}

/* ---- kept errors ----
 *
 * A framework raises the error of a collective as its own exception, which has only the text of the
 * error. The text ends with a hash of itself, by which hvd_kept_failure finds the other fields. A
 * number of the error could differ between ranks, but the text must be equal on all ranks. */

const char hvd_error_mark[] = " [hvdlite error ";

static uint32_t hash_of(const hvd_error *err) {
    return (uint32_t)map_node_of(err->text, NULL).hash;
}

void hvd_keep_failure(hvd_error *err) {
    enum { MOST = sizeof hvd_error_mark + sizeof "01234567]" };
    uint32_t hash = hash_of(err);
    struct failures *f = context_lock_failures();
    f->last[f->count++ % FAILURES_KEPT] = *err;
    context_unlock_failures();
    size_t used = strnlen(err->text, sizeof err->text - MOST);
    while (used && (err->text[used] & 0xC0) == 0x80) used--; /* do not cut a character */
    snprintf(err->text + used, MOST, "%s%08" PRIx32 "]", hvd_error_mark, hash);
}

bool hvd_kept_failure(uint32_t hash, hvd_error *out) {
    bool found = false;
    const struct failures *f = context_lock_failures();
    size_t first = f->count > FAILURES_KEPT ? f->count - FAILURES_KEPT : 0;
    for (size_t i = f->count; i > first && !found; i--) {
        const hvd_error *kept = &f->last[(i - 1) % FAILURES_KEPT];
        found = hash_of(kept) == hash;
        if (found) *out = *kept;
    }
    context_unlock_failures();
    return found;
}
