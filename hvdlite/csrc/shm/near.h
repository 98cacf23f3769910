/* How a rank passes long data to another rank of its host: as a loan, or in a bounce buffer.
 *
 * Loan: the borrower copies memory of another process of the same user, the lender. The kernel
 * copies the data directly (process_vm_readv). A loan names the lender by its process id. In
 * containers with separate process ids, the id may belong to another process, so a loan also has a
 * cookie: a random number in the lender's memory. The lender must not change the memory until the
 * borrower has reported the end; a borrower that gets no answer to this report must not use the
 * copy. Any thread.
 *
 * Bounce buffer: memory of the sender; the receiver maps it. The sender fills a free slot and sends
 * the slot's number; the receiver copies the data and sends a message that the slot is free. The
 * caller owns the struct; one thread at a time. */
#ifndef HVDLITE_SHM_NEAR_H
#define HVDLITE_SHM_NEAR_H

#include "shm/shmem.h"

/* ---- loans ---- */

struct loan {
    int64_t pid;
    uint64_t memory, cookie_at; /* addresses in the lender */
    uint64_t cookie;
};

/* Returns a random number; 0: there is none, and no process can read memory lent with cookie 0. */
uint64_t loan_cookie(void);
/* *cookie: a value of loan_cookie; it must stay in memory as long as the loan is read. */
struct loan loan_of(const void *memory, const uint64_t *cookie);

enum loan_end {
    LOAN_READ,
    LOAN_FAILED,   /* this part of the memory can't be read */
    LOAN_FORBIDDEN /* no memory of the lender can be read */
};

/* Copies bytes of the loan to `to`. Unless it returns LOAN_READ, `to` has undefined contents. */
enum loan_end loan_read(const struct loan *l, size_t offset, void *to, size_t bytes);

/* ---- bounce buffers ---- */

/* Chosen, not measured. With two or more slots, the sender fills one slot while the receiver reads
 * another; `busy` has bits for 32 slots. A pair of ranks uses up to 1 MiB in each direction. */
enum { BOUNCE_SLOTS = 4, BOUNCE_SLOT = 256 << 10 };

/* Zeroed: there is no bounce buffer. */
struct bounce {
    char *memory;  /* NULL: no bounce buffer */
    int file;      /* descriptor of the memory in the sender; 0: none */
    bool failed;   /* memory was short: do not try to make a bounce buffer again */
    unsigned busy; /* in the sender: one bit for each slot in use */
};

/* The sender calls bounce_make, which returns the buffer's address; "": there is none. The receiver
 * calls bounce_map, which returns false on failure. Without a buffer, data must go in messages. */
void bounce_make(struct bounce *b, char address[SHMEM_ADDRESS]);
bool bounce_map(struct bounce *b, const char *address);
void bounce_close(struct bounce *b);

int bounce_take(struct bounce *b); /* takes a free slot; -1: no slot is free */
static inline char *bounce_slot(const struct bounce *b, int slot) {
    return b->memory + (size_t)slot * BOUNCE_SLOT;
}

#endif
