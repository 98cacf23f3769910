/* Opens an output file at a path that the user gave, and refuses files of other users.
 *
 * In a folder such as /tmp, another user may have put a file or a link at that path.
 * machine/files.py applies the same rule in Python. No state; any thread. */
#ifndef HVDLITE_BASE_FILES_H
#define HVDLITE_BASE_FILES_H

#include <stdio.h>

/* Returns the file, emptied; the caller closes it. On failure returns NULL and sets errno; EACCES:
 * the file or link belongs to another user. */
FILE *file_open_named(const char *path);

#endif
