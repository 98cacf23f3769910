/* Opens a file for writing under the path that the user gave, unless it belongs to another user.
 *
 * In a folder such as /tmp another user may have made the file, or a link in its place.
 * machine/files.py has the same rule for Python. No state; any thread. */
#ifndef HVDLITE_BASE_FILES_H
#define HVDLITE_BASE_FILES_H

#include <stdio.h>

/* Returns an empty file, which the caller closes. NULL: see errno; EACCES: the file or link is
 * another user's. */
FILE *file_open_named(const char *path);

#endif
