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

TEST(test_unset_keeps_the_value) {
    size_t size = 7;
    double seconds = 2.5;
    set(NULL, NULL);
    OK(env_size("TEST_VALUE", &size, ERR));
    OK(env_seconds("TEST_VALUE", &seconds, ERR));
    CHECK_INT(size, 7);
    CHECK_NEAR(seconds, 2.5, 0);
}

/* HVDLITE_WINDOW=garbage counted as 1. */
TEST(test_flags) {
    static const char *const BAD[] = {"garbage", "2", "true", "-1", "01", " ", "nan"};
    bool value = true;
    set(NULL, NULL);
    OK(env_flag("TEST_VALUE", &value, ERR));
    CHECK(value);
    set("0", "1");
    OK(env_flag("TEST_VALUE", &value, ERR));
    CHECK(!value);
    set(NULL, "1");
    OK(env_flag("TEST_VALUE", &value, ERR));
    CHECK(value);
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        set(BAD[i], NULL);
        CHECK_CASE(env_flag("TEST_VALUE", &value, ERR) == HVD_INVALID, "'%s'", BAD[i]);
        CHECK_HAS(ERR->text, "HVDLITE_TEST_VALUE is '");
        CHECK_HAS(ERR->text, "expected 0 or 1");
        CHECK(value);
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

TEST(test_sizes) {
    static const struct {
        const char *text;
        size_t value;
    } GOOD[] = {{"0", 0}, {"1", 1}, {"67108864", 67108864}, {"18446744073709551615", SIZE_MAX}};
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++) {
        size_t value = 7;
        set(GOOD[i].text, NULL);
        OK(env_size("TEST_VALUE", &value, ERR));
        CHECK(value == GOOD[i].value);
    }
}

TEST(test_bad_sizes) {
    static const char *const BAD[] = {"-1",  "1.5", "abc", "12x", "18446744073709551616",
                                      "1e6", " ",   " -1", "+-1", "0x10"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        size_t value = 7;
        set(NULL, BAD[i]);
        CHECK_CASE(env_size("TEST_VALUE", &value, ERR) == HVD_INVALID, "'%s'", BAD[i]);
        CHECK_HAS(ERR->text, "HOROVOD_TEST_VALUE");
        CHECK_HAS(ERR->text, BAD[i]);
        CHECK_INT(value, 7);
    }
}

TEST(test_seconds) {
    static const struct {
        const char *text;
        double value;
    } GOOD[] = {{"0", 0}, {"0.25", 0.25}, {"60", 60}, {"1e3", 1000}};
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++) {
        double value = 7;
        set(GOOD[i].text, NULL);
        OK(env_seconds("TEST_VALUE", &value, ERR));
        CHECK_NEAR(value, GOOD[i].value, 0);
    }
}

TEST(test_bad_seconds) {
    static const char *const BAD[] = {"-1", "abc", "1s", "nan", "inf", "-0.5", " "};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        double value = 7;
        set(BAD[i], NULL);
        CHECK_CASE(env_seconds("TEST_VALUE", &value, ERR) == HVD_INVALID, "'%s'", BAD[i]);
        CHECK_HAS(ERR->text, "HVDLITE_TEST_VALUE");
        CHECK_NEAR(value, 7, 0);
    }
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
