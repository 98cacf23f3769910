/* Stacks: a signal makes a thread append its C stack to a file, then calls the previous handler.
 *
 * Only stacks.c handles signals. A handler has no argument, so its data is global, written before
 * the handler is installed. Two previous handlers are called: the user's, and the one that was
 * installed over it since, which writes the Python stacks. Neither of them calls the other. */
#ifndef HVDLITE_BASE_STACKS_H
#define HVDLITE_BASE_STACKS_H

/* Remembers the user's handler, if there is one. Once, before stacks_install. */
void stacks_keep_users(int number);
/* Installs the handler over the present one. The file stays open for ever. Once. */
void stacks_install(int number, int file);

#endif
