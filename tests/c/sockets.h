/* Streams between ranks that are threads: pairs of sockets, with small buffers if a test wants
 * partial reads and writes. */
#ifndef HVDLITE_SOCKETS_H
#define HVDLITE_SOCKETS_H

#include "check.h"

#include "transport/transports.h"

#include <netinet/in.h>
#include <sys/socket.h>

enum { SOCKETS_MOST = 9, SOCKETS_TCP = -1 };

struct sockets {
    int size;
    int data[SOCKETS_MOST][SOCKETS_MOST], messages[SOCKETS_MOST][SOCKETS_MOST]; /* [rank][peer] */
};

static inline void sockets_tcp_pair(int files[2]) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(listener, (struct sockaddr *)&at, size) == 0 && listen(listener, 1) == 0);
    REQUIRE(getsockname(listener, (struct sockaddr *)&at, &size) == 0);
    files[0] = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(connect(files[0], (struct sockaddr *)&at, size) == 0);
    files[1] = accept(listener, NULL, NULL);
    REQUIRE(files[1] >= 0);
    close(listener);
}

static inline void sockets_pair(int *a, int *b, int buffer) {
    int files[2];
    if (buffer == SOCKETS_TCP)
        sockets_tcp_pair(files), buffer = 0;
    else
        REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, files) == 0);
    for (int i = 0; i < 2 && buffer; i++) {
        setsockopt(files[i], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
        setsockopt(files[i], SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    }
    *a = files[0];
    *b = files[1];
}

/* buffer: bytes of each socket's buffer, raised to the kernel's minimum; 0: the kernel's default;
 * SOCKETS_TCP: TCP streams instead of Unix sockets. */
static inline struct sockets *sockets_connect(struct sockets *s, int size, int buffer) {
    s->size = size;
    for (int a = 0; a < size; a++) {
        s->data[a][a] = s->messages[a][a] = -1;
        for (int b = 0; b < a; b++) {
            sockets_pair(&s->data[a][b], &s->data[b][a], buffer);
            sockets_pair(&s->messages[a][b], &s->messages[b][a], buffer);
        }
    }
    return s;
}

/* Transports use duplicates of the sockets. */
static inline void sockets_close(const struct sockets *s) {
    for (int a = 0; a < s->size; a++)
        for (int b = 0; b < s->size; b++)
            if (a != b) close(s->data[a][b]), close(s->messages[a][b]);
}

/* Opens a rank's transport. hosts: by rank, a number that is equal for the ranks of one host. */
static inline int sockets_transport(struct sockets *s, int rank, const int *hosts, bool window,
                                    struct transport **t, hvd_error *err) {
    hvd_sockets own = {rank, s->size, hosts, s->data[rank], s->messages[rank]};
    struct transport_config config = {.window = window};
    return transport_tcp_open(t, &own, NULL, NULL, &config, err);
}

/* Opens the transport of a group; see hvd_socket_group. */
static inline int sockets_group(struct transport **out, struct transport *job, const int *ranks,
                                int size, int number, bool window, hvd_error *err) {
    struct transport_config config = {.window = window};
    return transport_tcp_open(out, &(hvd_socket_group){size, number}, job, ranks, &config, err);
}

#endif
