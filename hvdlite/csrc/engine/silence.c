/* Finds ranks that send nothing, asks whether they run, and reports the tensors that need them. */
#include "engine/negotiate.h"

#include "negotiation/stall.h"
#include "transport/on_host.h"

#include <stdio.h>

static double lesser(double a, double b) { return a <= 0 || (b > 0 && b < a) ? b : a; }

/* The shortest limit for silence, in seconds; chosen, not measured. The limit for stalls may be
 * shorter, but on a busy machine an engine needs some time to answer. */
static const double LEAST = 1;

void silence_limits(struct negotiation *n, const struct options *options) {
    double stall = options->stall_failure;
    if (stall > 0 && stall < LEAST) stall = LEAST;
    double timeout = n->t->patience.timeout, either = lesser(stall, timeout);
    n->stall = options->stall_failure;
    n->watch.warning = options->stall_warning;
    n->watch.failure = n->t->silence = either;
    n->watch.quarter = lesser(options->stall_warning, either) / 4;
}

/* Sends an item directly to one rank, or to all other ranks (to = -1). Does not use the tree of the
 * negotiation, because the silent rank may be on the path. */
static int send_item(struct negotiation *n, int to, const struct wire_item *item, hvd_error *err) {
    struct wire_writer message = {0};
    int code = wire_put(&message, item, err);
    for (int r = 0; r < n->t->at.size && !code; r++)
        if (r == to || (to < 0 && r != n->t->at.rank))
            code = transport_send(n->t, r, message.data, message.size, err);
    wire_free(&message);
    return code;
}

static int send_one(struct negotiation *n, int to, enum wire_type type, hvd_error *err) {
    return send_item(n, to, &(struct wire_item){.type = type}, err);
}

int silence_answer(struct negotiation *n, int from, hvd_error *err) {
    return send_one(n, from, WIRE_ALIVE, err);
}

/* Writes "tensor 'x' and 3 more wait". Returns false if nothing waits. */
static bool waiting_text_of(const struct negotiation *n, char *text, size_t size) {
    char name[HVD_MAX_NAME] = "", others[40] = "";
    size_t count = tensors_oldest(n->tensors, name), more = count ? count - 1 : 0;
    const char *other = count || !n->coordinator ? NULL : coordinator_oldest(n->coordinator, &more);
    const struct tensor *message = count || other ? NULL : p2p_oldest(n->p2p);
    if (message) other = message->request.name;
    if (other) snprintf(name, sizeof name, "%s", other);
    if (more) snprintf(others, sizeof others, " and %zu more", more);
    bool sums = fast_window_awaits(n->fast) >= 0;
    if (!*name && sums)
        snprintf(text, size, "a small collective waits for its part of the sum");
    else if (*name)
        snprintf(text, size, "tensor '%s'%s wait%s", name, others, more ? "" : "s");
    else
        snprintf(text, size,
                 n->left ? "this rank has left and waits for the last messages"
                         : "this rank opens a group of ranks with it");
    return *name || sums || n->left;
}

/* Logs a warning. The coordinator also sends the warning to all ranks, because their tensors may
 * wait for the silent rank, too. */
static int warn(struct negotiation *n, int rank, const char *what, hvd_error *err) {
    struct wire_item item = {.type = WIRE_SILENT, .rank = rank};
    double silence = watch_silence(&n->watch, rank);
    char who[TRANSPORT_WHO];
    transport_who(n->t, rank, who);
    error_set(&item.error, HVD_OK,
              "%s has not answered for %.*f s, and %s. Is the process stopped, or its host lost?",
              who, silence < 1 ? 2 : 0, silence, what);
    silence_report(n, rank, item.error.text);
    return n->coordinator ? send_item(n, -1, &item, err) : HVD_OK;
}

void silence_report(struct negotiation *n, int rank, const char *text) {
    char what[HVD_MAX_NAME + 80];
    if (rank == n->t->at.rank) return; /* this rank was silent, but now it runs again */
    if (!n->coordinator && !waiting_text_of(n, what, sizeof what)) return;
    log_line(n->log, LOG_WARNING, "%s", text);
    flight_trouble(n->flight, text, false);
}

static int look_at(struct negotiation *n, int rank, bool waits, const char *what, hvd_error *err) {
    bool member = n->coordinator || n->tree.above[rank] || p2p_awaits(n->p2p, rank);
    bool needed = rank != n->t->at.rank && ((waits && member) || transport_awaits(n->t, rank));
    enum watch_finding found = watch_look(&n->watch, rank, needed);
    if (found == WATCH_FAILED) {
        n->lost_rank = rank;
        transport_dead(n->t, rank, FATE_SILENT, &n->lost);
        return *err = n->lost, HVD_RANK_DEAD;
    }
    /* the coordinator reports other ranks, to all ranks; other ranks report the coordinator */
    bool warns = n->coordinator || rank == COORDINATOR;
    if (found == WATCH_WARN && warns) HVD_TRY(warn(n, rank, what, err));
    return found == WATCH_FINE ? HVD_OK : send_one(n, rank, WIRE_ASK, err);
}

static void report_stall(void *arg, const char *text) {
    const struct negotiation *n = arg;
    log_line(n->log, LOG_WARNING,
             "%s. Do all ranks submit the same tensors? (To be warned earlier or later, "
             "set HVDLITE_STALL_CHECK_TIME_SECONDS)",
             text);
    flight_trouble(n->flight, text, false);
}

/* Logs that a send or receive waits. */
static void report_message(struct negotiation *n, const struct tensor *t) {
    char peer[24] = "any rank", text[HVD_MAX_NAME + 120];
    double waited = n->now - t->submitted;
    int other = t->request.root;
    if (other != P2P_ANY) snprintf(peer, sizeof peer, "rank %d", transport_job_rank(n->t, other));
    snprintf(text, sizeof text, "tensor '%s' has waited for %.*f s on rank %d: a %s %s %s",
             t->request.name, waited < 1 ? 2 : 0, waited, transport_job_rank(n->t, n->t->at.rank),
             kind_name(t->request.kind), t->request.kind == HVD_SEND ? "to" : "from", peer);
    report_stall(n, text);
}

int silence_look(struct negotiation *n, hvd_error *err) {
    if (n->bye || !watch_looks(&n->watch, n->now)) return HVD_OK;
    char what[HVD_MAX_NAME + 80];
    bool waits = waiting_text_of(n, what, sizeof what);
    for (int r = 0; r < n->t->at.size; r++) HVD_TRY(look_at(n, r, waits, what, err));
    if (n->coordinator)
        coordinator_stalled(n->coordinator, n->now, n->watch.silent, report_stall, n);
    const struct tensor *oldest = p2p_oldest(n->p2p);
    if (oldest && stall_warns(oldest->submitted, n->now, n->watch.warning, &n->reported))
        report_message(n, oldest);
    return p2p_expire(n->p2p, n->now, n->stall, n->watch.silent, err);
}

void silence_blame(const struct negotiation *n, hvd_error *why) {
    char who[TRANSPORT_WHO];
    for (int r = 0; r < n->watch.size; r++) {
        if (!n->watch.silent[r]) continue;
        transport_who(n->t, r, who);
        error_while(why, "%s did not answer", who);
        why->nblamed = 0;
        transport_blame(n->t, r, why);
        return;
    }
}
