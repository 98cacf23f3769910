#include "collectives/window_pass.h"

/* A step of a pass: each stage works on a different round. */
struct step {
    const struct pass *p;
    const struct stage *stages;
    size_t n, number;
    struct cursor *next; /* by stage: the position in the tensors after this step */
};

/* Step t does stage s of round t - s. Returns whether there is such a round. */
static bool has_round(const struct step *s, size_t stage) {
    return s->number >= stage && s->number - stage < s->p->rounds;
}

static void do_part(const void *arg, int part, int parts) {
    const struct step *s = arg;
    for (size_t i = 0; i < s->n; i++) {
        struct cursor c = s->p->at[i];
        if (!has_round(s, i)) continue;
        s->stages[i].work(s->p, s->number - i, &c, part, parts);
        if (part == 0) s->next[i] = c;
    }
}

/* Does a step with helper threads. They do the work of all stages at once, after all waits, because
 * handing over work to threads costs some microseconds. */
static int do_together(struct pass *p, struct step s, hvd_error *err) {
    struct cursor next[sizeof p->at / sizeof *p->at];
    s.next = next;
    for (size_t i = 0; i < s.n; i++)
        if (has_round(&s, i)) HVD_TRY(s.stages[i].await(p, s.number - i, err));
    helpers_run(comm_helpers(p->comm), do_part, &s);
    for (size_t i = 0; i < s.n; i++) {
        if (!has_round(&s, i)) continue;
        p->at[i] = next[i];
        s.stages[i].done(p, s.number - i);
    }
    return HVD_OK;
}

/* Does a step with one thread, which can work on one stage while the next stage must still wait. */
static int do_alone(struct pass *p, struct step s, hvd_error *err) {
    for (size_t i = 0; i < s.n; i++) {
        if (!has_round(&s, i)) continue;
        size_t round = s.number - i;
        HVD_TRY(s.stages[i].await(p, round, err));
        s.stages[i].work(p, round, &p->at[i], 0, 1);
        s.stages[i].done(p, round);
    }
    return HVD_OK;
}

int pass_run(struct pass *p, const struct stage *stages, size_t n, size_t bytes, hvd_error *err) {
    struct helpers *helpers = comm_helpers(p->comm);
    int code = HVD_OK, parts = helpers_begin(helpers, bytes);
    for (size_t step = 0; !code && step + 1 < p->rounds + n; step++)
        code =
            (parts > 1 ? do_together : do_alone)(p, (struct step){p, stages, n, step, NULL}, err);
    helpers_end(helpers, parts);
    if (!code) p->w->rounds += p->rounds;
    return code;
}
