#include "engine/timeline.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <string.h>

#include "base/output.h"

void timeline_init(struct timeline *t) {
    *t = (struct timeline){.file = NULL};
    mutex_init(&t->mutex);
}

void timeline_destroy(struct timeline *t) { mutex_destroy(&t->mutex); }

void timeline_forked(struct timeline *t) {
    if (t->file) __fpurge(t->file);
}

/* ---- writing, with the lock held ---- */

/* Writes nothing after a write that has failed, because the file would have a gap. */
__attribute__((format(printf, 2, 3))) static void write_text(struct timeline *t, const char *format,
                                                             ...) {
    va_list args;
    va_start(args, format);
    if (!t->failed && vfprintf(t->file, format, args) < 0) t->failed = errno;
    va_end(args);
}

static long microseconds(const struct timeline *t, double time) {
    return (long)((time - t->origin) * 1e6);
}

/* Escapes a name for a JSON string; truncates it if `text` is full. */
static void escape(const char *name, char *text, size_t size) {
    size_t used = 0;
    for (; *name && used + 7 < size; name++) {
        unsigned char c = (unsigned char)*name;
        if (c == '"' || c == '\\' || c < 0x20)
            used += (size_t)snprintf(text + used, size - used, "\\u%04x", c);
        else
            text[used++] = (char)c;
    }
    text[used] = 0;
}

/* Writes the beginning or the end of a span. */
static void write_end(struct timeline *t, char begin_or_end, const char *what, double time,
                      const char *rest) {
    write_text(
        t,
        "{\"ph\": \"%c\", \"cat\": \"tensor\", \"id\": \"%llu\", \"name\": \"%s\", \"pid\": %d, "
        "\"tid\": 0, \"ts\": %ld%s},\n",
        begin_or_end, (unsigned long long)t->tensors, what, t->rank, microseconds(t, time), rest);
}

static void write_span(struct timeline *t, const char *what, double from, double to,
                       const char *details) {
    write_end(t, 'b', what, from, details);
    write_end(t, 'e', what, to, "");
}

/* Writes a tensor's spans. They share a new id, because spans with the same name may overlap:
 * tensors of two groups can have the same name, and a tensor may be moved in several pieces. */
static void write_tensor(struct timeline *t, const struct request *r, struct timeline_times times,
                         size_t fused) {
    char name[3 * HVD_MAX_NAME], negotiate[40], details[180];
    escape(r->name, name, sizeof name);
    snprintf(negotiate, sizeof negotiate, "negotiate %s", kind_name(r->kind));
    snprintf(details, sizeof details,
             ", \"args\": {\"dtype\": \"%s\", \"bytes\": %zu, \"fused\": %zu, \"batch\": %llu, "
             "\"waited\": %s%s}",
             dtype_name(r->dtype), request_bytes(r), fused, (unsigned long long)times.batch,
             r->waited ? "true" : "false", times.later ? ", \"later\": true" : "");
    t->tensors++;
    write_end(t, 'b', name, times.submitted, "");
    write_span(t, negotiate, times.submitted, times.decided, "");
    write_span(t, "queue", times.decided, times.started, "");
    write_span(t, kind_name(r->kind), times.started, times.completed, details);
    write_end(t, 'e', name, times.completed, "");
}

void timeline_tensor(struct timeline *t, const struct request *r, struct timeline_times times,
                     size_t fused) {
    mutex_lock(&t->mutex);
    if (t->file && times.submitted >= t->origin) write_tensor(t, r, times, fused);
    mutex_unlock(&t->mutex);
}

void timeline_note(struct timeline *t, const char *what, double begin, double end) {
    mutex_lock(&t->mutex);
    if (t->file && begin >= t->origin) {
        t->tensors++;
        write_span(t, what, begin, end, "");
    }
    mutex_unlock(&t->mutex);
}

void timeline_cycle(struct timeline *t, double now) {
    mutex_lock(&t->mutex);
    if (t->file && t->marks_cycles)
        write_text(t,
                   "{\"ph\": \"i\", \"name\": \"cycle\", \"s\": \"p\", \"pid\": %d, \"tid\": 0, "
                   "\"ts\": %ld},\n",
                   t->rank, microseconds(t, now));
    mutex_unlock(&t->mutex);
}

/* Writes the clock data with which hvdlite-report merges timelines; trace viewers ignore it. */
static void write_clock(struct timeline *t) {
    write_text(
        t,
        "{\"ph\": \"M\", \"name\": \"hvdlite_clock\", \"pid\": %d, \"args\": {\"origin\": %.9f, "
        "\"offset\": %.9f, \"error\": %.9f%s}},\n",
        t->rank, t->origin, t->clock_offset, t->clock_error, t->about);
}

void timeline_set_clock(struct timeline *t, double offset, double error, const char *about) {
    mutex_lock(&t->mutex);
    snprintf(t->about, sizeof t->about, ", %s", about);
    t->clock_offset = offset;
    t->clock_error = error;
    if (t->file) write_clock(t);
    mutex_unlock(&t->mutex);
}

/* ---- start and stop ---- */

int timeline_start(struct timeline *t, const char *path, int rank, bool mark_cycles, double now,
                   hvd_error *err) {
    int code = HVD_OK;
    mutex_lock(&t->mutex);
    if (t->file) {
        code =
            error_set(err, HVD_INVALID, "the timeline is on already: call stop_timeline() first");
    } else if (!(t->file = file_open_named(path))) {
        code = error_set(err, HVD_INVALID, "the timeline's file '%s' can't be written: %s", path,
                         strerror(errno));
    } else {
        snprintf(t->path, sizeof t->path, "%s", path);
        t->failed = 0;
        t->origin = now;
        t->rank = rank;
        t->marks_cycles = mark_cycles;
        write_text(t, "[\n");
        write_clock(t);
        atomic_store(&t->on, true);
    }
    mutex_unlock(&t->mutex);
    return code;
}

int timeline_stop(struct timeline *t, hvd_error *err) {
    int code = HVD_OK;
    mutex_lock(&t->mutex);
    if (t->file) {
        write_text(t,
                   "{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %d, \"args\": {\"name\": "
                   "\"rank %d\"}}\n]\n",
                   t->rank, t->rank);
        if (fclose(t->file) && !t->failed) t->failed = errno;
        if (t->failed)
            code = error_set(err, HVD_INVALID,
                             "the timeline is incomplete: its file '%.400s' can't be written: %s",
                             t->path, strerror(t->failed));
        t->file = NULL;
        atomic_store(&t->on, false);
    }
    mutex_unlock(&t->mutex);
    return code;
}
