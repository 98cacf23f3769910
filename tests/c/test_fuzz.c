/* Damaged messages, streams and mailboxes, by random mutation of valid ones. `make fuzz` goes
 * further. */
#include "requests.h"

#include "fuzz.h"
#include "random.h"

enum { INPUTS = CHECK_SLOW ? 300 : 3000, LONGEST = 4096 };

static void put_message(uint8_t *input, size_t *size, int rank, const struct wire_writer *w) {
    input[(*size)++] = (uint8_t)w->size;
    input[(*size)++] = (uint8_t)(w->size >> 8);
    input[(*size)++] = (uint8_t)rank;
    memcpy(input + *size, w->data, w->size);
    *size += w->size;
}

/* All ranks submit new and old tensors, and leave. */
static size_t good_messages(uint64_t *random, uint8_t *input) {
    size_t size = 0;
    for (int turn = 0; turn < 4; turn++) {
        for (int rank = 0; rank < FUZZ_RANKS; rank++) {
            struct wire_writer w = {0};
            struct wire_item item = {.type = WIRE_REQUEST, .rank = rank};
            char name[] = {(char)('a' + turn), 0};
            item.request = request_of(name, (int64_t)random_below(random, 1 << 20));
            if (turn % 2) item.request.kind = HVD_BROADCAST;
            OK(wire_put(&w, &item, ERR));
            item.type = WIRE_HIT;
            item.id = (uint64_t)turn;
            OK(wire_put(&w, &item, ERR));
            item.type = WIRE_LEAVE;
            if (turn == 3) OK(wire_put(&w, &item, ERR));
            put_message(input, &size, rank, &w);
            wire_free(&w);
        }
    }
    return size;
}

static size_t good_operations(uint64_t *random, uint8_t *input) {
    size_t size = 9 * (1 + random_below(random, 60));
    for (size_t at = 0; at < size; at += 9) {
        uint64_t value = random_next(random);
        input[at] = (uint8_t)random_below(random, 248); /* no damage */
        memcpy(input + at + 1, &value, sizeof value);
    }
    return size;
}

/* Makes an input: frames of some groups, sent in parts, and receives for some of the frames. */
static size_t good_frames(uint64_t *random, uint8_t *input) {
    size_t size = 0;
    for (int i = 0; i < 12; i++) {
        bool message = random_below(random, 3) == 0, alone = random_below(random, 2);
        struct frame_head head = {(uint32_t)random_below(random, 200),
                                  alone ? 0 : (uint32_t)random_below(random, 3),
                                  message ? FRAME_MESSAGE : FRAME_DATA};
        size_t whole = sizeof head + head.bytes, first = random_below(random, whole + 1);
        uint8_t frame[sizeof head + 200] = {0};
        memcpy(frame, &head, sizeof head);
        for (int part = 0; part < 2; part++) {
            size_t n = part ? whole - first : first;
            input[size++] = message ? 4 : 0;
            input[size++] = (uint8_t)n;
            input[size++] = (uint8_t)(n >> 8);
            memcpy(input + size, frame + (part ? first : 0), n);
            size += n;
            input[size++] = part || message ? 7 : 6;
            input[size++] = part || message ? 1 : (uint8_t)head.bytes;
            input[size++] = 0;
        }
    }
    return size;
}

static void mutate(uint64_t *random, uint8_t *input, size_t size) {
    for (size_t n = random_below(random, 6); n > 0 && size; n--)
        input[random_below(random, size)] = (uint8_t)(random_next(random) >> (n % 2 ? 0 : 60));
}

static void fuzz(size_t good(uint64_t *, uint8_t *), int target(const uint8_t *, size_t)) {
    uint64_t random = 11;
    static uint8_t input[LONGEST];
    for (int i = 0; i < INPUTS; i++) {
        size_t size = good(&random, input);
        REQUIRE(size <= LONGEST);
        mutate(&random, input, size);
        CHECK_INT(target(input, i % 4 ? size : random_below(&random, size + 1)), 0);
    }
}

TEST(test_damaged_wire_messages_are_handled_or_refused) { fuzz(good_messages, fuzz_wire); }
TEST(test_damaged_streams_are_handled_or_refused) { fuzz(good_frames, fuzz_streams); }
TEST(test_damaged_mailboxes_are_handled_or_refused) { fuzz(good_operations, fuzz_mailbox); }
