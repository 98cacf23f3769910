#include "transport/transport_mpi.h"

#include "base/os.h"
#include "transport/on_host.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TAG = 0 };

/* A message that is being sent, and the copy that MPI reads. */
struct outgoing {
    struct outgoing *next;
    MPI_Request request;
    unsigned char data[];
};

struct mpi_transport {
    struct transport transport; /* first field, because self() casts its address */
    MPI_Comm data, control;
    MPI_Request *requests; /* the transfers' requests; MPI_REQUEST_NULL: free */
    size_t nrequests;
    struct outgoing *outgoing, **last; /* the oldest first */
    MPI_Request incoming;              /* request of the only message that is arriving */
    struct message arriving;
    struct on_host shm;
};

static struct mpi_transport *self(struct transport *t) { return (struct mpi_transport *)t; }

/* Turns an MPI error code into an error. `call`: source text of the call; the error shows the name
 * of the called function. t: NULL if the call does not concern `peer`. */
static int check_mpi(const struct transport *t, int peer, int code, const char *call,
                     hvd_error *err) {
    if (code == MPI_SUCCESS) return HVD_OK;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(code, text, &length);
    error_set(err, HVD_TRANSPORT, "%.*s failed: %s", (int)strcspn(call, "("), call, text);
    return t ? error_while(err, "exchanging data with rank %d", transport_job_rank(t, peer))
             : HVD_TRANSPORT;
}

#define TRY_MPI(call) HVD_TRY(check_mpi(NULL, 0, call, #call, err))
#define TRY_PEER(peer, call) HVD_TRY(check_mpi(t, peer, call, #call, err))

/* ---- data ---- */

/* Finds a free request. The transfer stores the request's index and not the request's address,
 * because growing the array moves the requests. */
static int claim_request(struct mpi_transport *m, struct transfer *x, MPI_Request **out,
                         hvd_error *err) {
    size_t i = 0, n = 2 * m->nrequests + 16;
    while (i < m->nrequests && m->requests[i] != MPI_REQUEST_NULL) i++;
    if (i == m->nrequests) {
        MPI_Request *requests = realloc(m->requests, n * sizeof *requests);
        if (!requests) return error_set(err, HVD_NO_MEMORY, "no memory for %zu MPI requests", n);
        for (size_t k = i; k < n; k++) requests[k] = MPI_REQUEST_NULL;
        m->requests = requests;
        m->nrequests = n;
    }
    x->handle[0] = i;
    *out = &m->requests[i];
    return HVD_OK;
}

static int mpi_isend(struct transport *t, const void *data, size_t bytes, int to,
                     struct transfer *x, hvd_error *err) {
    MPI_Request *request = NULL;
    HVD_TRY(claim_request(self(t), x, &request, err));
    TRY_PEER(to, MPI_Isend(data, (int)bytes, MPI_BYTE, to, TAG, self(t)->data, request));
    return HVD_OK;
}

static int mpi_irecv(struct transport *t, void *data, size_t bytes, int from, struct transfer *x,
                     hvd_error *err) {
    MPI_Request *request = NULL;
    HVD_TRY(claim_request(self(t), x, &request, err));
    TRY_PEER(from, MPI_Irecv(data, (int)bytes, MPI_BYTE, from, TAG, self(t)->data, request));
    return HVD_OK;
}

static int mpi_test(struct transport *t, struct transfer *x, hvd_error *err) {
    int done = 0;
    MPI_Request *request = &self(t)->requests[x->handle[0]];
    TRY_PEER(x->peer, MPI_Test(request, &done, MPI_STATUS_IGNORE));
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

/* Frees messages that have been sent, the oldest first. Stops at the first message that has not
 * been sent, because thousands of messages may wait for a stopped rank. */
static int release_sent(struct mpi_transport *m, hvd_error *err) {
    for (struct outgoing *o; (o = m->outgoing);) {
        int done = 0;
        TRY_MPI(MPI_Test(&o->request, &done, MPI_STATUS_IGNORE));
        if (!done) return HVD_OK;
        m->outgoing = o->next;
        free(o);
    }
    return HVD_OK;
}

static int send_by_mpi(struct mpi_transport *m, int to, const void *data, size_t size,
                       hvd_error *err) {
    struct outgoing *o = malloc(sizeof *o + size);
    if (!o) return error_set(err, HVD_NO_MEMORY, "no memory for a message of %zu bytes", size);
    memcpy(o->data, data, size);
    int code = MPI_Isend(o->data, (int)size, MPI_BYTE, to, TAG, m->control, &o->request);
    code = check_mpi(&m->transport, to, code, "MPI_Isend", err);
    if (code) {
        free(o);
        return code;
    }
    o->next = NULL;
    *(m->outgoing ? m->last : &m->outgoing) = o;
    m->last = &o->next;
    return HVD_OK;
}

static int mpi_send(struct transport *t, int to, const void *data, size_t size, hvd_error *err) {
    struct mpi_transport *m = self(t);
    if (on_host_reaches(&m->shm, t, to)) return on_host_send(&m->shm, t, to, data, size, err);
    HVD_TRY(send_by_mpi(m, to, data, size, err));
    nudges_send(m->shm.nudges, to, clock_now());
    return HVD_OK;
}

/* Starts receiving the next message, if there is one. */
static int start_receive(struct mpi_transport *m, hvd_error *err) {
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

static int receive_by_mpi(struct mpi_transport *m, struct message *message, hvd_error *err) {
    if (m->outgoing) HVD_TRY(release_sent(m, err));
    if (!m->arriving.data) HVD_TRY(start_receive(m, err));
    if (!m->arriving.data) return HVD_OK;
    int done = 0;
    TRY_MPI(MPI_Test(&m->incoming, &done, MPI_STATUS_IGNORE));
    if (!done) return HVD_OK;
    *message = m->arriving;
    m->arriving = (struct message){.from = -1};
    nudges_heard(m->shm.nudges, message->from, clock_now());
    return HVD_OK;
}

static int mpi_receive(struct transport *t, struct message *message, hvd_error *err) {
    struct mpi_transport *m = self(t);
    HVD_TRY(on_host_receive(&m->shm, t, message, err));
    return message->data || t->all.window ? HVD_OK : receive_by_mpi(m, message, err);
}

static void mpi_wake(struct transport *t) { doorbell_ring(self(t)->shm.doorbell); }
static unsigned mpi_listen(struct transport *t) { return doorbell_listen(self(t)->shm.doorbell); }

/* Returns true while messages wait to be sent, because MPI sends only while it is called, and no
 * doorbell rings when a mailbox has room again. */
static bool mpi_polls(struct transport *t) {
    if (!t->all.window) t->wakes = nudges_missing(self(t)->shm.nudges) ? WAKES_POLL : WAKES_NUDGE;
    return self(t)->outgoing || host_waits(&self(t)->shm.host);
}

static void mpi_sleep(struct transport *t, unsigned ticket, double seconds) {
    doorbell_sleep(self(t)->shm.doorbell, ticket, seconds);
}

/* ---- opening and closing ---- */

/* Fails unless MPI is initialized and the engine's thread may call MPI. */
static int check_ready(hvd_error *err) {
    int initialized = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&initialized);
    if (!initialized)
        return error_set(err, HVD_NOT_INITIALIZED, "MPI is not initialized: import mpi4py.MPI");
    MPI_Query_thread(&level);
    if (level >= MPI_THREAD_SERIALIZED) return HVD_OK;
    return error_set(err, HVD_UNSUPPORTED,
                     "MPI was initialized with MPI_THREAD_%s, and hvdlite's own thread needs "
                     "MPI_THREAD_MULTIPLE: set mpi4py.rc.thread_level = 'multiple' before "
                     "mpi4py.MPI is imported, or call MPI.Init_thread(MPI.THREAD_MULTIPLE)",
                     level == MPI_THREAD_SINGLE ? "SINGLE" : "FUNNELED");
}

static int mpi_gather(struct transport *t, void *all, size_t each, hvd_error *err) {
    TRY_MPI(MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, all, (int)each, MPI_BYTE, self(t)->control));
    return HVD_OK;
}

/* Returns for each rank the lowest rank of its host. */
static int find_hosts(struct mpi_transport *m, int **lowest, hvd_error *err) {
    struct comm *all = &m->transport.all;
    all->transport = &m->transport;
    TRY_MPI(MPI_Comm_rank(m->control, &all->rank));
    TRY_MPI(MPI_Comm_size(m->control, &all->size));
    MPI_Comm local;
    TRY_MPI(
        MPI_Comm_split_type(m->control, MPI_COMM_TYPE_SHARED, all->rank, MPI_INFO_NULL, &local));
    int own = all->rank, code = MPI_Bcast(&own, 1, MPI_INT, 0, local);
    TRY_MPI(MPI_Comm_free(&local));
    HVD_TRY(check_mpi(NULL, 0, code, "MPI_Bcast", err));
    *lowest = transport_gather(&m->transport, &own, sizeof own, err);
    return *lowest ? HVD_OK : err->code;
}

static int open_all(struct mpi_transport *m, MPI_Comm comm, const struct transport_config *config,
                    hvd_error *err) {
    HVD_TRY(check_ready(err));
    TRY_MPI(MPI_Comm_dup(comm, &m->data));
    TRY_MPI(MPI_Comm_dup(comm, &m->control));
    TRY_MPI(MPI_Comm_set_errhandler(m->data, MPI_ERRORS_RETURN));
    TRY_MPI(MPI_Comm_set_errhandler(m->control, MPI_ERRORS_RETURN));
    int *lowest = NULL;
    HVD_TRY(find_hosts(m, &lowest, err));
    int code = on_host_open(&m->shm, &m->transport, lowest, config, err);
    free(lowest);
    return code;
}

static void mpi_close(struct transport *t, bool clean) {
    struct mpi_transport *m = self(t);
    on_host_close(&m->shm, t, clean);
    /* If not clean, copies of sent messages are not freed: MPI may still read a copy whose receiver
     * is dead. */
    for (struct outgoing *o = clean ? m->outgoing : NULL, *next; o; o = next) {
        next = o->next;
        MPI_Wait(&o->request, MPI_STATUS_IGNORE);
        free(o);
    }
    if (clean) {
        MPI_Comm_free(&m->data);
        MPI_Comm_free(&m->control);
    }
    free(m->requests);
    free(m);
}

static const struct transport_ops MPI_OPS = {
    .name = "MPI",
    .isend = mpi_isend,
    .irecv = mpi_irecv,
    .test = mpi_test,
    .send = mpi_send,
    .receive = mpi_receive,
    .wake = mpi_wake,
    .listen = mpi_listen,
    .polls = mpi_polls,
    .sleep = mpi_sleep,
    .gather = mpi_gather,
    .abandon = mpi_abandon,
    .close = mpi_close,
};

int transport_mpi_open(struct transport **out, const void *comm, struct transport *job,
                       const int *job_ranks, const struct transport_config *config,
                       hvd_error *err) {
    (void)job; /* every group has its own communicator */
    struct mpi_transport *m = aligned_alloc(alignof(struct mpi_transport), sizeof *m);
    if (!m) return error_set(err, HVD_NO_MEMORY, "no memory for the transport");
    memset(m, 0, sizeof *m);
    m->transport.ops = &MPI_OPS;
    m->transport.job_ranks = job_ranks;
    m->arriving.from = m->shm.file = -1;
    m->data = m->control = MPI_COMM_NULL;
    int code = open_all(m, *(const MPI_Comm *)comm, config, err);
    *out = code ? NULL : &m->transport;
    if (code) mpi_close(&m->transport, false);
    return code;
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
    snprintf(text, size, "%.*s", (int)strcspn(version, "\n,"), version);
}
