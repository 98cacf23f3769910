/* The log: levels by name, lines below the level dropped, time and rank in front. */
#include "check.h"

#include "base/log.h"

TEST(test_levels_have_names_in_any_case) {
    static const struct {
        const char *name;
        enum log_level level;
    } NAMES[] = {{"trace", LOG_TRACE},     {"debug", LOG_DEBUG},     {"info", LOG_INFO},
                 {"warning", LOG_WARNING}, {"error", LOG_ERROR},     {"fatal", LOG_FATAL},
                 {"off", LOG_OFF},         {"WARNING", LOG_WARNING}, {"DeBuG", LOG_DEBUG}};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        CHECK_INT(log_parse(NAMES[i].name, LOG_INFO), NAMES[i].level);
    static const char *const OTHERS[] = {NULL, "", "loud", "warn", "warnings", "3"};
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++)
        CHECK_INT(log_parse(OTHERS[i], LOG_FATAL), LOG_FATAL);
}

/* What log_line writes to stderr. */
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

TEST(test_a_line_has_time_rank_and_level) {
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
