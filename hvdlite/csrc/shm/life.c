#define _GNU_SOURCE /* syscall, gethostname, statx */
#include "shm/life.h"

#include "base/os.h"
#include "base/poller.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct process {
    struct life *life;
    int rank, file;
    bool reported;
};

struct life {
    struct poller *poller;
    uint64_t space;
    int n;
    struct process *processes; /* array of n */
    void (*died)(void *arg, int rank);
    void *arg;
};

struct life_card life_card_of_this_process(void) {
    struct life_card card = {.pid = getpid()};
    struct statx space;
    if (statx(AT_FDCWD, "/proc/self/ns/pid", 0, STATX_INO, &space) == 0) card.space = space.stx_ino;
    gethostname(card.host, sizeof card.host - 1);
    return card;
}

/* Seconds between the end of a process and the report of its death. In this time the process's last
 * messages arrive; they may say that the rank has left. Even if a host has more runnable threads
 * than cores, the messages arrive within a few time slices of some ms. Chosen, not measured: a
 * shorter time reports a death although the rank has left, a longer time delays the error on other
 * ranks. */
static const double GRACE = 20e-3;
/* Maximum delays of GRACE in a row: if a process ends during one delay, another delay follows. */
enum { GRACES = 10 };

static int count_ended(const struct life *l) {
    int ended = 0;
    for (int i = 0; i < l->n; i++) ended += poller_can_read(l->processes[i].file);
    return ended;
}

static struct process *lowest_ended(const struct life *l) {
    struct process *lowest = NULL;
    for (int i = 0; i < l->n; i++) {
        struct process *w = &l->processes[i];
        bool lower = !w->reported && (!lowest || w->rank < lowest->rank);
        if (lower && poller_can_read(w->file)) lowest = w;
    }
    return lowest;
}

/* Reports all processes that have ended, the lowest rank first. So if several ranks die within the
 * delay, the errors on all the host's ranks blame the same dead rank, in whatever order the ranks
 * notice the deaths. */
static bool report_ended(void *arg, int file) {
    const struct process *first = arg;
    (void)file;
    if (first->reported) return false;
    for (int naps = 0, before = -1, ended; naps < GRACES; naps++, before = ended) {
        ended = count_ended(first->life);
        if (ended == before) break;
        clock_nap(GRACE);
    }
    for (struct process *w; (w = lowest_ended(first->life));) {
        w->reported = true;
        w->life->died(w->life->arg, w->rank);
    }
    return false;
}

int life_open(struct life **out, int most, void (*died)(void *arg, int rank), void *arg) {
    struct life *l = *out = calloc(1, sizeof *l);
    if (!l) return HVD_NO_MEMORY;
    *l = (struct life){.died = died, .arg = arg, .space = life_card_of_this_process().space};
    l->processes = calloc((size_t)most, sizeof *l->processes);
    return l->processes ? poller_new(&l->poller, NULL) : HVD_NO_MEMORY;
}

int life_add(struct life *l, const struct life_card *card, int rank) {
    struct process *w = &l->processes[l->n];
    if (!card->space || card->space != l->space) return HVD_UNSUPPORTED;
    *w = (struct process){l, rank, (int)syscall(SYS_pidfd_open, (pid_t)card->pid, 0), false};
    if (w->file < 0 && errno == ESRCH) return HVD_RANK_DEAD;
    if (w->file < 0) return errno == ENOSYS || errno == EPERM ? HVD_UNSUPPORTED : HVD_NO_MEMORY;
    l->n++;
    return poller_add(l->poller, w->file, report_ended, w, NULL);
}

int life_start(struct life *l) { return poller_start(l->poller, "hvdlite-life", NULL); }

void life_close(struct life *l) {
    if (!l) return;
    poller_free(l->poller);
    for (int i = 0; i < l->n; i++) close(l->processes[i].file);
    free(l->processes);
    free(l);
}
