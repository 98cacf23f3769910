/* When a send or receive that waits fails, and when it is reported. The clock is a number of the
 * test. */
#include "check.h"

#include "negotiation/stall.h"

enum { RANKS = 3, LIMIT = 60, NEVER = 0 };

TEST(test_a_send_or_receive_fails_after_the_limit_unless_it_may_match) {
    enum { ANY = -1 };
    const bool one_silent[RANKS] = {false, false, true};
    const struct {
        double waited, limit;
        bool matched, queued;
        int peer;
        bool fails;
    } of[] = {{59, LIMIT, false, false, 0, false},   {60, LIMIT, false, false, 0, false},
              {61, LIMIT, false, false, 0, true},    {61, NEVER, false, false, 0, false},
              {1e6, LIMIT, true, false, 0, false},   {1e6, LIMIT, false, true, 0, false},
              {1e6, LIMIT, false, false, 2, false},  {1e6, LIMIT, false, false, 1, true},
              {1e6, LIMIT, false, false, ANY, false}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct stall_case c = {1000, of[i].matched, of[i].queued, of[i].peer};
        double now = c.submitted + of[i].waited;
        CHECK_CASE(stall_fails(&c, now, of[i].limit, one_silent, RANKS) == of[i].fails, "row %zu",
                   i);
    }
    struct stall_case any = {.submitted = 1000, .peer = ANY};
    CHECK(stall_fails(&any, 1061, LIMIT, (const bool[RANKS]){false}, RANKS));
}

/* The rows are calls in this order. */
TEST(test_a_send_or_receive_that_waits_is_reported_once) {
    const struct {
        double submitted, now, limit;
        bool warns;
    } of[] = {{1000, 1009, 10, false}, {1000, 2000, NEVER, false}, {1000, 1010, 10, true},
              {1000, 2000, 10, false}, {1001, 1010, 10, false},    {1001, 1011, 10, true}};
    double reported = 0;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        CHECK_CASE(stall_warns(of[i].submitted, of[i].now, of[i].limit, &reported) == of[i].warns,
                   "row %zu", i);
}
