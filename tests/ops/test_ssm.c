/* CONV and SSM_SCAN against their formulas in plain doubles, with mutants of each; a prompt's rows at once are those of
 * one position after another. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/ops/op_case.h"

enum { POS0 = 5, N_POS = 4, N = 40, TAPS = 4, HEADS = 4, DIM = 6, GROUPS = 2, STATE = 8 };
static const int parts[] = {1, 3, 7, 0};

/* `shift`: positions that the taps are late; `bias`: counted or not. */
static double conv(const op_case *c, int p, int ch, int shift, bool bias) {
    const float *w = c->weights[0].data, *b = c->weights[1].data;
    double sum = bias ? (double)b[ch] : 0;
    for (int j = 0; j < TAPS; j++) {
        int t = c->args.pos0 + p - shift + j - (TAPS - 1);
        if (t >= 0) sum += (double)w[ch * TAPS + j] * (double)c->in[0][t * N + ch];
    }
    return sum;
}

static int64_t conv_differs(const op_case *c, const float *found, int shift, bool bias) {
    int64_t differ = 0;
    for (int p = 0; p < N_POS; p++)
        for (int ch = 0; ch < N; ch++)
            differ += !(fabs((double)found[p * N + ch] - conv(c, p, ch, shift, bias)) <= 1e-6);
    return differ;
}

Test(ssm, a_convolution_reads_the_positions_before) {
    for (int pos0 = 0; pos0 <= POS0; pos0 += POS0) { /* from nothing, and with a history */
        op_case *c = case_conv(pos0, N_POS);
        const float *found = case_run_scalar(c);
        cr_expect_eq(conv_differs(c, found, 0, true), 0);
        cr_expect_gt(conv_differs(c, found, 1, true), 100);
        cr_expect_gt(conv_differs(c, found, 0, false), 100);
        case_expect_twins(c, FD_NUMERICS_EXACT, parts, "conv");
    }
}

typedef enum mutant { NONE, NO_HISTORY, NO_SKIP, OTHER_GROUP, NO_DECAY } mutant;

/* Of one position and channel, from position 0. */
static double scan(const op_case *c, int p, int ch, mutant m) {
    const int width = HEADS + HEADS * DIM + GROUPS * STATE, head = ch / DIM;
    const int group = m == OTHER_GROUP ? 1 - head / (HEADS / GROUPS) : head / (HEADS / GROUPS);
    const float *a = c->weights[0].data, *d = c->weights[1].data;
    const bool each = c->weights[0].n_col > 1;
    double h[STATE] = {0}, y = 0;
    for (int t = m == NO_HISTORY ? c->args.pos0 + p : 0; t <= c->args.pos0 + p; t++) {
        const float *row = c->in[0] + t * width;
        for (int s = 0; s < STATE; s++) {
            double decay = m == NO_DECAY ? 1 : exp((double)a[each ? head * STATE + s : head] * (double)row[head]);
            h[s] = h[s] * decay +
                   (double)row[head] * (double)row[HEADS + ch] * (double)row[HEADS + HEADS * DIM + group * STATE + s];
        }
    }
    for (int s = 0; s < STATE; s++) y += h[s] * (double)c->in[1][(p * GROUPS + group) * STATE + s];
    double x = (double)c->in[0][(c->args.pos0 + p) * width + HEADS + ch];
    return m == NO_SKIP ? y : y + x * (double)d[head];
}

static int64_t scan_differs(const op_case *c, const float *found, mutant m) {
    int64_t differ = 0;
    for (int p = 0; p < N_POS; p++)
        for (int ch = 0; ch < HEADS * DIM; ch++)
            differ += !(fabs((double)found[p * HEADS * DIM + ch] - scan(c, p, ch, m)) <= 1e-5);
    return differ;
}

Test(ssm, a_scan_carries_its_state_through_all_positions) {
    for (int each = 0; each < 2; each++) {
        op_case *c = case_ssm_scan(each, POS0, N_POS);
        const float *found = case_run_scalar(c);
        cr_expect_eq(scan_differs(c, found, NONE), 0);
        for (mutant m = NO_HISTORY; m <= NO_DECAY; m++)
            cr_expect_gt(scan_differs(c, found, m), 40, "mutant %d", (int)m);
        case_expect_twins(c, FD_NUMERICS_EXACT, parts, "ssm_scan");
    }
}

/* The last position of a prompt alone, its history in the cache. */
Test(ssm, a_prompt_is_its_positions_one_by_one) {
    op_case *all = case_ssm_scan(true, 0, POS0 + N_POS), *last = case_ssm_scan(true, POS0 + N_POS - 1, 1);
    const int64_t n = HEADS * DIM, n_c = GROUPS * STATE;
    memcpy(last->in[0], all->in[0], sizeof(float) * (size_t)all->n_in[0]);
    memcpy(last->in[1], all->in[1] + (POS0 + N_POS - 1) * n_c, sizeof(float) * (size_t)n_c);
    last->weights[0] = all->weights[0];
    last->weights[1] = all->weights[1];
    cr_expect_eq(
        memcmp(case_run_scalar(last), case_run_scalar(all) + (POS0 + N_POS - 1) * n, sizeof(float) * (size_t)n), 0);
}
