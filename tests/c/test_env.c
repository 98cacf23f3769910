/* The environment: which prefix wins, what is a number, how a bad value is refused. */
#include "check.h"

#include "base/env.h"
#include "base/options.h"
#include "transport/pace.h"

#include <stdint.h>

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

/* What a reader makes of a text; NULL: it is not set. value NAN: it is refused. */
enum reader { FLAG, SIZE, SECONDS };

static const struct {
    enum reader reader;
    const char *text;
    double value;
} ROWS[] = {{FLAG, NULL, 7},
            {FLAG, "0", 0},
            {FLAG, "1", 1},
            /* HVDLITE_WINDOW=garbage counted as 1. */
            {FLAG, "garbage", NAN},
            {FLAG, "2", NAN},
            {FLAG, "true", NAN},
            {FLAG, "-1", NAN},
            {FLAG, "01", NAN},
            {FLAG, " ", NAN},
            {FLAG, "nan", NAN},
            {SIZE, NULL, 7},
            {SIZE, "0", 0},
            {SIZE, "1", 1},
            {SIZE, "67108864", 67108864},
            {SIZE, "18446744073709551615", 18446744073709551615.0},
            {SIZE, "18446744073709551616", NAN},
            {SIZE, "-1", NAN},
            {SIZE, "1.5", NAN},
            {SIZE, "abc", NAN},
            {SIZE, "12x", NAN},
            {SIZE, "1e6", NAN},
            {SIZE, " ", NAN},
            {SIZE, " -1", NAN},
            {SIZE, "+-1", NAN},
            {SIZE, "0x10", NAN},
            {SECONDS, NULL, 7},
            {SECONDS, "0", 0},
            {SECONDS, "0.25", 0.25},
            {SECONDS, "60", 60},
            {SECONDS, "1e3", 1000},
            {SECONDS, "-1", NAN},
            {SECONDS, "abc", NAN},
            {SECONDS, "1s", NAN},
            {SECONDS, "nan", NAN},
            {SECONDS, "inf", NAN},
            {SECONDS, "-0.5", NAN},
            {SECONDS, " ", NAN}};

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

TEST(test_values) {
    for (size_t i = 0; i < 2 * sizeof ROWS / sizeof *ROWS; i++) {
        const char *text = ROWS[i / 2].text;
        double value, expected = ROWS[i / 2].value, kept = ROWS[i / 2].reader == FLAG ? 1 : 7;
        set(i % 2 ? text : NULL, i % 2 ? NULL : text);
        bool good = read_value(ROWS[i / 2].reader, &value) == HVD_OK;
        CHECK_CASE(good == !isnan(expected), "'%s' of reader %d", text, ROWS[i / 2].reader);
        CHECK_NEAR(value, good && text ? expected : kept, 0);
        if (good) continue;
        CHECK_HAS(ERR->text, i % 2 ? "HVDLITE_TEST_VALUE is '" : "HOROVOD_TEST_VALUE is '");
        CHECK_HAS(ERR->text, text);
        CHECK_HAS(ERR->text, ROWS[i / 2].reader == FLAG ? "expected 0 or 1" : "at least 0");
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
