#include "compare/measure/measures.h"

#include <math.h>
#include <stdlib.h>

double fd_measure_nmse(const fd_node_measure *node) {
    if (!node->n_pos) return NAN;
    return node->reference2 > 0 ? node->error2 / node->reference2 : node->error2 == 0 ? 0 : INFINITY;
}

double fd_measure_cosine(const fd_node_measure *node) {
    double norm = sqrt(node->reference2) * sqrt(node->candidate2);
    if (!node->n_pos) return NAN;
    return norm > 0 ? node->product / norm : NAN;
}

fd_logits_summary fd_measure_logits(const fd_measures *measures) {
    fd_logits_summary s = {.largest_kl_pos = -1};
    double change2 = 0;
    for (int32_t p = 0; p < measures->n_pos; p++) {
        const fd_logits_measure *at = &measures->logits[p];
        if (!at->known) continue;
        double change = at->candidate_share - at->top[0][0].probability;
        s.n_pos++;
        s.n_same_best += at->top[0][0].token == at->top[1][0].token;
        s.mean_kl += at->kl;
        s.reference_share += at->top[0][0].probability;
        s.candidate_share += at->candidate_share;
        change2 += change * change;
        if (s.largest_kl_pos >= 0 && at->kl <= s.largest_kl) continue;
        s.largest_kl = at->kl;
        s.largest_kl_pos = p;
    }
    if (!s.n_pos) return s;
    s.mean_kl /= s.n_pos;
    s.reference_share /= s.n_pos;
    s.candidate_share /= s.n_pos;
    s.rms_share = sqrt(change2 / s.n_pos);
    return s;
}

static int by_token(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = ((const fd_token_text *)b)->token;
    return (x > y) - (x < y);
}

const char *fd_measure_token_text(const fd_measures *measures, int32_t token) {
    const fd_token_text *found =
        measures->n_text ? bsearch(&token, measures->texts, (size_t)measures->n_text, sizeof *measures->texts, by_token)
                         : NULL;
    return found ? found->text : "";
}

void fd_measures_free(fd_measures *measures) {
    for (int32_t i = 0; measures->nodes && i < measures->n_node; i++) free(measures->nodes[i].by_pos_head);
    free(measures->nodes);
    free(measures->relative);
    free(measures->logits);
    free(measures->entropy);
    free(measures->n_entropy);
    free(measures->texts);
    free(measures->health);
    free(measures->maps.weights);
    free(measures->tokens);
    *measures = (fd_measures){0};
}
