/* What the page draws, as JavaScript. Numbers are rounded: the verdict's own are in the JSON report, which is in the page
 * too. */
#include "compare/report/page.h"

#include <math.h>
#include <string.h>

/* Numbers of a kind from which on they are rounded more: a page should stay below 5 MB. */
enum { MANY = 50000 };

/* Text from files: nothing of it may end the string or the script. */
static void put_string(FILE *to, const char *text) {
    fputc('"', to);
    for (const unsigned char *s = (const unsigned char *)text; *s; s++)
        if (*s < 0x20 || strchr("\"\\<>&'\x7f", *s))
            fprintf(to, "\\u%04x", *s);
        else
            fputc(*s, to);
    fputc('"', to);
}

/* A name from a file need not be UTF-8. */
static void put_name(FILE *to, const char *text) {
    char ascii[256];
    size_t n = 0;
    for (; text[n] && n + 1 < sizeof ascii; n++) ascii[n] = (unsigned char)text[n] < 0x80 ? text[n] : '?';
    ascii[n] = '\0';
    put_string(to, ascii);
}

/* JavaScript reads 1e999 as Infinity. */
static void put_number(FILE *to, double x, int digits) {
    if (isnan(x))
        fputs("null", to);
    else if (isinf(x))
        fputs(x < 0 ? "-1e999" : "1e999", to);
    else {
        char text[40], *exponent;
        snprintf(text, sizeof text, "%.*g", digits, x);
        exponent = strstr(text, "e-0"); /* of 600,000 numbers, a byte each */
        if (exponent) memmove(exponent + 2, exponent + 3, strlen(exponent + 3) + 1);
        fputs(text, to);
    }
}

/* −1: not judged, or not known. */
static void put_shares(FILE *to, const char *key, const float *z, int64_t n, int digits) {
    fprintf(to, ",%s:[", key);
    for (int64_t i = 0; i < n; i++) {
        if (i) fputc(',', to);
        put_number(to, z[i] < 0 ? -1 : isnan(z[i]) ? INFINITY : (double)z[i], digits);
    }
    fputc(']', to);
}

static void put_numbers(FILE *to, const char *key, const double *x, int32_t n, int digits) {
    fprintf(to, "%s:[", key);
    for (int32_t i = 0; i < n; i++) {
        if (i) fputc(',', to);
        put_number(to, x[i], digits);
    }
    fputc(']', to);
}

static void put_counts(FILE *to, const char *key, const uint32_t *counts) {
    fprintf(to, ",%s:[", key);
    int n = FD_MEASURE_BINS;
    while (n > 1 && !counts[n - 1]) n--; /* none follow */
    for (int i = 0; i < n; i++) fprintf(to, i ? ",%u" : "%u", counts[i]);
    fputc(']', to);
}

/* "blk.3.attn_q" in layer 3: "attn_q". */
static const char *suffix(const fd_verdict_cell *cell) {
    const char *dot = cell->layer < 0 ? NULL : strchr(cell->name, '.');
    dot = dot ? strchr(dot + 1, '.') : NULL;
    return dot ? dot + 1 : cell->name;
}

static void put_measure(FILE *to, const fd_measures *m, int32_t node, int32_t n_head) {
    const fd_node_measure *of = &m->nodes[node];
    const fd_measured_values *v = &of->values;
    bool many = (int64_t)m->n_node * m->n_pos > MANY;
    int digits = many && !(of->z > 1) ? 6 : 9; /* 9 identify a binary32 */
    put_shares(to, "rel", m->relative + (int64_t)node * m->n_pos, m->n_pos, many ? 1 : 3);
    if (of->n_pos) {
        fputs(",nmse:", to);
        put_number(to, fd_measure_nmse(of), 4);
        fputs(",cosine:", to);
        put_number(to, fd_measure_cosine(of), 8);
    }
    if (!v->n) return;
    put_counts(to, "ulp", of->ulp);
    put_counts(to, "tau", of->tau_ulp);
    fprintf(to, ",values:{pos:%d,first:%lld,worst:%lld,", v->pos, (long long)v->first, (long long)v->worst);
    put_numbers(to, "ref", v->reference, v->n, digits);
    fputc(',', to);
    put_numbers(to, "rep", v->replayed, v->n, digits);
    fputc(',', to);
    put_numbers(to, "cand", v->candidate, v->n, digits);
    fputc(',', to);
    put_numbers(to, "tau", v->tau, v->n, 3);
    fputc('}', to);
    if (of->by_pos_head) put_shares(to, "map", of->by_pos_head, (int64_t)m->n_pos * n_head, 2);
}

static void put_nodes(FILE *to, const fd_verdict *v) {
    const fd_verdict_map *m = &v->map;
    bool many = (int64_t)m->n_node * m->n_pos > MANY;
    fputs("const nodes=[\n", to);
    for (int32_t i = 0; i < m->n_node; i++) {
        const fd_verdict_cell *c = &m->cells[i];
        fputs("{name:", to);
        put_name(to, c->name);
        fputs(",column:", to);
        put_name(to, suffix(c));
        fputs(",op:", to);
        put_name(to, c->op);
        fprintf(to, ",layer:%d,input:[%d,%d],finding:", c->layer, c->input[0], c->input[1]);
        put_name(to, c->finding);
        fputs(",z:", to);
        put_number(to, c->z < 0 ? -1 : (double)c->z, 3);
        put_shares(to, "pos", m->by_pos + (int64_t)i * m->n_pos, m->n_pos, many ? 2 : 3);
        put_shares(to, "head", m->by_head + (int64_t)i * m->most_heads, c->n_head, many ? 2 : 3);
        if (v->measures.n_node == m->n_node) put_measure(to, &v->measures, i, c->n_head);
        fputs("},\n", to);
    }
    fputs("];\nconst first=", to);
    put_name(to, v->divergence.kind == FD_DIVERGED_VALUES ? v->divergence.node : "");
    fputs(";\n", to);
}

static void put_tokens(FILE *to, const fd_measures *m) {
    fputs("tokens:", to);
    for (int32_t p = 0; m->tokens && p < m->n_pos; p++) fprintf(to, p ? ",%d" : "[%d", m->tokens[p]);
    fputs(m->tokens && m->n_pos ? "],\ntexts:{" : "null,\ntexts:{", to);
    for (int32_t i = 0; i < m->n_text; i++) {
        fprintf(to, i ? ",%d:" : "%d:", m->texts[i].token);
        put_string(to, m->texts[i].text);
    }
    fputs("},\nlogits:[", to);
    for (int32_t p = 0; p < m->n_pos; p++) {
        const fd_logits_measure *l = &m->logits[p];
        if (p) fputs(",\n", to);
        if (!l->known) fputs("null", to);
        if (!l->known) continue;
        fputs("{kl:", to);
        put_number(to, l->kl, 4);
        fprintf(to, ",rank:%d,top:[", l->candidate_rank);
        for (int side = 0; side < 2; side++) {
            fputs(side ? "],[" : "[", to);
            for (int k = 0; k < FD_MEASURE_TOP && l->top[side][k].token >= 0; k++)
                fprintf(to, k ? ",[%d,%.4g]" : "[%d,%.4g]", l->top[side][k].token, l->top[side][k].probability);
        }
        fputs("]]}", to);
    }
    fputs("],\n", to);
}

static void put_health(FILE *to, const fd_measures *m) {
    fputs("health:[", to);
    for (int side = 0; side < 2 && m->health; side++) {
        fputs(side ? "],[" : "[", to);
        for (int32_t p = 0; p < m->n_pos; p++) {
            const fd_position_health *h = &m->health[side * m->n_pos + p];
            if (p) fputc(',', to);
            if (!h->known) fputs("null", to);
            if (!h->known) continue;
            fprintf(to, "{n_kv:%d,loop:%d,range:", h->n_kv, h->loop_length);
            put_number(to, h->logit_range, 4);
            fputs(",top1:", to);
            put_number(to, h->top1_probability, 4);
            fputc('}', to);
        }
    }
    fputs(m->health ? "]],\n" : "],\n", to);
}

static void put_entropy(FILE *to, const fd_measures *m) {
    bool any = false;
    for (int32_t i = 0; i < 2 * m->n_layer; i++) any |= m->n_entropy[i] > 0;
    fprintf(to, "n_head:%d,entropy:", m->n_head);
    if (!any) fputs("null,\n", to);
    for (int32_t i = 0; any && i < 2 * m->n_layer; i++) {
        fputs(i == 0 ? "[[" : i == m->n_layer ? "],[" : ",", to);
        if (!m->n_entropy[i]) fputs("null", to);
        for (int32_t h = 0; m->n_entropy[i] && h < m->n_head; h++) {
            fputc(h ? ',' : '[', to);
            put_number(to, m->entropy[(int64_t)i * m->n_head + h], 4);
        }
        if (m->n_entropy[i]) fputc(']', to);
    }
    if (any) fputs("]],\n", to);
}

typedef struct base64 {
    FILE *to;
    uint32_t bits;
    int n; /* bytes in `bits` */
} base64;

static void put_byte(base64 *b, uint8_t byte) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    b->bits = b->bits << 8 | byte;
    if (++b->n < 3) return;
    for (int i = 18; i >= 0; i -= 6) fputc(digits[b->bits >> i & 63], b->to);
    b->n = 0;
    b->bits = 0;
}

/* [n_head, triangle of queries and the keys up to them] a side, with zeros up to a multiple of three bytes. */
static void put_attention(FILE *to, const fd_attention_maps *a) {
    if (!a->weights) {
        fputs("attention:null", to);
        return;
    }
    fprintf(to, "attention:{layer:%d,n_head:%d,n_pos:%d,beyond:%s,weights:[", a->layer, a->n_head, a->n_pos,
            a->beyond ? "true" : "false");
    for (int side = 0; side < 2; side++) {
        base64 out = {.to = to};
        bool there = false;
        int64_t n = (int64_t)a->n_head * a->n_pos;
        const uint8_t *weights = a->weights + side * n * a->n_pos;
        for (int64_t i = 0; i < n * a->n_pos; i++) there |= weights[i] != 0;
        if (side) fputc(',', to);
        fputs(there ? "\"" : "null", to);
        for (int64_t row = 0; there && row < n; row++)
            for (int32_t k = 0; k <= row % a->n_pos; k++) put_byte(&out, weights[row * a->n_pos + k]);
        while (there && out.n) put_byte(&out, 0);
        if (there) fputc('"', to);
    }
    fputs("]}", to);
}

void fd_page_data(FILE *to, const fd_verdict *v) {
    const fd_measures *m = &v->measures;
    put_nodes(to, v);
    fputs("const measured={", to);
    if (m->n_node) {
        put_tokens(to, m);
        put_health(to, m);
        put_entropy(to, m);
        put_attention(to, &m->maps);
    } else {
        fputs("tokens:null,texts:{},logits:[],health:null,n_head:0,entropy:null,attention:null", to);
    }
    fputs("};\n", to);
}
