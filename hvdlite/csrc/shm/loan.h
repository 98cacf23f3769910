/* Loans: the borrower copies memory of another process, the lender, of the same user and host.
 *
 * The kernel copies the data directly (process_vm_readv). A loan names the lender by its process
 * id. In containers with separate process ids, the id may belong to another process, so a loan also
 * has a cookie: a random number in the lender's memory. The lender must not change the memory until
 * the borrower has reported the end; a borrower that gets no answer to this report must not use the
 * copy. Any thread. */
#ifndef HVDLITE_SHM_LOAN_H
#define HVDLITE_SHM_LOAN_H

#include <stddef.h>
#include <stdint.h>

struct loan {
    int64_t pid;
    uint64_t memory, cookie_at; /* addresses in the lender */
    uint64_t cookie;
};

/* Returns a random cookie; 0: no loan with this cookie can be read. */
uint64_t loan_cookie(void);
/* cookie: from loan_cookie; it must exist as long as the loan. */
struct loan loan_of(const void *memory, const uint64_t *cookie);

enum loan_end {
    LOAN_READ,
    LOAN_FAILED,   /* this part of the memory can't be read */
    LOAN_FORBIDDEN /* no memory of the lender can be read */
};

/* Copies bytes of the loan to `to`. Unless it returns LOAN_READ, `to` has undefined contents. */
enum loan_end loan_read(const struct loan *l, size_t offset, void *to, size_t bytes);

#endif
