/* Files at the user's paths. */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/output.h"

enum { NOBODY = 65534 };

static char folder[] = "/tmp/hvdlite-test-XXXXXX", path[64], victim[64];

static long size_of(const char *name) {
    FILE *file = fopen(name, "r");
    if (!file) return -1;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    fclose(file);
    return size;
}

static void write_to(const char *name) {
    FILE *file = file_open_named(name);
    REQUIRE(file);
    fputs("new", file);
    fclose(file);
    CHECK_INT(size_of(name), 3);
}

/* Makes a symbolic link, which `owner` owns, from the path to the victim. If file_open_named does
 * not follow the link, the victim must be unchanged. */
static void follows_a_link_of(int owner, bool follows) {
    REQUIRE(symlink(victim, path) == 0 && lchown(path, (uid_t)owner, (gid_t)-1) == 0);
    FILE *file = file_open_named(path);
    CHECK_INT(file != NULL, follows);
    if (file)
        fclose(file);
    else
        CHECK_INT(errno, EACCES);
    CHECK_INT(size_of(victim), follows ? 0 : 3);
    unlink(path);
}

/* In a folder such as /tmp, others may have made the file. */
TEST(test_only_a_file_or_link_of_this_user_is_opened) {
    REQUIRE(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/named", folder);
    snprintf(victim, sizeof victim, "%s/victim", folder);
    write_to(victim);
    write_to(path); /* at first the file does not exist, then it exists */
    write_to(path);
    unlink(path);
    CHECK(!file_open_named("/no/such/folder/file"));
    CHECK_INT(errno, ENOENT);
    REQUIRE(chmod(folder, 01777) == 0);
    if (geteuid() == 0) { /* only root can make another user's link */
        follows_a_link_of(NOBODY, false);
        REQUIRE(mknod(path, S_IFREG | 0666, 0) == 0 && lchown(path, NOBODY, (gid_t)-1) == 0);
        CHECK(!file_open_named(path));
        unlink(path);
        /* only its owner may write to the folder, so all files in it are trusted */
        REQUIRE(chmod(folder, 0755) == 0);
        follows_a_link_of(NOBODY, true);
        write_to(victim);
        REQUIRE(chmod(folder, 01777) == 0);
    }
    follows_a_link_of((int)geteuid(), true);
    write_to(victim);
    REQUIRE(link(victim, path) == 0); /* another user can do this if the kernel permits it */
    CHECK(!file_open_named(path));
    CHECK_INT(errno, EACCES);
    CHECK_INT(size_of(victim), 3);
    unlink(path);
    write_to(victim);
    unlink(victim);
    rmdir(folder);
}
