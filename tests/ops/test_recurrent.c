/* TOKEN_SHIFT, GATED_DELTA and WKV7 against their formulas in plain doubles, with mutants of each; MUL, whose second
 * input may have one element a head. A prompt's rows at once are those of one position after another. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/ops/op_case.h"

enum { POS0 = 5, N_POS = 4, N = 40, KEYS = 2, EACH = 2, KEY = 8, DIM = 6, OF_KEY = 2 * EACH + KEY + EACH * DIM };
enum { HEADS = 3, SIZE = 8 };
static const int parts[] = {1, 3, 7, 0};

typedef enum mutant {
    NONE,
    NO_HISTORY,     /* the state before pos0 is lost */
    NO_DECAY,       /* e^g and w are 1 */
    NO_CORRECTION,  /* what the state has already is not taken away */
    READ_TOO_EARLY, /* before the position's own update */
    N_MUTANT
} mutant;

static int64_t shift_differs(const op_case *c, const float *found, int distance) {
    const float *w = c->weights[0].data;
    int64_t differ = 0;
    for (int p = 0; p < N_POS; p++)
        for (int i = 0; i < N; i++) {
            int t = c->args.pos0 + p;
            double own = (double)c->in[0][t * N + i];
            double before = t - distance >= 0 ? (double)c->in[0][(t - distance) * N + i] : 0;
            differ += !(fabs((double)found[p * N + i] - (own + (before - own) * (double)w[i])) <= 1e-6);
        }
    return differ;
}

Test(recurrent, a_shift_blends_a_row_with_the_one_before) {
    for (int pos0 = 0; pos0 <= POS0; pos0 += POS0) {
        op_case *c = case_token_shift(pos0, N_POS);
        const float *found = case_run_scalar(c);
        cr_expect_eq(shift_differs(c, found, 1), 0);
        cr_expect_gt(shift_differs(c, found, 0), 100);
        cr_expect_gt(shift_differs(c, found, 2), 60);
        case_expect_twins(c, FD_NUMERICS_EXACT, parts, "token_shift");
    }
}

static double delta(const op_case *c, int p, int item, mutant m) {
    const int head = item / DIM, group = head / EACH, at = head % EACH;
    double s[KEY] = {0}, before[KEY] = {0}, y = 0;
    for (int t = m == NO_HISTORY ? c->args.pos0 : 0; t <= c->args.pos0 + p; t++) {
        const float *row = c->in[0] + (t * KEYS + group) * OF_KEY, *k = row + 2 * EACH;
        double read = 0;
        memcpy(before, s, sizeof s);
        for (int i = 0; i < KEY; i++) {
            s[i] *= m == NO_DECAY ? 1 : exp((double)row[at]);
            read += s[i] * (double)k[i];
        }
        if (m == NO_CORRECTION) read = 0;
        for (int i = 0; i < KEY; i++)
            s[i] += (double)k[i] * ((double)k[KEY + at * DIM + item % DIM] - read) * (double)row[EACH + at];
    }
    for (int i = 0; i < KEY; i++)
        y += (m == READ_TOO_EARLY ? before : s)[i] * (double)c->in[1][(p * KEYS + group) * KEY + i];
    return y * 0.375;
}

static double wkv(const op_case *c, int p, int item, mutant m) {
    const int head = item / SIZE;
    double s[SIZE] = {0}, before[SIZE] = {0}, y = 0;
    for (int t = m == NO_HISTORY ? c->args.pos0 : 0; t <= c->args.pos0 + p; t++) {
        const float *w = c->in[0] + (t * HEADS + head) * 5 * SIZE, *k = w + SIZE, *a = k + 2 * SIZE, *b = a + SIZE;
        double read = 0, v = (double)k[SIZE + item % SIZE];
        memcpy(before, s, sizeof s);
        for (int i = 0; i < SIZE; i++) read += m == NO_CORRECTION ? 0 : (double)a[i] * s[i];
        for (int i = 0; i < SIZE; i++)
            s[i] = s[i] * (m == NO_DECAY ? 1 : (double)w[i]) + v * (double)k[i] + read * (double)b[i];
    }
    for (int i = 0; i < SIZE; i++)
        y += (m == READ_TOO_EARLY ? before : s)[i] * (double)c->in[1][(p * HEADS + head) * SIZE + i];
    return y;
}

typedef double (*formula)(const op_case *c, int p, int item, mutant m);

static int64_t differs(const op_case *c, formula f, mutant m) {
    const float *found = case_run_scalar(c);
    const int n = (int)fd_node_width(c->args.node);
    int64_t differ = 0;
    for (int p = 0; p < N_POS; p++)
        for (int i = 0; i < n; i++) differ += !(fabs((double)found[p * n + i] - f(c, p, i, m)) <= 1e-5);
    return differ;
}

Test(recurrent, a_state_decays_is_corrected_and_is_read) {
    op_case *cases[] = {case_gated_delta(POS0, N_POS), case_wkv7(POS0, N_POS)};
    const formula formulas[] = {delta, wkv};
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(differs(cases[i], formulas[i], NONE), 0, "%d", i);
        for (mutant m = NO_HISTORY; m < N_MUTANT; m++)
            cr_expect_gt(differs(cases[i], formulas[i], m), 40, "%d: mutant %d", i, (int)m);
        case_expect_twins(cases[i], FD_NUMERICS_EXACT, parts, "recurrent");
    }
}

/* The last position of a prompt alone, its history in the cache. */
Test(recurrent, a_prompt_is_its_positions_one_by_one) {
    enum { LAST = POS0 + N_POS - 1 };
    op_case *all[] = {case_gated_delta(0, LAST + 1), case_wkv7(0, LAST + 1), case_token_shift(0, LAST + 1)};
    op_case *last[] = {case_gated_delta(LAST, 1), case_wkv7(LAST, 1), case_token_shift(LAST, 1)};
    for (int i = 0; i < 3; i++) {
        const int64_t n = fd_node_width(all[i]->args.node), n_read = last[i]->n_in[1];
        memcpy(last[i]->in[0], all[i]->in[0], sizeof(float) * (size_t)all[i]->n_in[0]);
        if (n_read) memcpy(last[i]->in[1], all[i]->in[1] + LAST * n_read, sizeof(float) * (size_t)n_read);
        last[i]->weights[0] = all[i]->weights[0];
        cr_expect_eq(memcmp(case_run_scalar(last[i]), case_run_scalar(all[i]) + LAST * n, sizeof(float) * (size_t)n), 0,
                     "%d", i);
    }
}

Test(recurrent, an_element_a_head_multiplies_the_head) {
    op_case *c = case_elementwise(FD_OP_MUL, 48, N_POS);
    c->nodes[1].shape[0] = c->nodes[2].shape[0] = 4;
    c->nodes[2].n_dim = 2;
    c->nodes[2].shape[1] = 12;
    const float *found = case_run_scalar(c);
    int64_t differ = 0, as_wide = 0;
    for (int i = 0; i < N_POS * 48; i++) {
        differ += found[i] != c->in[0][i] * c->in[1][i / 12];
        as_wide += found[i] != c->in[0][i] * c->in[1][i];
    }
    cr_expect_eq(differ, 0);
    cr_expect_gt(as_wide, 100);
    case_expect_twins(c, FD_NUMERICS_EXACT, parts, "mul");
}
