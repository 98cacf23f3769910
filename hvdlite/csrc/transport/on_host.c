#include "transport/on_host.h"

#include "base/clock.h"
#include "shm/shmem.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What each rank tells about the memory of its host. */
struct mapped {
    bool mapped, wanted;
};

/* Tells whether all ranks of this host have mapped the memory, and all ranks of all hosts. */
static int compare(struct transport *t, struct mapped own, bool *here, hvd_error *err) {
    struct mapped *of = transport_gather(t, &own, sizeof own, err);
    if (!of) return err->code;
    int wanted = 0;
    *here = t->layout.windows = true;
    for (int r = 0; r < t->all.size; r++) {
        bool local = t->layout.host_of[r] == t->layout.host_of[t->all.rank];
        t->layout.windows &= of[r].mapped;
        *here &= of[r].mapped || !local;
        wanted += local && of[r].wanted;
    }
    free(of);
    if (t->at.local_rank == 0 && wanted && wanted < t->layout.host.size)
        error_set(&t->no_window, HVD_INVALID,
                  "HVDLITE_WINDOW is 0 on some ranks of this host, not on all");
    return HVD_OK;
}

/* All ranks of the host map the memory that its leader makes, or none does. */
static int share_memory(struct on_host *o, struct transport *t, bool wanted, void **memory,
                        hvd_error *err) {
    size_t bytes = window_bytes(t->at.local_size);
    char own[SHMEM_ADDRESS] = "";
    if (t->at.local_rank == 0 && wanted && !shmem_make(bytes, &o->file, &t->no_window))
        shmem_address(o->file, own);
    char (*addresses)[SHMEM_ADDRESS] = transport_gather(t, own, sizeof own, err);
    if (!addresses) return err->code;
    const char *address = addresses[t->layout.host.ranks[0]];
    if (wanted && *address) shmem_map(memory, bytes, true, address, &t->no_window);
    free(addresses);
    bool here = false;
    int code = compare(t, (struct mapped){*memory != NULL, wanted}, &here, err);
    if (here) return code;
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

static int open_signs(struct on_host *o, struct transport *t, bool nudge, hvd_error *err) {
    HVD_TRY(signs_open(&o->signs, t, nudge, err));
    HVD_TRY(t->ops->gather(t, o->signs.cards, sizeof *o->signs.cards, err));
    signs_start(&o->signs, t);
    return HVD_OK;
}

int on_host_open(struct on_host *o, struct transport *t, const int *lowest, bool window, bool nudge,
                 hvd_error *err) {
    HVD_TRY(layout_open(&t->layout, &t->all, lowest, err));
    t->at = layout_topology(&t->layout, &t->all);
    HVD_TRY(open_window(o, t, window, err));
    /* All ranks are on this host: every message passes through a mailbox, and rings. */
    t->rings = t->all.window != NULL;
    return open_signs(o, t, nudge && !t->rings, err);
}

void on_host_close(struct on_host *o, struct transport *t, bool clean) {
    signs_close(&o->signs); /* first: they ring the doorbell */
    while (clean && host_waits(&o->host) && !host_flush(&o->host, NULL)) clock_nap(1e-4);
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
