/* Express: small collectives that come again and are waited for, without negotiation.
 *
 * Such a tensor gets a place; a use of its name is then a round. Where each rank has a host of its
 * own, express_hosts.c has the rounds of allreduces, and the stepping thread calls.
 *
 * Where all ranks share a window, a place is there: one word for all, and on each rank room for two
 * inputs. Each rank copies its input in and counts itself in the word. The rank that fills the round
 * settles it: all data is there and nobody can withdraw, so each rank takes of the inputs what it
 * needs. In an allreduce it adds all, in the order of ranks; of larger ones a chunk, and waits for
 * the sums of the others. A rank that has waited in vain for a full round closes it, and so does one
 * that submits the tensor to the engine. Nobody fills a closed round: all go to the engine, which
 * knows of stalls, deaths, joins and disagreement.
 *
 * What the engine decides comes in one order on all ranks, so they agree on places and rounds
 * without a message: each decision on the tensor opens a generation, whose rounds are counted from
 * 0. A rank that goes to the engine uses none of them before the next one. So in a generation every
 * rank has the same uses, and the data of two different uses never meets in a round. */
#ifndef HVDLITE_ENGINE_EXPRESS_H
#define HVDLITE_ENGINE_EXPRESS_H

#include "engine/execute.h"
#include "engine/tensors.h"

#include <stdatomic.h>

struct express_note;
struct message;
struct window;
struct transport;

struct express {
    struct window *window; /* NULL: no two ranks share one */
    bool by_hosts;         /* each rank has a host of its own; neither: all goes to the engine */
    struct transport *transport;
    const atomic_bool *failed; /* the engine has */
    int group;                 /* its number in the flight recorder */
    struct monitor monitor;    /* guards the names; tensors are added and places opened under it */
    struct map names;
    struct express_place *places;
    /* The stepping thread's: */
    size_t used; /* bytes of the window's room */
    bool fails;  /* there was no memory for a place */
    /* The same, by hosts: */
    struct executor *by;
    struct express_note *notes; /* of rounds to which this rank has not come */
    size_t coming;              /* rounds to which it has come, and which are not over */
    bool joined;                /* this rank comes to none */
    double due;                 /* when the first of them has waited too long */
    uint32_t nplaces;
    /* Any thread's: */
    atomic_bool opens; /* there is a place */
    atomic_bool over;  /* every rank has left: the engine does not see deaths any more */
    atomic_int silent; /* 1 + the local rank without sums for longer than the limit; 0: none */
};

/* by: does the accounts; it need not be ready yet. */
void express_open(struct express *x, struct transport *t, struct executor *by,
                  const atomic_bool *failed, int group);

/* Fails when a rank is silent in a round that can't end without it. The stepping thread. */
int express_check(const struct express *x, hvd_error *err);
void express_close(struct express *x);

/* All ranks bring the tensor, which they know, and wait for it. The stepping thread, in the order
 * of decisions. */
int express_agreed(struct express *x, const struct tensor *tensor, hvd_error *err);

/* Any thread. Does the collective with ranks that wait for it now, and completes it. False: submit it
 * to the engine. */
bool express_run(struct express *x, struct tensor *tensor);

/* tensors_add, for what goes to the engine. A tensor that may queue behind one of its name waits until no
 * other thread has that in a round; any other fails. */
int express_submit(struct express *x, struct tensors *tensors, struct tensor *tensor, bool *corked,
                   hvd_error *err);

/* ---- by hosts: the stepping thread ---- */

/* Before the tensor is reported to the coordinator. *comes: it is not, but in a round, which
 * completes it or, by express_take, gives it back. */
int express_come(struct express *x, struct tensor *tensor, double now, bool *comes, hvd_error *err);
/* This rank comes to no rounds until `joined` is false again. It has come to none. */
int express_join(struct express *x, double now, hvd_error *err);
bool express_is_message(const struct message *m);
/* Takes the message's data. *back: to be reported to the coordinator; NULL: none. */
int express_take(struct express *x, struct message *m, struct tensor **back, hvd_error *err);
/* Asks for what has not come for a while. Call it often. */
int express_ask(struct express *x, double now, hvd_error *err);
double express_sleep(const struct express *x, double now, double longest);

#endif
