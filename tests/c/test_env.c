/* The environment: which prefix wins, what is a number, how a bad value is refused. */
#include "check.h"

#include "base/env.h"
#include "base/options.h"
#include "transport/pace.h"

static void set(const char *own, const char *horovod) {
    unsetenv("HVDLITE_TEST_VALUE");
    unsetenv("HOROVOD_TEST_VALUE");
    if (own) setenv("HVDLITE_TEST_VALUE", own, 1);
    if (horovod) setenv("HOROVOD_TEST_VALUE", horovod, 1);
}

TEST(test_prefixes) {
    set(NULL, NULL);
    CHECK(env_text("TEST_VALUE") == NULL);
    set(NULL, "theirs");
    CHECK_TEXT(env_text("TEST_VALUE"), "theirs");
    set("ours", "theirs");
    CHECK_TEXT(env_text("TEST_VALUE"), "ours");
    set("ours", NULL);
    CHECK_TEXT(env_text("TEST_VALUE"), "ours");
}

enum reader { FLAG, SIZE, SECONDS };

/* What it reads, and as what; what it refuses. */
static const struct {
    const char *good[5];
    double values[5];
    const char *bad[12];
} READERS[] = {/* HVDLITE_WINDOW=garbage counted as 1. */
               [FLAG] = {{"0", "1"}, {0, 1}, {"garbage", "2", "true", "-1", "01", " ", "nan"}},
               [SIZE] = {{"0", "1", "67108864", "18446744073709551615"},
                         {0, 1, 67108864, 18446744073709551615.0},
                         {"18446744073709551616", "-1", "1.5", "abc", "12x", "1e6", " ", " -1",
                          "+-1", "0x10"}},
               [SECONDS] = {{"0", "0.25", "60", "1e3"},
                            {0, 0.25, 60, 1000},
                            {"-1", "abc", "1s", "nan", "inf", "-0.5", " "}}};

/* A flag that is not set or refused stays true, which counts as 7, too. */
static int read_value(enum reader reader, double *value) {
    bool flag = true;
    size_t size = 7;
    double seconds = 7;
    int code = reader == FLAG   ? env_flag("TEST_VALUE", &flag, ERR)
               : reader == SIZE ? env_size("TEST_VALUE", &size, ERR)
                                : env_seconds("TEST_VALUE", &seconds, ERR);
    *value = reader == FLAG ? flag : reader == SIZE ? (double)size : seconds;
    return code;
}

static void check_refused(enum reader reader, const char *text, bool own) {
    double value;
    set(own ? text : NULL, own ? NULL : text);
    CHECK_CASE(read_value(reader, &value) != HVD_OK, "'%s' of reader %d", text, reader);
    CHECK_NEAR(value, reader == FLAG ? 1 : 7, 0);
    CHECK_HAS(ERR->text, own ? "HVDLITE_TEST_VALUE is '" : "HOROVOD_TEST_VALUE is '");
    CHECK_HAS(ERR->text, text);
    CHECK_HAS(ERR->text, reader == FLAG ? "expected 0 or 1" : "at least 0");
}

TEST(test_values) {
    for (int reader = FLAG; reader <= SECONDS; reader++) {
        double value;
        set(NULL, NULL);
        OK(read_value((enum reader)reader, &value));
        CHECK_NEAR(value, reader == FLAG ? 1 : 7, 0);
        for (int i = 0; READERS[reader].good[i]; i++) {
            set(i % 2 ? READERS[reader].good[i] : NULL, READERS[reader].good[i]);
            OK(read_value((enum reader)reader, &value));
            CHECK_NEAR(value, READERS[reader].values[i], 0);
        }
        for (int i = 0; READERS[reader].bad[i / 2]; i++)
            check_refused((enum reader)reader, READERS[reader].bad[i / 2], i % 2);
    }
}

TEST(test_a_bad_value_is_told_by_the_name_that_was_set) {
    set(NULL, "loud");
    CHECK_INT(env_invalid("TEST_VALUE", "something else", ERR), HVD_INVALID);
    CHECK_TEXT(ERR->text, "HOROVOD_TEST_VALUE is 'loud': expected something else");
    set("louder", "loud");
    env_invalid("TEST_VALUE", "something else", ERR);
    CHECK_TEXT(ERR->text, "HVDLITE_TEST_VALUE is 'louder': expected something else");
}

TEST(test_options_after_a_wrong_one_are_read_and_the_first_wrong_one_is_told) {
    struct options options = OPTIONS_DEFAULT;
    setenv("HVDLITE_CACHE_CAPACITY", "many", 1);
    setenv("HOROVOD_SEGMENTS_IN_FLIGHT", "65", 1);
    setenv("HVDLITE_NUDGE", "0", 1);
    CHECK_INT(options_read(&options, ERR), HVD_INVALID);
    CHECK_TEXT(ERR->text,
               "HVDLITE_CACHE_CAPACITY is 'many': expected a whole number of at least 0");
    CHECK_INT(options.cache_capacity, OPTIONS_DEFAULT.cache_capacity);
    CHECK(!options.nudge && options.window);
    unsetenv("HVDLITE_CACHE_CAPACITY");
    CHECK_INT(options_read(&options, ERR), HVD_INVALID);
    CHECK_TEXT(ERR->text, "HOROVOD_SEGMENTS_IN_FLIGHT is '65': expected a number from 1 to 64");
    CHECK_INT(options.segments_in_flight, 0);
    setenv("HVDLITE_SEGMENTS_IN_FLIGHT", "64", 1);
    OK(options_read(&options, ERR));
    CHECK_INT(options.segments_in_flight, PACE_MOST_DEPTH);
}

TEST(test_the_default_segment_is_the_pace_s) {
    CHECK_INT(OPTIONS_DEFAULT.segment, PACE_DEFAULT.segment);
    CHECK_INT(OPTIONS_DEFAULT.segment % PACE_UNIT, 0);
}
