/* The entry of libFuzzer: -DFUZZ=fuzz_wire or another function of fuzz.h. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return FUZZ(data, size); }
