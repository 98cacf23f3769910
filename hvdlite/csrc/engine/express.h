/* Express: small allreduces that come again and are waited for, without negotiation.
 *
 * Where all ranks share a window, such a tensor gets a place there: one word for all, and on each
 * rank room for two inputs. A use of its name is then a round. Each rank copies its input in and
 * counts itself in the word. The rank that fills the round settles it: all data is there and nobody
 * can withdraw, so each rank adds all inputs in the order of ranks and waits for nobody. A rank that
 * has waited in vain closes the round, and so does one that submits the tensor to the engine. Nobody
 * fills a closed round: all go to the engine, which knows of stalls, deaths, joins and disagreement.
 *
 * What the engine decides comes in one order on all ranks, so they agree on places and rounds
 * without a message: each decision on the tensor opens a generation, whose rounds are counted from
 * 0. A rank that goes to the engine uses none of them before the next one. So in a generation every
 * rank has the same uses, and the data of two different uses never meets in a round. */
#ifndef HVDLITE_ENGINE_EXPRESS_H
#define HVDLITE_ENGINE_EXPRESS_H

#include "engine/tensors.h"
#include "transport/wait.h"

#include <stdatomic.h>

#define EXPRESS_BATCHES ((uint64_t)1 << 62) /* the least number of a batch */

struct window;

struct express {
    struct window *window;  /* NULL: all goes to the engine */
    struct monitor monitor; /* guards the names */
    struct map names;
    struct express_place *places;
    size_t used;       /* bytes of the window's room; the stepping thread's */
    atomic_bool opens; /* there is a place */
};

/* window: of all ranks of the group, or NULL. */
void express_open(struct express *x, struct window *window);
void express_close(struct express *x);

/* All ranks bring the tensor, which they know, and wait for it. The stepping thread, in the order
 * of decisions. */
void express_agreed(struct express *x, const struct tensor *tensor);

/* Any thread. Reduces the tensor into its output; returns the batch's number, unlike those of the
 * engine and, for this tensor, equal on all ranks. 0: submit it to the engine. */
uint64_t express_try(struct express *x, const struct tensor *tensor, struct wait_policy policy);

/* Before a tensor is added to the engine's table, on any thread. Fails if another thread has one of
 * its name under way here. */
int express_withdraw(struct express *x, const struct tensor *tensor, hvd_error *err);

#endif
