#define _GNU_SOURCE /* IFF_UP */
#include "transport/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static bool in_network(uint32_t address, const char *network) {
    char text[INET_ADDRSTRLEN] = "";
    struct in_addr base;
    int bits;
    if (sscanf(network, "%15[0-9.]/%d", text, &bits) != 2 || bits < 0 || bits > 32) return false;
    if (inet_pton(AF_INET, text, &base) != 1) return false;
    return !bits || !((ntohl(address) ^ ntohl(base.s_addr)) >> (32 - bits));
}

static bool is_wanted(const char *name, uint32_t address, const char *wanted) {
    char word[64]; /* longer is no name of an interface, and no network */
    for (size_t n; *wanted; wanted += n + (wanted[n] != '\0')) {
        n = strcspn(wanted, ",");
        if (n >= sizeof word) continue;
        memcpy(word, wanted, n);
        word[n] = '\0';
        if (strcmp(word, name) == 0 || in_network(address, word)) return true;
    }
    return false;
}

static bool usable(const struct ifaddrs *i, const char *wanted) {
    if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP)) return false;
    uint32_t address = ((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr.s_addr;
    return wanted ? is_wanted(i->ifa_name, address, wanted) : !(i->ifa_flags & IFF_LOOPBACK);
}

int interfaces_find(const char *wanted, uint32_t *addresses, int most) {
    struct ifaddrs *all = NULL;
    int n = 0;
    if (getifaddrs(&all)) return 0;
    for (struct ifaddrs *i = all; i && n < most; i = i->ifa_next)
        if (usable(i, wanted))
            addresses[n++] = ((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr.s_addr;
    freeifaddrs(all);
    return n;
}
