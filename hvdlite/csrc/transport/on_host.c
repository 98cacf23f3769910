#include "transport/on_host.h"

#include "base/options.h"
#include "base/os.h"
#include "shm/shmem.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Each rank reports whether it has mapped its host's shared memory, and whether it wanted to. */
struct mapped {
    bool mapped, wanted;
};

/* Finds out whether all ranks of this host (*all_mapped) and all ranks of the job have mapped the
 * memory of their hosts. */
static int compare_mapped(struct transport *t, struct mapped own, bool *all_mapped,
                          hvd_error *err) {
    struct mapped *of = transport_gather(t, &own, sizeof own, err);
    if (!of) return err->code;
    int wanted = 0;
    *all_mapped = t->layout.windows = true;
    for (int r = 0; r < t->all.size; r++) {
        bool local = t->layout.host_of[r] == t->layout.host_of[t->all.rank];
        t->layout.windows &= of[r].mapped;
        *all_mapped &= of[r].mapped || !local;
        wanted += local && of[r].wanted;
    }
    free(of);
    if (t->at.local_rank == 0 && wanted && wanted < t->layout.host.size)
        error_set(&t->no_window, HVD_INVALID,
                  "HVDLITE_WINDOW is 0 on some ranks of this host, but must be equal on all");
    return HVD_OK;
}

/* Either all ranks of the host map the memory that their leader makes, or no rank does. In the
 * group of all ranks, each rank allocates its pages immediately. In other groups, which may be
 * numerous and rarely used, a rank allocates a page when it first uses the page. */
static int share_memory(struct on_host *o, struct transport *t, bool wanted, void **memory,
                        hvd_error *err) {
    int n = t->at.local_size;
    size_t bytes = host_bytes(n);
    char own[SHMEM_ADDRESS] = "";
    if (t->at.local_rank == 0 && wanted && !shmem_make(bytes, &o->file, &t->no_window))
        shmem_address(o->file, own);
    char (*addresses)[SHMEM_ADDRESS] = transport_gather(t, own, sizeof own, err);
    if (!addresses) return err->code;
    const char *address = addresses[t->layout.host.ranks[0]];
    if (wanted && *address) shmem_map_sparse(memory, bytes, address, &t->no_window);
    if (*memory && !t->job_ranks) window_touch(*memory, t->at.local_rank);
    free(addresses);
    bool all_mapped = false;
    int code = compare_mapped(t, (struct mapped){*memory != NULL, wanted}, &all_mapped, err);
    if (all_mapped) return code;
    shmem_close(*memory, bytes);
    *memory = NULL;
    return code;
}

static int open_window(struct on_host *o, struct transport *t, bool wanted, hvd_error *err) {
    struct comm *host = &t->layout.host;
    void *memory = NULL;
    o->doorbell = &o->own_doorbell;
    HVD_TRY(share_memory(o, t, wanted, &memory, err));
    if (memory) {
        HVD_TRY(host_open(&o->host, memory, host->size, host->rank, err));
        host->window = &o->host.window;
        o->doorbell = &window_self(host->window)->doorbell;
    }
    if (host->size == t->all.size) t->all.window = host->window;
    return HVD_OK;
}

static int open_cards(struct on_host *o, struct transport *t, bool nudge, hvd_error *err) {
    o->cards = calloc((size_t)t->all.size, sizeof *o->cards);
    if (!t->job_ranks) t->awaited = calloc((size_t)t->all.size, sizeof *t->awaited);
    if (!o->cards || (!t->job_ranks && !t->awaited))
        return error_set(err, HVD_NO_MEMORY, "no memory for %d ranks", t->all.size);
    struct card *own = &o->cards[t->all.rank];
    own->life = life_card_of_this_process();
    if (nudge)
        o->nudges = nudges_open(t->all.hosts == 1, env_text("NETWORK_INTERFACES"), &own->nudge);
    return HVD_OK;
}

static void report_death(void *transport, int rank) { transport_died(transport, rank, FATE_DIED); }
static void wake_engine(void *transport) { transport_wake(transport); }

static int watch_host(struct on_host *o, struct transport *t) {
    const struct comm *host = &t->layout.host;
    char who[TRANSPORT_WHO];
    HVD_TRY(life_open(&o->life, host->size, report_death, t));
    for (int i = 0; i < host->size; i++) {
        int rank = host->ranks[i];
        if (i == host->rank) continue;
        int code = life_add(o->life, &o->cards[rank].life, rank);
        /* the kernel can't report the death of any process */
        if (code == HVD_UNSUPPORTED) return code;
        if (code == HVD_RANK_DEAD) report_death(t, rank);
        if (code != HVD_NO_MEMORY) continue;
        transport_who(t, rank, who);
        error_set(&t->no_watch, code, "no file descriptor is left to watch %s", who);
    }
    return life_start(o->life);
}

static int start_nudges(struct on_host *o, struct transport *t) {
    size_t n = (size_t)t->all.size;
    struct nudge_card *cards = malloc(n * sizeof *cards);
    if (!cards) return HVD_NO_MEMORY;
    for (size_t i = 0; i < n; i++) cards[i] = o->cards[i].nudge;
    int code = nudges_start(o->nudges, cards, t->all.size, t->all.rank, wake_engine, t);
    free(cards);
    return code;
}

void on_host_unwatch(struct on_host *o) {
    life_close(o->life);
    o->life = NULL;
}

static void close_nudges(struct on_host *o) {
    nudges_close(o->nudges);
    o->nudges = NULL;
}

static int open_signs(struct on_host *o, struct transport *t, bool nudge, hvd_error *err) {
    HVD_TRY(open_cards(o, t, nudge, err));
    HVD_TRY(t->ops->gather(t, o->cards, sizeof *o->cards, err));
    t->cards = o->cards;
    if (t->layout.host.size > 1 && watch_host(o, t)) on_host_unwatch(o);
    if (o->nudges && start_nudges(o, t)) close_nudges(o);
    return HVD_OK;
}

int on_host_open(struct on_host *o, struct transport *t, const int *lowest,
                 const struct transport_config *config, hvd_error *err) {
    HVD_TRY(layout_open(&t->layout, &t->all, lowest, err));
    t->at = layout_topology(&t->layout, &t->all);
    HVD_TRY(open_window(o, t, config->window, err));
    /* In a window of all ranks, every message passes through a mailbox and rings a doorbell. */
    if (t->all.window)
        t->wakes = WAKES_MESSAGE;
    else if (!transport_rings(t))
        t->wakes = WAKES_NUDGE;
    return open_signs(o, t, config->nudge && t->wakes == WAKES_NUDGE, err);
}

void on_host_close(struct on_host *o, struct transport *t, bool clean) {
    /* seconds; limited, because a killed receiver makes no room in its mailbox */
    static const double TO_SEND = 5;
    /* end the threads of `life` and `nudges` first: their doorbell is in memory that is freed */
    on_host_unwatch(o);
    close_nudges(o);
    free(o->cards);
    free(t->awaited);
    o->cards = NULL;
    for (double until = clock_now() + TO_SEND; clean && host_waits(&o->host); clock_nap(1e-4))
        if (host_flush(&o->host, NULL) || clock_now() > until) break;
    host_close(&o->host);
    if (o->file >= 0) close(o->file);
    o->file = -1;
    layout_close(&t->layout);
}

bool on_host_reaches(const struct on_host *o, const struct transport *t, int to) {
    const struct layout *l = &t->layout;
    return l->host_of[to] == l->host_of[t->at.rank] && host_reaches(&o->host, l->local_of[to]);
}

int on_host_send(struct on_host *o, const struct transport *t, int to, const void *data,
                 size_t size, hvd_error *err) {
    return host_send(&o->host, t->layout.local_of[to], data, size, err);
}

int on_host_receive(struct on_host *o, const struct transport *t, struct message *message,
                    hvd_error *err) {
    int from;
    if (!o->host.window.ranks) return HVD_OK;
    HVD_TRY(host_flush(&o->host, err));
    HVD_TRY(host_receive(&o->host, &from, &message->data, &message->size, err));
    if (message->data) message->from = t->layout.host.ranks[from];
    return HVD_OK;
}
