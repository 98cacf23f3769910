/* The environment: which prefix wins, which texts are numbers, how invalid values are refused. */
#include "check.h"

#include "base/options.h"
#include "transport/pace.h"

/* Sets HVDLITE_name and HOROVOD_name; NULL: unsets the variable. */
static void set(const char *name, const char *own, const char *horovod) {
    const char *texts[] = {own, horovod};
    for (int i = 0; i < 2; i++) {
        char full[64];
        snprintf(full, sizeof full, "%s%s", i ? "HOROVOD_" : "HVDLITE_", name);
        texts[i] ? setenv(full, texts[i], 1) : unsetenv(full);
    }
}

TEST(test_a_variable_of_hvdlite_overrides_horovods_variable) {
    set("TEST_VALUE", NULL, NULL);
    CHECK(env_text("TEST_VALUE") == NULL);
    set("TEST_VALUE", NULL, "theirs");
    CHECK_TEXT(env_text("TEST_VALUE"), "theirs");
    set("TEST_VALUE", "ours", "theirs");
    CHECK_TEXT(env_text("TEST_VALUE"), "ours");
    set("TEST_VALUE", "ours", NULL);
    CHECK_TEXT(env_text("TEST_VALUE"), "ours");
}

enum reader { FLAG, SIZE, SECONDS };

/* For an option of each type: texts and the values read from them; invalid texts and their
 * errors. */
static const struct {
    const char *name, *expected;
    const char *good[5];
    double values[5];
    const char *bad[12];
} READERS[] = {[FLAG] = {"WINDOW",
                         "expected 0 or 1",
                         {"0", "1"},
                         {0, 1},
                         {"garbage", "2", "true", "-1", "01", " ", "nan"}},
               [SIZE] = {"FUSION_THRESHOLD",
                         "expected a whole number of at least 0",
                         {"0", "1", "67108864", "18446744073709551615"},
                         {0, 1, 67108864, 18446744073709551615.0},
                         {"18446744073709551616", "-1", "1.5", "abc", "12x", "1e6", " ", " -1",
                          "+-1", "0x10"}},
               [SECONDS] = {"DATA_TIMEOUT_SECONDS",
                            "expected a number of at least 0",
                            {"0", "0.25", "60", "1e3"},
                            {0, 0.25, 60, 1000},
                            {"-1", "abc", "1s", "nan", "inf", "-0.5", " "}}};

/* Reads all options; returns the value of this option. */
static double value_of(enum reader reader, int code) {
    struct options o = OPTIONS_DEFAULT;
    FAILS(options_read(&o, ERR), code);
    return reader == FLAG ? o.window : reader == SIZE ? (double)o.fusion_bytes : o.data_timeout;
}

static void check_refused(enum reader reader, const char *text, bool own, double usual) {
    char told[64];
    set(READERS[reader].name, own ? text : NULL, own ? NULL : text);
    CHECK_NEAR(value_of(reader, HVD_INVALID), usual, 0);
    snprintf(told, sizeof told, "%s%s is '%s': ", own ? "HVDLITE_" : "HOROVOD_",
             READERS[reader].name, text);
    CHECK_HAS(ERR->text, told);
    CHECK_HAS(ERR->text, READERS[reader].expected);
}

TEST(test_a_variable_with_a_wrong_value_is_refused_and_with_a_right_value_read) {
    for (enum reader reader = FLAG; reader <= SECONDS; reader++) {
        double usual = value_of(reader, HVD_OK);
        for (int i = 0; READERS[reader].good[i]; i++) {
            set(READERS[reader].name, i % 2 ? READERS[reader].good[i] : NULL,
                READERS[reader].good[i]);
            CHECK_NEAR(value_of(reader, HVD_OK), READERS[reader].values[i], 0);
        }
        for (int i = 0; READERS[reader].bad[i / 2]; i++)
            check_refused(reader, READERS[reader].bad[i / 2], i % 2, usual);
        set(READERS[reader].name, NULL, NULL);
    }
}

TEST(test_the_first_wrong_option_is_reported_and_later_options_are_read) {
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

TEST(test_the_default_segment_is_a_multiple_of_a_cache_line) {
    CHECK_INT(OPTIONS_DEFAULT.segment % PACE_UNIT, 0);
}
