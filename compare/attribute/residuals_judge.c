/* Which tensors depart by what replay leaves of them: chance (residuals.h), and what a value that fell to the other side of a step can
 * do. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/attribute/residuals.h"
#include "faults/faults.h"

/* Of the middle row sixteen times as much is left as of any other layer's: sound engines differ by three. */
#define STANDS_OUT 16.0f
enum { FEWEST_OTHERS = 2 };

/* Decode alone is wrong: fewer steps may be chance. */
enum { FEWEST_OF_TAIL = 3 };

/* Rows after the prompt, of all layers; rows beyond what steps leave. */
enum { FEWEST_LATE = 4, FEWEST_BEYOND = 2 };

/* Of the tensors behind a cache, as many depart by little, from their first rows on, as a bug in every layer makes. A value
 * that fell to the other side does that to one tensor in ten or twenty: it must have happened in the first two rows. */
enum { FIRST_ROWS = 2, FEWEST_ALIKE = 3 };

typedef struct tally {
    int32_t n, odd, tail; /* rows; of those the odd; the last ones, all of them odd */
    int32_t beyond;       /* of the odd, those with more left than values that fell to the other side can leave */
    int32_t apart;        /* further off than any engine of the class that was drawn */
    int32_t much,
        much_of_class;      /* of the odd, those with far more left than one value that fell to the other side leaves */
    int32_t much_of_tail;   /* of the tail */
    int32_t late, odd_late; /* rows after the prompt; of those the odd */
    bool from_step;         /* the tail begins where a step does */
    bool at_once;           /* three of four rows are odd, and so is one of the first two that could be */
} tally;

static tally count(const fd_residuals *r, int32_t node) {
    tally t = {0};
    for (int32_t p = 0; p < r->n_pos; p++) {
        float left = r->left[(int64_t)node * r->n_pos + p];
        bool odd = !(left <= 1);
        if (left < 0) continue;
        t.n++;
        t.odd += odd;
        t.beyond += r->far[(int64_t)node * r->n_pos + p];
        t.apart += fd_draws_of(r->draws, node, p) >= FD_DRAWN_APART;
        t.late += p >= r->n_first;
        t.odd_late += odd && p >= r->n_first;
        t.much += !(left <= FD_RESIDUAL_MUCH);
        t.much_of_class += !(left <= r->much);
        t.at_once |= odd && p <= FIRST_ROWS; /* at position 0 RoPE and masks change nothing */
        if (odd && t.tail == 0) t.from_step = r->begins[p];
        t.tail = odd ? t.tail + 1 : 0;
        t.much_of_tail = odd ? t.much_of_tail + !(left <= FD_RESIDUAL_MUCH) : 0;
    }
    t.from_step &= t.tail >= FEWEST_OF_TAIL;
    t.at_once &= 4 * t.odd >= 3 * t.n;
    return t;
}

/* Natural logarithm of the chance that so many rows are odd. */
static double chance(const tally *t, double p) {
    double choose = lgamma(t->n + 1.0) - lgamma(t->odd + 1.0) - lgamma(t->n - t->odd + 1.0);
    double any = choose + t->odd * log(p), tail = log((double)t->n) + t->tail * log(p);
    return any < tail ? any : tail;
}

/* Most rows are odd, or the last ones. Behind a cache a value that fell to the other side makes them so, by little: unless
 * it is the same in most tensors. */
static bool is_suspect(const fd_residuals *r, int32_t node, const tally *t, bool all_at_once) {
    bool most = 2 * t->odd > t->n, steps_leave_less = 2 * t->much > t->odd || all_at_once;
    bool tail_by_much = 2 * t->much_of_tail > t->tail;
    bool tail = (t->from_step && (tail_by_much || !r->cached[node])) || (t->tail > FEWEST_OF_TAIL && tail_by_much);
    return tail || fd_draws_mostly_apart(t->apart, t->n) || (most && (!r->cached[node] || steps_leave_less));
}

/* Most tensors of a kind, of two layers or more, and not by more than roundings leave: so may a kernel be that the class does
 * not describe. */
static bool whole_kind(const fd_residuals *r, const fd_node_finding *finding, const tally *of, int32_t node) {
    const fd_node *nodes = r->graph->nodes;
    int32_t n = 0, n_depart = 0;
    for (int32_t i = 0; i < r->graph->n_node; i++) {
        if (of[i].n == 0 || !fd_fault_same_kind(&nodes[i], &nodes[node])) continue;
        n++;
        n_depart += finding[i].finding != FD_FOUND_NOTHING && 2 * of[i].beyond <= of[i].odd;
    }
    return n_depart > 1 && 2 * n_depart > n;
}

/* The same tensor of the other layers, as far as there are: most have hardly an odd row, so the class repeats what this engine
 * does there. */
static bool clean_elsewhere(const fd_residuals *r, const tally *of, int32_t node) {
    int32_t n = 0, n_clean = 0;
    for (int32_t i = 0; i < r->graph->n_node; i++) {
        if (i == node || of[i].n == 0 || !fd_fault_same_kind(&r->graph->nodes[i], &r->graph->nodes[node])) continue;
        n++;
        n_clean += 4 * of[i].odd <= of[i].n;
    }
    return n > 0 && 2 * n_clean > n;
}

/* Not odd, but what no other layer leaves. */
static bool stands_out(const fd_residuals *r, const float *middle, int32_t node) {
    float most = 0;
    int32_t n = 0;
    if (r->cached[node] || !(middle[node] >= FD_RESIDUAL_LEAST)) return false;
    for (int32_t i = 0; i < r->graph->n_node; i++) {
        if (i == node || middle[i] < 0 || !fd_fault_same_kind(&r->graph->nodes[i], &r->graph->nodes[node])) continue;
        if (middle[i] > most) most = middle[i];
        n++;
    }
    return n >= FEWEST_OTHERS && middle[node] >= STANDS_OUT * most;
}

/* After the prompt most rows of all layers' tensors of a kind are odd, and in it hardly any: a value that fell to the
 * other side does not do that in every layer. */
static bool odd_after_prompt(const fd_residuals *r, const tally *of, int32_t node) {
    tally all = {0};
    for (int32_t i = 0; i < r->graph->n_node; i++) {
        if (!fd_fault_same_kind(&r->graph->nodes[i], &r->graph->nodes[node])) continue;
        all.n += of[i].n;
        all.odd += of[i].odd;
        all.late += of[i].late;
        all.odd_late += of[i].odd_late;
    }
    return all.late >= FEWEST_LATE && 4 * all.odd_late >= 3 * all.late &&
           8 * (all.odd - all.odd_late) <= all.n - all.late;
}

/* Then they are suspects alone: a bug where it has a name. */
static void demote_whole_kinds(const fd_residuals *r, const tally *of, fd_node_finding *finding,
                               fd_node_finding *suspect) {
    for (int32_t i = 0; i < r->graph->n_node; i++) {
        if (!fd_fault_begins_kind(r->graph, i) || !whole_kind(r, finding, of, i)) continue;
        for (int32_t k = i; k < r->graph->n_node; k++) {
            bool departs = finding[k].finding != FD_FOUND_NOTHING;
            if (!departs || !fd_fault_same_kind(&r->graph->nodes[k], &r->graph->nodes[i])) continue;
            suspect[k] = finding[k];
            finding[k] = (fd_node_finding){0};
        }
    }
}

static fd_code suspect_what_stands_out(const fd_residuals *r, const fd_node_finding *finding, fd_node_finding *suspect,
                                       fd_error *err) {
    size_t n_node = (size_t)r->graph->n_node, n_pos = (size_t)r->n_pos;
    float *middle = malloc(sizeof *middle * (n_node + 1)), *rows = malloc(sizeof *rows * (n_pos + 1));
    fd_code code =
        middle && rows ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "residuals of %zu nodes: out of memory", n_node);
    for (size_t i = 0; i < n_node && code == FD_OK; i++) {
        memcpy(rows, r->left + i * n_pos, sizeof *rows * n_pos);
        middle[i] = (float)fd_residual_median(rows, r->n_pos);
    }
    for (int32_t i = 0; i < r->graph->n_node && code == FD_OK; i++) {
        bool known = finding[i].finding != FD_FOUND_NOTHING || suspect[i].finding != FD_FOUND_NOTHING;
        if (known || !stands_out(r, middle, i)) continue;
        suspect[i] = r->odd[i * FD_FIRST_COUNT + FD_FIRST_NOTED];
        for (size_t p = 0; p < n_pos; p++) suspect[i].n_odd += r->left[(size_t)i * n_pos + p] >= FD_RESIDUAL_LEAST;
    }
    free(middle);
    free(rows);
    return code;
}

fd_code fd_residuals_judge(const fd_residuals *r, fd_node_finding *finding, fd_node_finding *suspect, fd_error *err) {
    int32_t n_node = r->graph->n_node, n_judged = 0, n_cached = 0, n_at_once = 0;
    tally all = {0}, *of = calloc((size_t)n_node, sizeof *of);
    if (!of) return fd_fail(err, FD_ERR_MEMORY, "residuals of %d nodes: out of memory", n_node);
    for (int32_t i = 0; i < n_node; i++) {
        of[i] = count(r, i);
        all.n += of[i].n;
        all.odd += of[i].odd;
        n_judged += of[i].n > 0;
        n_cached += r->cached[i] && of[i].n > 0;
        n_at_once += r->cached[i] && of[i].at_once;
    }
    bool all_at_once = n_at_once >= FEWEST_ALIKE && 2 * n_at_once > n_cached;
    for (int32_t i = 0; i < n_node; i++) {
        finding[i] = suspect[i] = (fd_node_finding){0};
        if (of[i].odd == 0) continue;
        double p = (all.odd - of[i].odd + 1.0) / (all.n - of[i].n + 2.0);
        bool departs = chance(&of[i], p) + log(n_judged) < log(FD_RESIDUAL_CHANCE);
        bool all_rows = of[i].at_once && 2 * of[i].much_of_class > of[i].odd && clean_elsewhere(r, of, i);
        bool by_much = (2 * of[i].beyond > of[i].odd && !r->routed[i]) || all_rows;
        bool late = of[i].odd_late > 0 && odd_after_prompt(r, of, i);
        const fd_node_finding *first = &r->odd[i * FD_FIRST_COUNT], *odd = first + FD_FIRST_ODD;
        if (late) odd = first + FD_FIRST_LATE; /* an odd row before is a value that fell to the other side */
        if (departs && (!r->cached[i] || by_much)) finding[i] = *odd;
        const bool shown =
            i + 1 == r->shown_at; /* its bug gives rows to their last bits: what is odd there is no chance */
        const fd_node_finding *far = late || shown ? odd : first + FD_FIRST_FAR;
        if (of[i].beyond >= FEWEST_BEYOND && !r->routed[i]) finding[i] = *far;
        if (is_suspect(r, i, &of[i], all_at_once) || late || shown) suspect[i] = *odd;
        if (of[i].beyond > 0 || fd_draws_mostly_apart(of[i].apart, of[i].n)) suspect[i] = *far;
        finding[i].n_odd = suspect[i].n_odd = of[i].odd;
    }
    demote_whole_kinds(r, of, finding, suspect);
    free(of);
    return suspect_what_stands_out(r, finding, suspect, err);
}
