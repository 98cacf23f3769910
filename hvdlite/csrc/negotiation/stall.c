#include "negotiation/stall.h"

static bool waits_for_silent(int peer, const bool *silent, int size) {
    for (int r = 0; r < size; r++)
        if ((r == peer || peer < 0) && silent[r]) return true;
    return false;
}

bool stall_fails(const struct stall_case *c, double now, double limit, const bool *silent,
                 int size) {
    if (limit <= 0 || now - c->submitted <= limit) return false;
    return !c->matched && !c->queued && !waits_for_silent(c->peer, silent, size);
}

bool stall_warns(double submitted, double now, double limit, double *reported) {
    if (limit <= 0 || now - submitted < limit || submitted <= *reported) return false;
    *reported = submitted;
    return true;
}
