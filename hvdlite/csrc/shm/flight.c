#include "shm/flight.h"

#include "base/os.h"
#include "shm/life.h"
#include "shm/shmem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- open and close ---- */

static int map_memory(struct flight *f, hvd_error *err) {
    char address[SHMEM_ADDRESS];
    void *memory = NULL;
    HVD_TRY(shmem_make(sizeof *f->memory, &f->file, err));
    shmem_address(f->file, address);
    int code = shmem_map(&memory, sizeof *f->memory, true, address, err);
    if (code) close(f->file);
    f->memory = memory;
    return code;
}

int flight_open(struct flight **out, hvd_error *err) {
    struct life_card card = life_card_of_this_process();
    struct flight *f = calloc(1, sizeof *f);
    if (!f) return error_set(err, HVD_NO_MEMORY, "no memory for the flight recorder");
    int code = map_memory(f, err);
    if (code) {
        free(f);
        return code;
    }
    struct flight_memory *m = f->memory;
    mutex_init(&f->mutex);
    f->bell = -1;
    flight_layout(m->layout, sizeof m->layout);
    m->pid = card.pid;
    m->size = 1;
    m->began = clock_now();
    snprintf(m->host, sizeof m->host, "%s", card.host);
    *out = f;
    return HVD_OK;
}

void flight_close(struct flight *f) {
    if (!f) return;
    mutex_destroy(&f->mutex);
    shmem_release(f->memory, sizeof *f->memory, f->file);
    free(f);
}

void flight_set_rank(struct flight *f, int rank, int size, int local_rank) {
    if (!f) return;
    f->memory->rank = rank;
    f->memory->size = size;
    f->memory->local_rank = local_rank;
}

void flight_describe(struct flight *f, const char *job, const char *transport, int stacks) {
    if (!f) return;
    snprintf(f->memory->job, sizeof f->memory->job, "%s", job);
    snprintf(f->memory->transport, sizeof f->memory->transport, "%s", transport);
    f->memory->stacks = stacks;
}

void flight_set_clock(struct flight *f, double offset, double error) {
    if (!f) return;
    f->memory->clock_offset = offset;
    f->memory->clock_error = error;
}

/* ---- operations ---- */

typedef _Atomic uint64_t slot[FLIGHT_WORDS];

_Static_assert(sizeof(struct flight_op) == 128, "struct flight_op must fill two cache lines");
_Static_assert(offsetof(struct flight_op, fused) % 8 == 0 &&
                   offsetof(struct flight_op, name) == offsetof(struct flight_op, fused) + 8,
               "the fields from fused to waited must be one word, which set_phase stores at once");
_Static_assert(offsetof(struct flight_op, version) == 0, "version must be the first word");

static slot *slot_of(const struct flight *f, uint64_t number) {
    return &f->memory->ring[(number - 1) % FLIGHT_OPS];
}

/* Returns false if another thread has locked the ring's slot; then this thread records nothing. Two
 * threads write one slot only if more tensors are under way than the ring has slots. */
static bool lock(slot *s, uint64_t *version) {
    *version = atomic_load_explicit(&(*s)[0], memory_order_relaxed);
    return *version % 2 == 0 &&
           atomic_compare_exchange_strong_explicit(&(*s)[0], version, *version + 1,
                                                   memory_order_acquire, memory_order_relaxed);
}

static void unlock(slot *s, uint64_t version) {
    atomic_store_explicit(&(*s)[0], version + 2, memory_order_release);
}

static void load(const slot *s, struct flight_op *op) {
    uint64_t words[FLIGHT_WORDS];
    for (int i = 1; i < FLIGHT_WORDS; i++)
        words[i] = atomic_load_explicit(&(*s)[i], memory_order_acquire);
    memcpy((char *)op + sizeof *words, words + 1, sizeof *op - sizeof *words);
}

/* Uses memory_order_release, so a reader that sees a new word also sees that the version is odd. */
static void store(slot *s, const struct flight_op *op) {
    uint64_t words[FLIGHT_WORDS];
    memcpy(words, op, sizeof words);
    for (int i = 1; i < FLIGHT_WORDS; i++)
        atomic_store_explicit(&(*s)[i], words[i], memory_order_release);
}

bool flight_read(const struct flight_memory *memory, size_t index, struct flight_op *out) {
    const slot *s = &memory->ring[index];
    out->version = atomic_load_explicit(&(*s)[0], memory_order_acquire);
    load(s, out);
    return out->version % 2 == 0 &&
           atomic_load_explicit(&(*s)[0], memory_order_relaxed) == out->version;
}

static void mark_steps(struct flight_marks *k, uint64_t hash) {
    k->mark = hash;
    if (k->next) k->next = 0;
    k->life = 4;
}

/* Counts training steps: each step submits one tensor, the mark, once. If another tensor, the
 * candidate, is submitted three times between two submissions of the mark, the candidate becomes
 * the mark: the old mark was not in every step, or the model has changed. If this takes more than
 * `life` operations, another tensor becomes the candidate, and `life` doubles, until it is longer
 * than these steps. */
static void count_step(struct flight_memory *m, uint64_t hash, uint64_t number) {
    struct flight_marks *k = &m->marks;
    if (!k->mark) {
        mark_steps(k, hash);
    } else if (k->mark == hash) {
        m->steps++;
        mark_steps(k, hash);
    } else if (k->next == hash) {
        if (++k->submitted < 2) return;
        m->steps += 2;
        mark_steps(k, hash);
    } else if (!k->next || number - k->next_at > k->life) {
        k->next = hash;
        k->next_at = number;
        k->submitted = 0;
        k->life += k->life;
    }
}

static uint64_t add(struct flight *f, const char *name, uint64_t again, struct flight_op op) {
    if (!f) return 0;
    uint64_t version;
    op.number = 1 + atomic_fetch_add_explicit(&f->memory->ops, 1, memory_order_relaxed);
    if (again) count_step(f->memory, again, op.number);
    slot *s = slot_of(f, op.number);
    if (!lock(s, &version)) return 0;
    size_t length = strlen(name), kept = length < FLIGHT_NAME ? length : FLIGHT_NAME - 1;
    memcpy(op.name, name + length - kept, kept);
    store(s, &op);
    unlock(s, version);
    return op.number;
}

static struct flight_op op_of(const struct request *r, double submitted, int group) {
    return (struct flight_op){.bytes = request_bytes(r),
                              .submitted = submitted,
                              .group = (int16_t)group,
                              .phase = FLIGHT_WAITS,
                              .kind = (uint8_t)r->kind,
                              .dtype = (uint8_t)r->dtype,
                              .waited = r->waited != 0};
}

uint64_t flight_add(struct flight *f, const struct request *r, double submitted, int group,
                    uint64_t again) {
    return add(f, r->name, again, op_of(r, submitted, group));
}

void flight_add_done(struct flight *f, const struct request *r, double submitted, int group,
                     uint64_t again, uint64_t batch, double now) {
    struct flight_op op = op_of(r, submitted, group);
    op.batch = batch;
    op.agreed = op.started = op.ended = now;
    op.fused = 1;
    op.phase = FLIGHT_DONE;
    add(f, r->name, again, op);
}

void flight_note(struct flight *f, const char *what, double begin, double end) {
    struct flight_op op = {.ended = end, .phase = FLIGHT_DONE, .kind = FLIGHT_ALONE};
    op.submitted = op.agreed = op.started = begin;
    add(f, what, 0, op);
}

/* Locks the operation's slot in the ring. NULL: a newer operation has the slot, or another thread
 * holds the lock. */
static slot *lock_op(const struct flight *f, uint64_t number, uint64_t *version) {
    if (!f || !number) return NULL;
    slot *s = slot_of(f, number);
    if (!lock(s, version)) return NULL;
    const size_t word = offsetof(struct flight_op, number) / sizeof number;
    if (atomic_load_explicit(&(*s)[word], memory_order_relaxed) == number) return s;
    unlock(s, *version);
    return NULL;
}

/* Stores one changed word; storing all 15 words took twice as long. */
static void set_word(slot *s, size_t offset, const void *value) {
    uint64_t word;
    memcpy(&word, value, sizeof word);
    atomic_store_explicit(&(*s)[offset / sizeof word], word, memory_order_release);
}

#define SET(s, member, value) set_word(s, offsetof(struct flight_op, member), &(value))

/* Stores the phase, and `fused` unless it is 0. */
static void set_phase(slot *s, enum flight_phase phase, uint16_t fused) {
    struct {
        uint16_t fused;
        int16_t group;
        uint8_t phase, kind, dtype, waited;
    } part;
    const size_t offset = offsetof(struct flight_op, fused);
    _Static_assert(sizeof part == sizeof(uint64_t), "part must be one word");
    uint64_t word = atomic_load_explicit(&(*s)[offset / sizeof word], memory_order_relaxed);
    memcpy(&part, &word, sizeof part);
    if (fused) part.fused = fused;
    part.phase = (uint8_t)phase;
    set_word(s, offset, &part);
}

void flight_agreed(struct flight *f, uint64_t number, uint64_t batch, size_t fused, double now) {
    uint64_t version;
    slot *s = lock_op(f, number, &version);
    if (!s) return;
    SET(s, batch, batch);
    SET(s, agreed, now);
    set_phase(s, FLIGHT_AGREED, fused < UINT16_MAX ? (uint16_t)fused : UINT16_MAX);
    unlock(s, version);
}

void flight_started(struct flight *f, uint64_t number, double now) {
    uint64_t version;
    slot *s = lock_op(f, number, &version);
    if (!s) return;
    SET(s, started, now);
    set_phase(s, FLIGHT_MOVES, 0);
    unlock(s, version);
}

void flight_ended(struct flight *f, uint64_t number, bool failed, double now) {
    uint64_t version;
    slot *s = lock_op(f, number, &version);
    if (!s) return;
    SET(s, ended, now);
    set_phase(s, failed ? FLIGHT_FAILED : FLIGHT_DONE, 0);
    unlock(s, version);
}

/* ---- troubles ---- */

/* Writes the text to the bell. If the pipe is full, only this text is lost. After any other error
 * nobody reads the pipe any more, so later texts are not written. */
static void ring(struct flight *f, const char *text, size_t size) {
    if (f->bell < 0 || write(f->bell, text, size) >= 0) return;
    if (errno != EAGAIN && errno != EINTR) f->bell = -1;
}

void flight_trouble(struct flight *f, const char *text, bool failed) {
    if (!f) return;
    mutex_lock(&f->mutex);
    snprintf(f->memory->trouble, sizeof f->memory->trouble, "%s", text);
    f->memory->failed = failed;
    atomic_fetch_add(&f->memory->troubles, 1);
    ring(f, f->word, strlen(f->word));
    mutex_unlock(&f->mutex);
}

void flight_blame(struct flight *f, const hvd_error *error) {
    if (!f || !error->nblamed || error->blamed[0] == f->memory->rank) return;
    char line[160];
    int dead = error->code == HVD_RANK_DEAD ? HVD_BLAME_SILENT : 0;
    int blame = error->code == HVD_STALLED ? HVD_BLAME_STALLED : dead;
    int used = snprintf(line, sizeof line, "%c%d %d", HVD_BLAME, blame, error->nblamed);
    for (int i = 0; i < error_nlisted(error); i++)
        used += snprintf(line + used, sizeof line - (size_t)used, " %d", error->blamed[i]);
    line[used] = '\n';
    mutex_lock(&f->mutex);
    ring(f, line, (size_t)used + 1);
    mutex_unlock(&f->mutex);
}

void flight_set_bell(struct flight *f, int file, const char *word) {
    if (!f) return;
    mutex_lock(&f->mutex);
    f->bell = file;
    snprintf(f->word, sizeof f->word, "%s", word);
    mutex_unlock(&f->mutex);
}
