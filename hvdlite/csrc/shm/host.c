#include "shm/host.h"

#include "shm/shmem.h"

#include <stdlib.h>

enum { LEADER = 0 };

int host_open(struct host *h, void *memory, int n, int self, hvd_error *err) {
    *h = (struct host){.bytes = window_bytes(n)};
    window_init(&h->window, memory, n, self);
    h->out = calloc((size_t)n, sizeof *h->out);
    h->in = calloc((size_t)n, sizeof *h->in);
    if (h->out && h->in) return HVD_OK;
    host_close(h);
    return error_set(err, HVD_NO_MEMORY, "no memory for the mail of %d ranks", n);
}

void host_close(struct host *h) {
    for (int i = 0; i < h->window.n; i++) {
        if (h->out) mail_out_free(&h->out[i]);
        if (h->in) mail_in_free(&h->in[i]);
    }
    free(h->out);
    free(h->in);
    shmem_close(h->window.ranks, h->bytes);
    *h = (struct host){0};
}

bool host_reaches(const struct host *h, int local_rank) {
    return h->window.ranks && (h->window.self == LEADER) != (local_rank == LEADER);
}

static struct mailbox *box_to(struct host *h, int to) {
    return to == LEADER ? &window_self(&h->window)->to_leader : &h->window.ranks[to].from_leader;
}

static struct mailbox *box_from(struct host *h, int from) {
    return from == LEADER ? &window_self(&h->window)->from_leader
                          : &h->window.ranks[from].to_leader;
}

int host_send(struct host *h, int to, const void *data, size_t size, hvd_error *err) {
    HVD_TRY(mailbox_send(box_to(h, to), &h->out[to], data, size, err));
    doorbell_ring(&h->window.ranks[to].doorbell);
    return HVD_OK;
}

int host_receive(struct host *h, int *from, void **data, size_t *size, hvd_error *err) {
    *data = NULL;
    int last = h->window.self == LEADER ? h->window.n - 1 : LEADER;
    for (*from = last ? 1 : LEADER; *from <= last && host_reaches(h, *from); ++*from) {
        HVD_TRY(mailbox_receive(box_from(h, *from), &h->in[*from], data, size, err));
        if (*data) return HVD_OK;
    }
    return HVD_OK;
}

int host_flush(struct host *h, hvd_error *err) {
    for (int i = 0; i < h->window.n; i++) {
        if (!h->out[i].size) continue;
        HVD_TRY(mailbox_flush(box_to(h, i), &h->out[i], err));
        doorbell_ring(&h->window.ranks[i].doorbell);
    }
    return HVD_OK;
}

bool host_waits(const struct host *h) {
    bool waits = false;
    for (int i = 0; i < h->window.n; i++) waits |= h->out[i].size != 0;
    return waits;
}
