#include "compare/diff/golden_near.h"

#include <stdlib.h>

#include "compare/bounds/numerics_class.h"

double fd_golden_near_limit(const char *numerics) {
    const fd_numerics_class *class_ = fd_numerics_class_find(numerics);
    return class_ && class_->q8_activations ? FD_GOLDEN_NEAR_LIMIT_INT8 : FD_GOLDEN_NEAR_LIMIT;
}

static double distance(const float *now, const float *then, int32_t n) {
    double error = 0, power = 0;
    for (int32_t i = 0; i < n; i++) {
        double d = (double)now[i] - (double)then[i];
        error += d * d;
        power += (double)then[i] * (double)then[i];
    }
    return error == 0 ? 0 : error / power;
}

static int32_t highest(const float *logits, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static void look(const fd_golden_prompt *p, const float *now, int32_t n_vocab, int32_t pos, double limit,
                 fd_golden_near *out) {
    double z = distance(now, p->logits + (int64_t)pos * n_vocab, n_vocab);
    if (pos + 1 >= p->n_prompt && pos + 1 < p->n_token && highest(now, n_vocab) != p->tokens[pos + 1]) out->n_flip++;
    if (!out->near) return;
    out->near = z <= limit;
    if (z <= out->worst) return;
    out->worst = z;
    out->pos = pos;
}

fd_code fd_golden_check_near(fd_exec *exec, const fd_golden *golden, int32_t prompt, double limit, fd_golden_near *out,
                             fd_error *err) {
    const fd_golden_prompt *p = &golden->prompts[prompt];
    int32_t n_vocab = golden->n_vocab;
    *out = (fd_golden_near){.near = true};
    float *logits = malloc(sizeof *logits * (size_t)p->n_prompt * (size_t)n_vocab);
    if (!logits) return fd_fail(err, FD_ERR_MEMORY, "logits of %d positions: out of memory", p->n_prompt);
    fd_exec_reset(exec);
    fd_code code = FD_OK;
    for (int32_t pos = 0, n; pos < p->n_pos && code == FD_OK; pos += n) {
        n = pos == 0 ? p->n_prompt : 1;
        fd_batch batch = {.tokens = p->tokens + pos, .n_tok = n, .pos0 = pos, .all_logits = true, .logits = logits};
        code = fd_exec_forward(exec, &batch, err);
        for (int32_t i = 0; i < n && code == FD_OK; i++)
            look(p, logits + (int64_t)i * n_vocab, n_vocab, pos + i, limit, out);
    }
    free(logits);
    return code;
}
