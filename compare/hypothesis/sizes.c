/* A factor that is one of the model's own sizes says where it comes from. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare/hypothesis/internal.h"

/* As near as a number is solved for. */
#define NEAR_SIZE 1e-5

typedef struct model_size {
    const char *name;
    double n;
} model_size;

enum { N_FORM = 4, MOST_NAMED = 3 };
static const char *const before[N_FORM] = {"", "1 / ", "sqrt", "1 / sqrt"};

static double form_of(int form, double n) {
    const double x = form < 2 ? n : sqrt(n);
    return form % 2 ? 1 / x : x;
}

/* Numbers that any mistake may have. */
static bool is_small(double x) {
    return fabs(x - rint(x)) < NEAR_SIZE && fabs(x) < 5;
}

void fd_hypothesis_say_size(double value, const fd_graph *graph, char *to, size_t size) {
    const fd_hparams *p = &graph->hparams;
    const double group = p->n_head_kv > 0 ? (double)p->n_head / p->n_head_kv : 0;
    const model_size sizes[] = {{"n_embd", p->n_embd},          {"head_dim", p->head_dim}, {"n_layer", p->n_layer},
                                {"2 n_layer", 2. * p->n_layer}, {"n_head", p->n_head},     {"n_head_kv", p->n_head_kv},
                                {"n_head / n_head_kv", group},  {"n_ff", p->n_ff},         {"n_vocab", p->n_vocab}};
    const double x = fabs(value);
    int n = 0;
    size_t at = strlen(to);
    if (!(x > 0) || is_small(x) || is_small(1 / x)) return;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int form = 0; form < N_FORM && n < MOST_NAMED && at < size; form++) {
            const char *name = sizes[i].name;
            if (!(sizes[i].n > 1) || !(fabs(x / form_of(form, sizes[i].n) - 1) <= NEAR_SIZE)) continue;
            const bool brackets = form >= 2 || (form == 1 && strchr(name, ' '));
            at += (size_t)snprintf(to + at, size - at, "%s%s%s%s%s", n++ ? " or " : ", equal to ", before[form],
                                   brackets ? "(" : "", name, brackets ? ")" : "");
        }
}
