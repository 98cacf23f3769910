/* Error values: codes, texts, chains of causes, long texts. The log: names of levels, dropped
 * lines, time and rank at the beginning of a line. */
#include "check.h"

#include "base/output.h"

TEST(test_an_error_has_its_code_and_text) {
    hvd_error err = {0};
    CHECK_INT(error_set(&err, HVD_MISMATCH, "tensor '%s' on rank %d", "w", 3), HVD_MISMATCH);
    CHECK_INT(err.code, HVD_MISMATCH);
    CHECK_TEXT(err.text, "tensor 'w' on rank 3");
}

TEST(test_causes_are_appended_to_the_text) {
    hvd_error err = {0};
    error_set(&err, HVD_TRANSPORT, "link down");
    CHECK_INT(error_while(&err, "ring step %d of %d", 3, 7), HVD_TRANSPORT);
    CHECK_TEXT(err.text, "link down, while ring step 3 of 7");
    error_while(&err, "allreduce '%s'", "w");
    CHECK_TEXT(err.text, "link down, while ring step 3 of 7, while allreduce 'w'");
    CHECK_INT(err.code, HVD_TRANSPORT);
}

TEST(test_an_error_set_again_keeps_no_field_of_the_old_error) {
    hvd_error err = {0}, all = {0};
    error_set(&err, HVD_STALLED, "late");
    for (int rank = 0; rank < HVD_MAX_BLAMED + 2; rank++)
        CHECK_INT(error_blame(&err, rank + 5), HVD_STALLED);
    CHECK_INT(error_of(&err, "w"), HVD_STALLED);
    CHECK_INT(err.nblamed, HVD_MAX_BLAMED + 2);
    CHECK_INT(error_nlisted(&err), HVD_MAX_BLAMED);
    CHECK_INT(err.blamed[0], 5);
    CHECK_INT(err.blamed[HVD_MAX_BLAMED - 1], 5 + HVD_MAX_BLAMED - 1);
    error_also(&all, &err);
    error_set(&err, HVD_INVALID, "again");
    CHECK_INT(err.code, HVD_INVALID);
    CHECK_TEXT(err.text, "again");
    CHECK_INT(err.nblamed, 0);
    CHECK_TEXT(err.tensor, "");
    error_also(&all, &err);
    CHECK_TEXT(all.text, "late; again");
    CHECK_TEXT(all.tensor, "w");
    CHECK_INT(all.code, HVD_STALLED);
}

TEST(test_error_set_returns_the_code_if_there_is_no_error_to_fill) {
    CHECK_INT(error_set(NULL, HVD_STALLED, "%s", "lost"), HVD_STALLED);
}

TEST(test_a_text_longer_than_its_buffer_is_cut) {
    char text[3000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    struct {
        hvd_error err;
        char guard[8];
    } at;
    memset(&at, 'g', sizeof at);
    error_set(&at.err, HVD_INTERNAL, "%s", text);
    CHECK_INT(strlen(at.err.text), sizeof at.err.text - 1);
    CHECK_INT(error_while(&at.err, "%s", text), HVD_INTERNAL);
    CHECK_INT(strlen(at.err.text), sizeof at.err.text - 1);
    CHECK(memcmp(at.guard, "gggggggg", 8) == 0);
}

TEST(test_a_text_that_is_cut_has_whole_characters) {
    char text[3000] = "";
    hvd_error err;
    for (size_t shift = 0; shift < 4; shift++) {
        memset(text, 'x', shift);
        for (size_t i = shift; i + 4 < sizeof text; i += 4) memcpy(text + i, "\xF0\x9F\x8C\x8A", 5);
        error_set(&err, HVD_INTERNAL, "%s", text);
        CHECK_INT((strlen(err.text) - shift) % 4, 0);
        CHECK(strlen(err.text) > sizeof err.text - 5);
    }
    error_set(&err, HVD_INTERNAL, "'%.5s...'", "ab\xC3\xBC\xE4\xB8\xAD");
    error_while(&err, "'%.2s...'", "\xE4\xB8\xAD");
    CHECK_TEXT(err.text, "'ab\xC3\xBC...', while '...'");
}

/* The end of a long chain is truncated; the beginning, which is the first cause, stays. */
TEST(test_a_long_chain_of_causes_keeps_the_first_cause) {
    for (size_t room = 0; room < 20; room++) {
        hvd_error err;
        char whole[sizeof err.text + 20];
        size_t length = sizeof err.text - 1 - room;
        memset(whole, 'x', length);
        whole[length] = 0;
        error_set(&err, HVD_INTERNAL, "%s", whole);
        strcat(whole, ", while step 1");
        error_while(&err, "step 1");
        size_t got = strlen(err.text);
        CHECK(got >= length && strncmp(err.text, whole, got) == 0);
        if (strlen(whole) < sizeof err.text - 1) CHECK_TEXT(err.text, whole);
    }
}

/* ---- the log ---- */

TEST(test_names_of_log_levels_are_read_in_upper_and_lower_case) {
    static const struct {
        const char *name;
        enum log_level level;
    } NAMES[] = {{"trace", LOG_TRACE},     {"debug", LOG_DEBUG},     {"info", LOG_INFO},
                 {"warning", LOG_WARNING}, {"error", LOG_ERROR},     {"fatal", LOG_FATAL},
                 {"off", LOG_OFF},         {"WARNING", LOG_WARNING}, {"DeBuG", LOG_DEBUG}};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        CHECK_INT(log_parse(NAMES[i].name), NAMES[i].level);
    static const char *const OTHERS[] = {"", "loud", "warn", "warnings", "3"};
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++)
        CHECK_INT(log_parse(OTHERS[i]), LOG_UNKNOWN);
}

/* Returns what log_line writes to stderr. */
static void captured(const struct log *log, enum log_level level, const char *text, char *got,
                     size_t size) {
    int saved = dup(STDERR_FILENO);
    FILE *file = tmpfile();
    REQUIRE(file && saved >= 0);
    dup2(fileno(file), STDERR_FILENO);
    log_line(log, level, "%s", text);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    got[fread(got, 1, size - 1, file)] = 0;
    fclose(file);
}

TEST(test_a_line_of_the_log_has_time_rank_and_level) {
    char got[9000], text[6000];
    struct log log = {.level = LOG_WARNING, .rank = 2, .size = 5};
    captured(&log, LOG_WARNING, "it rains", got, sizeof got);
    CHECK_HAS(got, "warning");
    CHECK_HAS(got, "rank 2");
    CHECK_HAS(got, "it rains\n");
    captured(&log, LOG_INFO, "dropped", got, sizeof got);
    CHECK_TEXT(got, "");
    log.size = 0;
    captured(&log, LOG_ERROR, "early", got, sizeof got);
    CHECK(strstr(got, "rank") == NULL);
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    captured(&log, LOG_ERROR, text, got, sizeof got);
    CHECK(strchr(got, '\n') == got + strlen(got) - 1);
}
