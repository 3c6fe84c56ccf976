#include "tests/gpu/summaries.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/best_logits.h"

fd_code summaries_open(summaries *s, const fd_graph *graph, int32_t n_pos, fd_error *err) {
    *s = (summaries){.graph = graph, .n_pos = n_pos, .at = -1};
    s->expected = calloc((size_t)n_pos * (size_t)graph->n_node, sizeof *s->expected);
    return s->expected ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "summaries: out of memory");
}

void summaries_close(summaries *s) {
    for (int64_t i = 0; s->expected && i < (int64_t)s->n_pos * s->graph->n_node; i++) free(s->expected[i].entropy);
    free(s->expected);
}

static summary *summary_at(summaries *s, int32_t pos, int32_t node) {
    return &s->expected[(int64_t)pos * s->graph->n_node + node];
}

static fd_code expect(void *user, const fd_observation *o, fd_error *err) {
    summaries *s = user;
    int32_t room = o->pos0 + o->n_pos;
    float *row = malloc(sizeof *row * (size_t)(o->row_stride + 1));
    if (!row) return fd_fail(err, FD_ERR_MEMORY, "summaries: out of memory");
    for (int32_t r = 0; r < o->n_pos; r++) {
        const float *from = (const float *)o->data + r * o->row_stride;
        summary *out = summary_at(s, o->pos0 + r, o->node->id);
        int64_t n = o->row_stride, n_kv = o->pos0 + r + 1;
        fd_tally tally = fd_tally_none();
        fd_sum64 sum = {0}, squares = {0};
        for (int64_t i = 0; !o->node->over_kv && i < n; i++) row[i] = from[i];
        if (o->node->over_kv) n = o->node->shape[0] * n_kv;
        for (int64_t i = 0; o->node->over_kv && i < n; i++) row[i] = from[i / n_kv * room + i % n_kv];
        for (int64_t i = 0; i < n; i++) {
            double term = fd_tally_add(&tally, (double)row[i]);
            fd_sum64_add(&sum, term);
            fd_sum64_add(&squares, term * term);
        }
        out->print = fd_fingerprint_f32(row, n);
        out->stats = fd_tally_end(&tally, fd_sum64_end(&sum), fd_sum64_end(&squares));
        if (o->node->id == s->graph->n_node - 1) best_logits(row, (int32_t)n, &out->top);
        if (o->node->op != FD_OP_ATTN_SOFTMAX) continue;
        int32_t n_head = o->node->shape[0];
        free(out->entropy);
        out->entropy = malloc(2 * sizeof *out->entropy * (size_t)n_head);
        if (!out->entropy) {
            free(row);
            return fd_fail(err, FD_ERR_MEMORY, "summaries: out of memory");
        }
        out->sink = out->entropy + n_head;
        for (int32_t h = 0; h < n_head; h++) {
            fd_sum64 nats = {0};
            for (int64_t k = 0; k < n_kv; k++) fd_sum64_add(&nats, fd_plogp((double)row[h * n_kv + k]));
            out->entropy[h] = (float)(0.0 - fd_sum64_end(&nats));
            out->sink[h] = row[h * n_kv];
        }
    }
    free(row);
    return FD_OK;
}

static bool same32(const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (fd_canonical32(a[i]) != fd_canonical32(b[i])) return false;
    return true;
}

static bool same_stats(const fd_stats *a, const fd_stats *b) {
    const double *x = &a->min, *y = &b->min;
    for (size_t i = 0; i < sizeof *a / sizeof *x; i++)
        if (fd_canonical64(x[i]) != fd_canonical64(y[i])) return false;
    return true;
}

static bool same_row(summaries *s, const fd_observation *o, int32_t r) {
    const summary *e = summary_at(s, o->pos0 + r, o->node->id);
    bool logits = o->node->id == s->graph->n_node - 1, weights = o->node->op == FD_OP_ATTN_SOFTMAX;
    size_t n_head = (size_t)o->node->shape[0], at = (size_t)r * n_head;
    if (!o->fingerprints || o->fingerprints[r].lo != e->print.lo || o->fingerprints[r].hi != e->print.hi) return false;
    if (!o->stats || !same_stats(&o->stats[r], &e->stats)) return false;
    if (weights && !(o->entropy && o->sink && same32(o->entropy + at, e->entropy, n_head) &&
                     same32(o->sink + at, e->sink, n_head)))
        return false;
    if (!logits) return true;
    const fd_top_logits *top = o->top ? &o->top[r] : NULL;
    return top && memcmp(top->id, e->top.id, sizeof e->top.id) == 0 && same32(top->logit, e->top.logit, FD_TOP_K) &&
           same32(&top->probability, &e->top.probability, 1) && same32(&top->range, &e->top.range, 1);
}

static unsigned wants(void *user, const fd_node *node) {
    return (void)user, (void)node, FD_WANT_FINGERPRINT | FD_WANT_STATS | FD_WANT_HEALTH;
}

static fd_code compare(void *user, const fd_observation *o, fd_error *err) {
    (void)err;
    summaries *s = user;
    if (o->pos0 != s->at) s->out_of_order = true;
    for (int32_t r = 0; r < o->n_pos; r++) {
        bool same = !o->data && same_row(s, o, r);
        if (!same && s->n_differ++ < 5) printf("  %s, position %d: worked out otherwise\n", o->node->name, o->pos0 + r);
        s->n_compared++;
    }
    return FD_OK;
}

static fd_code begin(void *user, const fd_batch *batch, fd_error *err) {
    (void)err;
    summaries *s = user;
    if (s->at != -1) s->out_of_order = true;
    s->at = batch->pos0;
    return FD_OK;
}

static fd_code end(void *user, fd_error *err) {
    (void)err;
    summaries *s = user;
    if (s->at < 0) s->out_of_order = true;
    s->at = -1;
    return FD_OK;
}

fd_observer summaries_expect(summaries *s) {
    return (fd_observer){.observe = expect, .user = s};
}

fd_observer summaries_compare(summaries *s) {
    return (fd_observer){.observe = compare, .wants = wants, .user = s, .begin = begin, .end = end};
}

bool summaries_report(const summaries *s, int64_t n_compared) {
    if (s->out_of_order) printf("  a tensor was shown outside its step\n");
    if (s->n_compared != n_compared)
        printf("  %lld rows were compared, expected %lld\n", (long long)s->n_compared, (long long)n_compared);
    return !s->out_of_order && s->at == -1 && s->n_differ == 0 && s->n_compared == n_compared;
}
