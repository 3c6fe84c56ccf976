/* Fast numerics traced: every node shown once and near the reference's, the logits those of the untraced run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/check_run.h"
#include "tests/gpu/fast_check.h"

static fd_code keep(void *user, const fd_observation *seen, fd_error *err) {
    (void)err;
    check *c = user;
    rows *r = &c->seen[seen->node->id];
    size_t n = (size_t)(seen->row_stride * seen->n_pos);
    free(r->data);
    r->data = room(n, sizeof *r->data);
    r->n = n;
    memcpy(r->data, seen->data, n * sizeof *r->data);
    return FD_OK;
}

static void look_at_weights(check *c, const fd_observation *seen) {
    const float *w = seen->data;
    int32_t n_kv = seen->pos0 + seen->n_pos;
    const fd_node *scores = &seen->graph->nodes[seen->node->input[0]];
    bool sinks = seen->node->weight[0] >= 0; /* take their share of the sum */
    for (int32_t r = 0; r < seen->n_pos; r++)
        for (int32_t h = 0; h < seen->node->shape[0]; h++, w += n_kv) {
            int32_t pos = seen->pos0 + r, first = fd_node_first_seen(scores, pos);
            double sum = 0;
            bool hidden = true;
            for (int32_t t = 0; t < n_kv; t++) {
                sum += (double)w[t];
                if ((t > pos || t < first) && w[t] != 0.0f) hidden = false;
            }
            bool whole = sinks ? sum > 0 && sum < 1.0001 : fabs(sum - 1) < 1e-4;
            if (!whole || !hidden) c->n_bad_weight++;
        }
}

/* Ids of experts, rank by rank, the larger first: where two change places their routers' values must be near. */
static void look_at_choice(check *c, const fd_observation *seen) {
    const fd_node *from = &seen->graph->nodes[seen->node->input[0]];
    int64_t n = fd_node_row_stride(from, 0), k = seen->row_stride;
    for (int32_t r = 0; r < seen->n_pos && seen->pos0 + r < c->same_until; r++) {
        const float *value = c->seen[from->id].data + r * n, *now = (const float *)seen->data + r * k,
                    *then = c->seen[seen->node->id].data + r * k;
        float largest = 0;
        for (int64_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(value[i]));
        for (int64_t i = 0; i < k; i++) {
            if (now[i] == then[i]) continue;
            int64_t a = fd_expert_of((double)now[i], n), b = fd_expert_of((double)then[i], n);
            if (a < 0 || b < 0 || !(fabsf(value[a] - value[b]) <= 0.01f * largest)) c->wide_margin = true;
            c->same_until = seen->pos0 + r;
        }
    }
}

static fd_code compare(void *user, const fd_observation *seen, fd_error *err) {
    (void)err;
    check *c = user;
    int32_t id = seen->node->id;
    const float *found = seen->data, *expected = c->seen[id].data;
    size_t n = (size_t)(seen->row_stride * seen->n_pos);
    c->n_shown++;
    if (n != c->seen[id].n || seen->dtype != FD_F32) {
        c->n_wrong++;
        return FD_OK;
    }
    if (seen->node->op == FD_OP_TOP_K) look_at_choice(c, seen);
    int32_t same = c->same_until - seen->pos0;
    n = same < 0 ? 0 : same < seen->n_pos ? (size_t)same * (size_t)seen->row_stride : n;
    for (size_t i = 0; i < n; i++) {
        if (isinf(expected[i]) && expected[i] == found[i]) continue;
        double d = (double)found[i] - (double)expected[i];
        c->error[id] += d * d;
        c->power[id] += (double)expected[i] * (double)expected[i];
    }
    if (seen->node->op == FD_OP_ATTN_SOFTMAX) look_at_weights(c, seen);
    return FD_OK;
}

void check_traced(check *c, fd_exec *cpu, fd_exec *gpu) {
    int32_t n_node = c->graph->n_node, n_call = c->n_token - c->n_prefill + 1, worst = 0, n_far = 0;
    fd_exec_reset(cpu);
    fd_exec_reset(gpu);
    fd_exec_set_observer(cpu, (fd_observer){.observe = keep, .user = c});
    fd_exec_set_observer(gpu, (fd_observer){.observe = compare, .user = c});
    for (int32_t pos = 0, n = c->n_prefill; pos < c->n_token; pos += n, n = 1) {
        fd_error err = {0};
        size_t at = (size_t)pos * (size_t)c->graph->hparams.n_vocab;
        fd_batch batch = {
            .tokens = c->tokens + pos, .n_tok = n, .pos0 = pos, .all_logits = true, .logits = c->exact + at};
        must(fd_exec_forward(cpu, &batch, &err), &err);
        batch.logits = c->again + at;
        must(fd_exec_forward(gpu, &batch, &err), &err);
    }
    fd_exec_set_observer(cpu, (fd_observer){0});
    fd_exec_set_observer(gpu, (fd_observer){0});
    for (int32_t i = 0; i < n_node; i++) {
        double z = c->error[i] / c->power[i];
        if (c->error[i] == 0) z = 0;
        if (!(z <= c->limit)) {
            if (n_far++ < 5) printf("  %s: NMSE %.2e\n", c->graph->nodes[i].name, z);
        }
        if (!(z <= c->error[worst] / c->power[worst])) worst = i;
    }
    printf("  worst node %s: NMSE %.2e; %d of %d shown\n", c->graph->nodes[worst].name,
           c->error[worst] / c->power[worst], c->n_shown, n_node * n_call);
    verdict(c, "traced: every node shown once, in its shape", c->n_shown == n_node * n_call && c->n_wrong == 0);
    verdict(c, "traced: every node near the reference's", n_far == 0);
    verdict(c, "traced: logits equal the untraced run's bits", same_bits("logits", c->fast, c->again, n_logits(c)));
    if (c->same_until < c->n_token) printf("  other experts at position %d\n", c->same_until);
    verdict(c, "experts: other ones only where their values are near", !c->wide_margin);
    verdict(c, "weights: sum to 1, 0 where nothing is seen", c->n_bad_weight == 0);
}
