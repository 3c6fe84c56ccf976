/* The numbers that people know, as text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/report/layer_rows.h"
#include "compare/report/line.h"
#include "compare/report/report.h"
#include "compare/report/text.h"

/* The node that the verdict is about; NULL: none, or not measured. */
static const fd_node_measure *measured_node(const fd_verdict *v) {
    for (int32_t i = 0; i < v->measures.n_node && v->divergence.kind == FD_DIVERGED_VALUES; i++)
        if (strcmp(v->map.cells[i].name, v->divergence.node) == 0) return &v->measures.nodes[i];
    return NULL;
}

void fd_report_numbers(FILE *to, const fd_verdict *v) {
    const fd_node_measure *node = measured_node(v);
    char text[160] = "";
    if (!v->measures.n_node) return;
    if (node && node->n_pos && isfinite(fd_measure_nmse(node)))
        snprintf(text, sizeof text, "NMSE %.3g, cosine %.6g there", fd_measure_nmse(node), fd_measure_cosine(node));
    if (text[0]) fd_line(to, "numbers", "%s", text);
    fd_logits_summary s = fd_measure_logits(&v->measures);
    if (s.n_pos)
        fd_line(to, "logits",
                "KL divergence %.3g nats, at most %.3g (position %d); the same best token at %d of %d "
                "positions, its probability %.3g → %.3g, RMS Δp %.3g",
                s.mean_kl, s.largest_kl, s.largest_kl_pos, s.n_same_best, s.n_pos, s.reference_share, s.candidate_share,
                s.rms_share);
}

static void put_number(char *to, size_t size, double x) {
    if (isnan(x))
        snprintf(to, size, "—");
    else
        snprintf(to, size, "%.3g", x);
}

/* %-12s counts bytes, and — has three. */
static void put_column(FILE *to, const char *text, int width) {
    int wide = 0;
    for (const char *p = text; *p; p++) wide += (*p & 0xc0) != 0x80;
    fprintf(to, "%s%*s", text, width - wide > 1 ? width - wide : 1, "");
}

static void put_layer(FILE *to, const char *mark, const char *const cells[4]) {
    static const int widths[4] = {8, 10, 12, 12};
    fputs("  ", to);
    put_column(to, mark, 12);
    for (int i = 0; i < 4; i++) put_column(to, cells[i], widths[i]);
}

static void put_layers(FILE *to, const fd_verdict *v) {
    static const char *const heads[] = {"layer", "z", "NMSE", "1 − cosine"};
    int32_t n;
    fd_layer_row *rows = fd_layer_rows(v, &n);
    fputc('\n', to);
    put_layer(to, "layers", heads);
    fputs("after\n", to);
    for (int32_t i = 0; rows && i < n; i++) {
        char layer[16] = "", z[24], nmse[24], cosine[24];
        const char *const cells[] = {layer, z, nmse, cosine};
        if (rows[i].layer >= 0) snprintf(layer, sizeof layer, "%d", rows[i].layer);
        put_number(z, sizeof z, rows[i].z < 0 ? NAN : rows[i].z);
        put_number(nmse, sizeof nmse, rows[i].nmse);
        put_number(cosine, sizeof cosine, rows[i].cosine > 1 ? 0 : 1 - rows[i].cosine); /* rounding alone passes 1 */
        put_layer(to, rows[i].introduced ? "  wrong →" : "", cells);
        fd_put_clean(to, rows[i].node);
        fputc('\n', to);
    }
    free(rows);
}

static void put_side_by_side(FILE *to, const fd_verdict *v) {
    const fd_node_measure *node = measured_node(v);
    if (!node || !node->values.n) return;
    const fd_measured_values *m = &node->values;
    fprintf(to, "\n  %-11s %-10s%-20s%-20s%-20s%s\n", "values", "element", "reference", "replayed", "candidate",
            "|Δ|/τ");
    for (int32_t i = 0; i < m->n; i++) {
        char ref[40], replayed[40], cand[40];
        const double own = v->replay.of_reference ? m->reference[i] : m->candidate[i];
        fd_value_text(m->reference[i], ref, sizeof ref);
        fd_value_text((double)(float)m->replayed[i], replayed, sizeof replayed);
        fd_value_text(m->candidate[i], cand, sizeof cand);
        fprintf(to, "  %-11s %-10lld%-20s%-20s%-20s%.3g\n", m->first + i == m->worst ? "    worst" : "",
                (long long)(m->first + i), ref, replayed, cand, fabs(own - m->replayed[i]) / m->tau[i]);
    }
    fprintf(to, "  %-11s of %s at position %d, around its worst element\n", "", v->divergence.node, m->pos);
}

static void put_tokens(FILE *to, const fd_verdict *v) {
    const fd_measures *m = &v->measures;
    fprintf(to, "\n  %-11s %-6s%-20s%-26s%-26s%s\n", "tokens", "pos", "token", "best of the reference",
            "best of the candidate", "KL, nats");
    for (int32_t p = 0; p < m->n_pos; p++) {
        const fd_logits_measure *at = &m->logits[p];
        char fed[80] = "", best[2][96] = {"", ""}, kl[24] = "";
        if (m->tokens) snprintf(fed, sizeof fed, "%d '%s'", m->tokens[p], fd_measure_token_text(m, m->tokens[p]));
        for (int s = 0; s < 2 && at->known; s++)
            snprintf(best[s], sizeof best[s], "%d '%s' %.3g", at->top[s][0].token,
                     fd_measure_token_text(m, at->top[s][0].token), at->top[s][0].probability);
        if (at->known) put_number(kl, sizeof kl, at->kl);
        fprintf(to, "  %-11s %-6d", at->known && at->top[0][0].token != at->top[1][0].token ? "    another" : "", p);
        put_column(to, fed, 20);
        put_column(to, best[0], 26);
        put_column(to, best[1], 26);
        fprintf(to, "%s\n", kl);
    }
}

void fd_report_details(FILE *to, const fd_verdict *v, fd_report_colour colour) {
    if (!v->measures.n_node) return;
    fd_report_map(to, v, colour);
    put_side_by_side(to, v);
    put_layers(to, v);
    put_tokens(to, v);
}
