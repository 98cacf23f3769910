/* Files: opens one that the user has named, for writing, as fopen does, but no other user's.
 *
 * In a folder such as /tmp anybody may have made a file, or a link to another one, before. core's
 * files.py has the same rule for Python. No state; any thread. */
#ifndef HVDLITE_BASE_FILES_H
#define HVDLITE_BASE_FILES_H

#include <stdio.h>

/* Returns an empty file; NULL with errno, EACCES for another user's file or link. The caller closes
 * the file. */
FILE *file_open_named(const char *path);

#endif
