/* Loaded into the daemons of Open MPI 5 (prterun, prted) by LD_PRELOAD: ranks may come back on hosts.
 *
 * When processes connect across hosts, PRRTE 3.0's daemons read and free one element behind an array
 * of one (src/prted/pmix/pmix_server_dyn.c, connect_release), and crash or go on, by chance. So each
 * array gets one element more, zeroed like the others. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

__attribute__((visibility("default"))) void *PMIx_Info_create(size_t n) {
    void *(*create)(size_t) = NULL, *found = dlsym(RTLD_NEXT, "PMIx_Info_create");
    memcpy(&create, &found, sizeof create);
    return create && n ? create(n + 1) : NULL;
}
