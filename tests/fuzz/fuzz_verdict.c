/* libFuzzer target for what `compare --since` reads: whatever bytes are parsed, the places are text and the step is a
 * number that can be compared. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/report/baseline.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int condition, const char *promise) {
    if (condition) return;
    fprintf(stderr, "fuzz_verdict: broken promise: %s\n", promise);
    abort();
}

#ifdef FD_FUZZ_PLANTED
static volatile char sink;
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fd_baseline since;
    fd_error err = {0};
    char *copy = malloc(size ? size : 1); /* of the very size, so that a byte too far is seen */
    if (!copy) return 0;
    if (size) memcpy(copy, data, size);
#ifdef FD_FUZZ_PLANTED
    sink = copy[size];
#endif
    if (fd_baseline_parse(copy, size, "fuzz", &since, &err) == FD_OK) {
        require(since.step >= 0, "steps are not negative");
        require(memchr(since.node, 0, sizeof since.node) && memchr(since.name, 0, sizeof since.name) &&
                    memchr(since.weight, 0, sizeof since.weight),
                "texts end");
        require(!since.in_weights || since.diverged, "weights that differ are a divergence");
    }
    free(copy);
    return 0;
}
