/* Messages between the ranks of one host, through their mailboxes. */
#include "shm/mailbox.h"
#include "shm/shmem.h"

#include <stdlib.h>

/* The mailboxes that a rank reads. */
struct letters {
    struct window_line written; /* number of messages written to these mailboxes */
    struct mailbox from[];      /* by local rank */
};

static size_t letters_bytes(int n) {
    return sizeof(struct letters) + (size_t)n * sizeof(struct mailbox);
}

size_t host_bytes(int n) { return window_bytes(n) + (size_t)n * letters_bytes(n); }

static struct letters *letters_to(const struct host *h, int to) {
    char *after = (char *)h->window.ranks + window_bytes(h->window.n);
    return (struct letters *)(void *)(after + (size_t)to * letters_bytes(h->window.n));
}

int host_open(struct host *h, void *memory, int n, int self, hvd_error *err) {
    *h = (struct host){0};
    window_init(&h->window, memory, n, self);
    cpus_publish(&h->window);
    h->out = calloc((size_t)n, sizeof *h->out);
    h->in = calloc((size_t)n, sizeof *h->in);
    if (h->out && h->in) return HVD_OK;
    host_close(h);
    return error_set(err, HVD_NO_MEMORY, "no memory for the mailboxes of %d ranks", n);
}

void host_close(struct host *h) {
    for (int i = 0; i < h->window.n; i++) {
        if (h->out) mail_out_free(&h->out[i]);
        if (h->in) mail_in_free(&h->in[i]);
    }
    free(h->out);
    free(h->in);
    shmem_close(h->window.ranks, host_bytes(h->window.n));
    *h = (struct host){0};
}

bool host_reaches(const struct host *h, int local_rank) {
    return h->window.ranks && h->window.self != local_rank;
}

static struct mailbox *box_to(struct host *h, int to) {
    return &letters_to(h, to)->from[h->window.self];
}

/* Tells local rank `to` that this rank has written to a mailbox of that rank. */
static void announce_message(struct host *h, int to) {
    atomic_fetch_add_explicit(&letters_to(h, to)->written.rounds, 1, memory_order_release);
    doorbell_ring(&h->window.ranks[to].doorbell);
}

int host_send(struct host *h, int to, const void *data, size_t size, hvd_error *err) {
    HVD_TRY(mailbox_send(box_to(h, to), &h->out[to], data, size, err));
    announce_message(h, to);
    return HVD_OK;
}

int host_receive(struct host *h, int *from, void **data, size_t *size, hvd_error *err) {
    struct letters *letters = letters_to(h, h->window.self);
    uint64_t written = atomic_load_explicit(&letters->written.rounds, memory_order_acquire);
    *data = NULL;
    if (written == h->seen) return HVD_OK;
    for (*from = 0; *from < h->window.n; ++*from) {
        if (*from == h->window.self) continue;
        HVD_TRY(mailbox_receive(&letters->from[*from], &h->in[*from], data, size, err));
        if (*data) return HVD_OK;
    }
    h->seen = written;
    return HVD_OK;
}

int host_flush(struct host *h, hvd_error *err) {
    for (int i = 0; i < h->window.n; i++) {
        if (!h->out[i].size) continue;
        HVD_TRY(mailbox_flush(box_to(h, i), &h->out[i], err));
        announce_message(h, i);
    }
    return HVD_OK;
}

bool host_waits(const struct host *h) {
    bool waits = false;
    for (int i = 0; i < h->window.n; i++) waits |= h->out[i].size != 0;
    return waits;
}
