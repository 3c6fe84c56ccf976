/* Norms that are wrong nearly along another bug of theirs: that bug is not their name, but what they divide by is. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/compare/replay_bench.h"

/* The variance where the mean of squares is right: of these tokens a smaller eps goes along it, and leaves a fifth of the squares. */
static void by_variance(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    float *rows = args->out;
    run_clean(args);
    for (int64_t row = 0; row < args->n_pos; row++) {
        const float *x = (const float *)args->in[0] + row * n;
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < n; i++) {
            sum += (double)x[i];
            squares += (double)x[i] * (double)x[i];
        }
        const double mean = sum / (double)n, right = squares / (double)n + (double)args->node->eps;
        for (int64_t i = 0; i < n; i++)
            rows[row * n + i] = (float)((double)rows[row * n + i] * sqrt(right / (right - mean * mean)));
    }
}

Test(refuted_slopes, a_bug_along_which_most_of_a_finding_goes_but_not_all_is_not_its_name) {
    static const int32_t tokens[] = {1, 1036, 261, 1783, 1237, 392, 282, 562, 285, 261, 300};
    const recording how = {.emulated = "f32",
                           .numerics = "unknown",
                           .tensors = "token_embd,*attn_[qkv],*rope,*attn_out,*proj,*inp,*act,*down,*l_out,logits",
                           .n_prompt = 11,
                           .tokens = tokens};
    bench b = open_bench(models[0], (recording){.n_prompt = 11, .tokens = tokens});
    fd_graph *faulty = graph_copy(&b);
    for (int32_t i = 0; i < faulty->n_node; i++)
        if (fd_node_is_norm(&faulty->nodes[i])) faulty->nodes[i].override = by_variance;
    fd_verdict v = judged(&b, faulty, how);
    const fd_explanation *e = &v.diagnosis.explanation;
    expect_at(&v, "blk.0.attn_q", "variance");
    cr_expect(e->named && strcmp(e->remaining[0].name, "other_statistic") == 0, "%s, slope %g",
              e->named ? e->remaining[0].summary : "", e->slope);
    fd_verdict_free(&v);
    fd_graph_free(faulty);
    close_model(&b);
}
