/* What the signal handler of stacks.c needs.
 *
 * context.c has one struct stacks for the process. A signal handler gets no argument for data, so
 * it calls context_stacks. All fields are written before the handler is installed. */
#ifndef HVDLITE_JOB_STACKS_H
#define HVDLITE_JOB_STACKS_H

#include <signal.h>

struct stacks {
    struct sigaction users, before; /* the two previous handlers */
    int file;                       /* the file to which the handler writes C stacks */
};

#endif
