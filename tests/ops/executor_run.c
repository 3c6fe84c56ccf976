#include "tests/ops/executor_run.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "tests/common.h"
#include "tests/ops/op_case.h"

int32_t tokens[RANDOM_TOKENS];

void fill_tokens(void) {
    for (int i = 0; i < RANDOM_TOKENS; i++) tokens[i] = (i * 37 + i * i * 11) % RANDOM_VOCAB;
}

fd_exec *make_exec(const fd_graph *graph, fd_reference_options options) {
    fd_error err = {0};
    fd_exec *exec;
    if (!options.n_ctx) options.n_ctx = RANDOM_TOKENS;
    cr_assert_eq(fd_reference_new(graph, &options, &exec, &err), FD_OK, "%s", err.message);
    cr_expect_str_eq(fd_exec_numerics_name(exec), fd_numerics_name(options.numerics));
    return exec;
}

float *run(fd_exec *exec, int32_t n, int32_t batch) {
    fd_error err = {0};
    float *logits = kept(malloc(sizeof *logits * (size_t)n * RANDOM_VOCAB));
    fd_exec_reset(exec);
    for (int32_t at = 0; at < n; at += batch) {
        int32_t m = n - at < batch ? n - at : batch;
        fd_batch b = {
            .tokens = tokens + at, .n_tok = m, .pos0 = at, .all_logits = true, .logits = logits + at * RANDOM_VOCAB};
        cr_assert_eq(fd_exec_forward(exec, &b, &err), FD_OK, "%s", err.message);
    }
    return logits;
}

float *run_new(const fd_graph *graph, fd_reference_options options, int32_t n, int32_t batch) {
    fd_exec *exec = make_exec(graph, options);
    float *logits = run(exec, n, batch);
    fd_exec_free(exec);
    return logits;
}

void expect_same(float *a, float *b, int64_t n, const char *what) {
    int64_t different = bits_differ(a, b, n);
    cr_expect_eq(different, 0, "%s: %lld of %lld logits differ", what, (long long)different, (long long)n);
    for (int64_t i = 0; i < n; i++) cr_assert(isfinite(a[i]), "%s: the case shows nothing", what);
}
