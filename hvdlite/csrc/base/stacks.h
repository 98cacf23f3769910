/* Stacks: a signal makes a thread append its C stack to a file, then calls the previous handler.
 *
 * The one door to signals. A handler has no argument, so what it needs is global; it is written
 * before the handler is installed. Two may have the signal: the user's handler, and one that was
 * installed over it since, which writes the Python stacks. Neither calls the other. */
#ifndef HVDLITE_BASE_STACKS_H
#define HVDLITE_BASE_STACKS_H

/* Remembers the user's handler, if there is one. Once, before stacks_install. */
void stacks_keep_users(int number);
/* Installs the handler over the one that is there now. The file is open for ever. Once. */
void stacks_install(int number, int file);

#endif
