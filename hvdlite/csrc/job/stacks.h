/* What the signal handler of stacks.c needs.
 *
 * A part of the process's object in context.c. A handler gets no argument for data, so it asks for
 * this part by context_stacks. Everything is written before the handler is installed. */
#ifndef HVDLITE_JOB_STACKS_H
#define HVDLITE_JOB_STACKS_H

#include <signal.h>

struct stacks {
    struct sigaction users, before; /* the two previous handlers */
    int file;                       /* gets the stacks */
};

#endif
