/* Loaded into the daemons of Open MPI 4 and 5 (mpirun, prterun, prted) by LD_PRELOAD. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define EXPORTED __attribute__((visibility("default")))

/* Ranks may come back on hosts: when processes connect across hosts, PRRTE 3.0's daemons read and free
 * one element behind an array of one (src/prted/pmix/pmix_server_dyn.c, connect_release), and crash or
 * go on, by chance. So each array gets one element more, zeroed like the others. */
EXPORTED void *PMIx_Info_create(size_t n) {
    void *(*create)(size_t) = NULL, *found = dlsym(RTLD_NEXT, "PMIx_Info_create");
    memcpy(&create, &found, sizeof create);
    return create && n ? create(n + 1) : NULL;
}

/* A daemon of a job on one host listens for daemons of other hosts, on all addresses: it has no
 * option for this. With HVDLITE_LOOPBACK set it listens on the loopback. */
EXPORTED int bind(int sock, const struct sockaddr *address, socklen_t length) {
    int (*next)(int, const struct sockaddr *, socklen_t) = NULL;
    void *found = dlsym(RTLD_NEXT, "bind");
    struct sockaddr_in6 own = {0};
    memcpy(&next, &found, sizeof next);
    memcpy(&own, address, length < sizeof own ? length : sizeof own);
    struct sockaddr_in *four = (struct sockaddr_in *)(void *)&own;
    if (four->sin_family == AF_INET && four->sin_addr.s_addr == htonl(INADDR_ANY))
        four->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else if (own.sin6_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&own.sin6_addr))
        own.sin6_addr = in6addr_loopback;
    else
        return next(sock, address, length);
    if (getenv("HVDLITE_LOOPBACK") &&
        !next(sock, (const struct sockaddr *)(const void *)&own, length))
        return 0;
    return next(sock, address, length);
}
