#define _GNU_SOURCE /* sched_getaffinity */
#include "transport_mpi.h"

#include "bell.h"

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TAG = 0 };

/* A message on its way out: the copy lives until MPI has sent it. */
struct outgoing {
    struct outgoing *next;
    MPI_Request request;
    unsigned char data[];
};

struct mpi_transport {
    struct transport transport; /* first: a transport is its mpi_transport */
    MPI_Comm data, control;
    MPI_Request *requests; /* of the transfers under way, MPI_REQUEST_NULL where free */
    size_t nrequests;
    struct outgoing *outgoing;
    MPI_Request incoming; /* of the one message that is coming in */
    struct message arriving;
    struct bells *bells; /* [local rank], or only this rank's own */
    int own_bell;
    int *bell_of; /* [rank]: its bell, -1: not within reach */
};

static struct mpi_transport *self(struct transport *t) { return (struct mpi_transport *)t; }

static int check(int code, const char *call, hvd_error *err) {
    if (code == MPI_SUCCESS) return HVD_OK;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(code, text, &length);
    return error_set(err, HVD_TRANSPORT, "%s failed: %s", call, text);
}

#define TRY_MPI(call) HVD_TRY(check(call, #call, err))

/* ---- data ---- */

/* A free place among the requests. */
static int claim(struct mpi_transport *m, size_t *place, hvd_error *err) {
    for (*place = 0; *place < m->nrequests; ++*place)
        if (m->requests[*place] == MPI_REQUEST_NULL) return HVD_OK;
    size_t n = 2 * m->nrequests + 16;
    MPI_Request *requests = realloc(m->requests, n * sizeof *requests);
    if (!requests) return error_set(err, HVD_NO_MEMORY, "no memory for %zu MPI requests", n);
    for (size_t i = m->nrequests; i < n; i++) requests[i] = MPI_REQUEST_NULL;
    m->requests = requests;
    m->nrequests = n;
    return HVD_OK;
}

static int mpi_isend(struct transport *t, const void *data, size_t bytes, int to,
                     struct transfer *x, hvd_error *err) {
    struct mpi_transport *m = self(t);
    size_t place;
    HVD_TRY(claim(m, &place, err));
    x->handle[0] = place;
    TRY_MPI(MPI_Isend(data, (int)bytes, MPI_BYTE, to, TAG, m->data, &m->requests[place]));
    return HVD_OK;
}

static int mpi_irecv(struct transport *t, void *data, size_t bytes, int from, struct transfer *x,
                     hvd_error *err) {
    struct mpi_transport *m = self(t);
    size_t place;
    HVD_TRY(claim(m, &place, err));
    x->handle[0] = place;
    TRY_MPI(MPI_Irecv(data, (int)bytes, MPI_BYTE, from, TAG, m->data, &m->requests[place]));
    return HVD_OK;
}

static int mpi_test(struct transport *t, struct transfer *x, hvd_error *err) {
    int done = 0;
    TRY_MPI(MPI_Test(&self(t)->requests[x->handle[0]], &done, MPI_STATUS_IGNORE));
    if (done) x->active = false;
    return HVD_OK;
}

static void mpi_abandon(struct transport *t) {
    struct mpi_transport *m = self(t);
    for (size_t i = 0; i < m->nrequests; i++) {
        if (m->requests[i] == MPI_REQUEST_NULL) continue;
        MPI_Cancel(&m->requests[i]);
        MPI_Request_free(&m->requests[i]);
    }
}

/* ---- messages ---- */

static int release_sent(struct mpi_transport *m, hvd_error *err) {
    for (struct outgoing **at = &m->outgoing; *at;) {
        struct outgoing *o = *at;
        int done = 0;
        TRY_MPI(MPI_Test(&o->request, &done, MPI_STATUS_IGNORE));
        if (!done) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        free(o);
    }
    return HVD_OK;
}

static int mpi_send(struct transport *t, int to, const void *data, size_t size, hvd_error *err) {
    struct mpi_transport *m = self(t);
    HVD_TRY(release_sent(m, err));
    struct outgoing *o = malloc(sizeof *o + size);
    if (!o) return error_set(err, HVD_NO_MEMORY, "no memory for a message of %zu bytes", size);
    memcpy(o->data, data, size);
    int code = check(MPI_Isend(o->data, (int)size, MPI_BYTE, to, TAG, m->control, &o->request),
                     "MPI_Isend", err);
    if (code) {
        free(o);
        return code;
    }
    o->next = m->outgoing;
    m->outgoing = o;
    if (m->bell_of[to] >= 0) bell_ring(m->bells, m->bell_of[to]);
    return HVD_OK;
}

/* Starts to receive the next message, if there is one. */
static int match(struct mpi_transport *m, hvd_error *err) {
    int found = 0, bytes;
    MPI_Message handle;
    MPI_Status status;
    TRY_MPI(MPI_Improbe(MPI_ANY_SOURCE, TAG, m->control, &found, &handle, &status));
    if (!found) return HVD_OK;
    TRY_MPI(MPI_Get_count(&status, MPI_BYTE, &bytes));
    m->arriving = (struct message){
        .from = status.MPI_SOURCE, .size = (size_t)bytes, .data = malloc((size_t)bytes + 1)};
    if (!m->arriving.data)
        return error_set(err, HVD_NO_MEMORY, "no memory for a message of %d bytes", bytes);
    TRY_MPI(MPI_Imrecv(m->arriving.data, bytes, MPI_BYTE, &handle, &m->incoming));
    return HVD_OK;
}

static int mpi_receive(struct transport *t, struct message *message, hvd_error *err) {
    struct mpi_transport *m = self(t);
    if (m->outgoing) HVD_TRY(release_sent(m, err));
    if (!m->arriving.data) HVD_TRY(match(m, err));
    if (!m->arriving.data) return HVD_OK;
    int done = 0;
    TRY_MPI(MPI_Test(&m->incoming, &done, MPI_STATUS_IGNORE));
    if (!done) return HVD_OK;
    *message = m->arriving;
    m->arriving = (struct message){.from = -1};
    return HVD_OK;
}

static void mpi_wake(struct transport *t) { bell_ring(self(t)->bells, self(t)->own_bell); }

static unsigned mpi_listen(struct transport *t) {
    return bell_listen(self(t)->bells, self(t)->own_bell);
}

static void mpi_sleep(struct transport *t, unsigned ticket, double seconds) {
    struct mpi_transport *m = self(t);
    /* What MPI has not sent yet it sends only while it is called. */
    if (m->outgoing && seconds > 1e-3) seconds = 1e-3;
    bell_sleep(m->bells, m->own_bell, ticket, seconds);
}

/* ---- opening and closing ---- */

static int check_threads(hvd_error *err) {
    int initialized = 0, level = MPI_THREAD_SINGLE;
    TRY_MPI(MPI_Initialized(&initialized));
    if (!initialized)
        return error_set(err, HVD_NOT_INITIALIZED,
                         "MPI is not initialised: import mpi4py.MPI first");
    TRY_MPI(MPI_Query_thread(&level));
    if (level >= MPI_THREAD_SERIALIZED) return HVD_OK;
    return error_set(err, HVD_UNSUPPORTED,
                     "MPI was initialised without thread support (level %d): set "
                     "mpi4py.rc.thread_level = 'multiple' "
                     "before mpi4py.MPI is imported",
                     level);
}

static int find_topology(struct mpi_transport *m, MPI_Comm *local, hvd_error *err) {
    struct topology *at = &m->transport.at;
    MPI_Comm cross;
    TRY_MPI(MPI_Comm_rank(m->control, &at->rank));
    TRY_MPI(MPI_Comm_size(m->control, &at->size));
    TRY_MPI(MPI_Comm_split_type(m->control, MPI_COMM_TYPE_SHARED, at->rank, MPI_INFO_NULL, local));
    TRY_MPI(MPI_Comm_rank(*local, &at->local_rank));
    TRY_MPI(MPI_Comm_size(*local, &at->local_size));
    TRY_MPI(MPI_Comm_split(m->control, at->local_rank, at->rank, &cross));
    TRY_MPI(MPI_Comm_rank(cross, &at->cross_rank));
    TRY_MPI(MPI_Comm_size(cross, &at->cross_size));
    TRY_MPI(MPI_Comm_free(&cross));
    return HVD_OK;
}

/* All ranks of the host share bells, or none does. */
static int share_bells(struct mpi_transport *m, MPI_Comm local, hvd_error *err) {
    struct topology *at = &m->transport.at;
    char name[BELL_NAME] = "";
    hvd_error ignored;
    if (at->local_rank == 0 && bells_create(&m->bells, at->local_size, name, &ignored)) name[0] = 0;
    TRY_MPI(MPI_Bcast(name, sizeof name, MPI_CHAR, 0, local));
    if (at->local_rank && *name) bells_open(&m->bells, at->local_size, name, &ignored);
    int mapped = m->bells != NULL, all = 0;
    TRY_MPI(MPI_Allreduce(&mapped, &all, 1, MPI_INT, MPI_MIN, local));
    if (at->local_rank == 0 && *name) bells_unlink(name);
    if (all) return HVD_OK;
    bells_close(m->bells);
    m->bells = NULL;
    return HVD_OK;
}

/* Which of all ranks are within reach of the shared bells. */
static int find_bells(struct mpi_transport *m, MPI_Comm local, hvd_error *err) {
    struct topology *at = &m->transport.at;
    size_t n = (size_t)at->size;
    int *ranks = malloc((size_t)at->local_size * sizeof *ranks);
    m->bell_of = malloc(n * sizeof *m->bell_of);
    if (!ranks || !m->bell_of) {
        free(ranks);
        return error_set(err, HVD_NO_MEMORY, "no memory for %zu ranks", n);
    }
    for (size_t i = 0; i < n; i++) m->bell_of[i] = -1;
    int code =
        check(MPI_Allgather(&at->rank, 1, MPI_INT, ranks, 1, MPI_INT, local), "MPI_Allgather", err);
    for (int i = 0; !code && m->bells && i < at->local_size; i++) m->bell_of[ranks[i]] = i;
    free(ranks);
    m->own_bell = m->bells ? at->local_rank : 0;
    if (!code && !m->bells && !(m->bells = bells_private(1)))
        return error_set(err, HVD_NO_MEMORY, "no memory for a bell");
    return code;
}

static int open_bells(struct mpi_transport *m, MPI_Comm local, hvd_error *err) {
    HVD_TRY(share_bells(m, local, err));
    HVD_TRY(find_bells(m, local, err));
    bool all_within_reach = true;
    for (int i = 0; i < m->transport.at.size; i++) all_within_reach &= m->bell_of[i] >= 0;
    m->transport.longest_nap = all_within_reach ? 1.0 : 10e-3;
    return HVD_OK;
}

static bool cores_for_all(int local_size) {
    cpu_set_t own;
    bool bound = sched_getaffinity(0, sizeof own, &own) == 0 && CPU_COUNT(&own) < 2;
    return !bound && sysconf(_SC_NPROCESSORS_ONLN) >= local_size;
}

static int open_all(struct mpi_transport *m, MPI_Comm comm, hvd_error *err) {
    MPI_Comm local;
    HVD_TRY(check_threads(err));
    TRY_MPI(MPI_Comm_dup(comm, &m->data));
    TRY_MPI(MPI_Comm_dup(comm, &m->control));
    TRY_MPI(MPI_Comm_set_errhandler(m->data, MPI_ERRORS_RETURN));
    TRY_MPI(MPI_Comm_set_errhandler(m->control, MPI_ERRORS_RETURN));
    HVD_TRY(find_topology(m, &local, err));
    HVD_TRY(open_bells(m, local, err));
    TRY_MPI(MPI_Comm_free(&local));
    m->transport.may_spin = cores_for_all(m->transport.at.local_size);
    return HVD_OK;
}

static void mpi_close(struct transport *t, bool clean) {
    struct mpi_transport *m = self(t);
    /* Unclean: MPI may still read the copies, and freeing a communicator would wait for dead ranks.
     */
    for (struct outgoing *o = clean ? m->outgoing : NULL, *next; o; o = next) {
        next = o->next;
        MPI_Wait(&o->request, MPI_STATUS_IGNORE);
        free(o);
    }
    if (clean) {
        MPI_Comm_free(&m->data);
        MPI_Comm_free(&m->control);
    }
    bells_close(m->bells);
    free(m->bell_of);
    free(m->requests);
    free(m);
}

static const struct transport_ops MPI_OPS = {
    .isend = mpi_isend,
    .irecv = mpi_irecv,
    .test = mpi_test,
    .send = mpi_send,
    .receive = mpi_receive,
    .wake = mpi_wake,
    .listen = mpi_listen,
    .sleep = mpi_sleep,
    .abandon = mpi_abandon,
    .close = mpi_close,
};

int transport_mpi_open(struct transport **out, const void *comm, hvd_error *err) {
    struct mpi_transport *m = calloc(1, sizeof *m);
    if (!m) return error_set(err, HVD_NO_MEMORY, "no memory for the transport");
    m->transport.ops = &MPI_OPS;
    m->incoming = MPI_REQUEST_NULL;
    m->arriving.from = -1;
    MPI_Comm handle;
    memcpy(&handle, comm, sizeof handle);
    int code = open_all(m, handle, err);
    if (code)
        mpi_close(&m->transport, false);
    else
        *out = &m->transport;
    return code;
}

int transport_mpi_agree(struct transport *t, int code, hvd_error *err) {
    int failed = code ? t->at.rank : t->at.size, first;
    TRY_MPI(MPI_Allreduce(&failed, &first, 1, MPI_INT, MPI_MIN, self(t)->control));
    if (code || first == t->at.size) return code;
    return error_set(err, HVD_INVALID, "rank %d could not start: its error says why", first);
}

void transport_mpi_built_for(char *text, size_t size) {
#if defined(OMPI_MAJOR_VERSION)
    snprintf(text, size, "Open MPI %d.%d.%d", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION,
             OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
    snprintf(text, size, "MPICH %s", MPICH_VERSION);
#else
    snprintf(text, size, "MPI %d.%d", MPI_VERSION, MPI_SUBVERSION);
#endif
}

void transport_mpi_loaded(char *text, size_t size) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(version, &length);
    version[strcspn(version, "\n,")] = 0;
    snprintf(text, size, "%s", version);
}
