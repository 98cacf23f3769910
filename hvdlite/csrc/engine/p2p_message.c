/* What sends (p2p.c) and receives (p2p_receive.c) share. */
#include "base/os.h"
#include "engine/p2p_state.h"

#include <stdlib.h>
#include <string.h>

int p2p_post(struct p2p *p, int to, struct p2p_head head, const char *name, const void *data,
             size_t size, hvd_error *err) {
    char message[sizeof head + sizeof((hvd_error *)0)->text + P2P_PART];
    head.mark = P2P_MARK;
    head.name = (uint16_t)strlen(name);
    memcpy(message, &head, sizeof head);
    memcpy(message + sizeof head, name, head.name);
    if (size) memcpy(message + sizeof head + head.name, data, size);
    p->peers[to].talked = true;
    return transport_send(p->t, to, message, sizeof head + head.name + size, err);
}

int p2p_want(struct p2p *p, int from, uint64_t number, uint64_t bytes, bool by_bounce,
             hvd_error *err) {
    struct p2p_head head = {.type = P2P_WANT, .number = number, .bytes = bytes, .code = by_bounce};
    return p2p_post(p, from, head, "", NULL, 0, err);
}

int p2p_refuse_offer(struct p2p *p, int from, uint64_t number, const hvd_error *why,
                     hvd_error *err) {
    return p2p_post(
        p, from,
        (struct p2p_head){.type = P2P_REFUSE, .number = number, .code = (uint32_t)why->code},
        why->text, NULL, 0, err);
}

bool p2p_is_match(int root, const char *name, const struct p2p_offer *o) {
    return (root == o->from || root == P2P_ANY) && !strcmp(name, o->name);
}

static void write_timeline(const struct p2p *p, const struct tensor *tensor) {
    struct timeline_times times = {.submitted = tensor->submitted,
                                   .decided = tensor->met,
                                   .started = tensor->met,
                                   .completed = clock_now()};
    timeline_tensor(p->timeline, &tensor->request, times, 1);
}

void p2p_finish(struct p2p *p, struct tensor *tensor, const hvd_error *error) {
    hvd_error own;
    if (error) own = *error;
    if (error) error_of(&own, tensor->request.name);
    if (!error && timeline_on(p->timeline)) write_timeline(p, tensor);
    flight_ended(p->flight, tensor->flight, error, clock_now());
    atomic_fetch_sub(&p->count, 1);
    free(tensor->near);
    tensor->complete(tensor->arg, error ? &own : NULL);
}
