/* Explanations on the conformance models, for the faults of what the bundled models do not have: experts, windows,
 * softcaps, sinks, QK-norms, norms behind the blocks. Every fault of the table that concerns such a model is
 * injected in each layer. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/compare/explain_bench.h"
#include "tests/ops/shared_files.h"

static const char *const archs[] = {"qwen3-dense",    "gemma2-dense", "qwen3moe-moe",   "gpt-oss-moe",
                                    "llama-moe",      "gpt2-dense",   "bloom-dense",    "olmo-dense",
                                    "nemotron-dense", "deepseek-moe", "stablelm-dense", "phi3-dense"};
enum { N_ARCH = sizeof archs / sizeof *archs };

Test(explain_archs, every_fault_is_located_and_named_and_none_wrongly) {
    score all = {0};
    for (int a = 0; a < N_ARCH; a++) {
        bench b = open_arch(archs[a]);
        int32_t n_token;
        for (int32_t i = 0; i < b.graph->n_node; i++) b.graph->nodes[i].limit *= 0.1f; /* so that a clamp is reached */
        int32_t *tokens = read_ids(shared_file("conformance/tokens.txt"), &n_token);
        n_token -= n_token % 8 == 0; /* a multiple of a page would need no keys that pad it */
        recorded_run clean = record_run(b.graph, tokens, n_token);
        score s = {0};
        for (int32_t i = 0; i < fd_fault_count(); i++)
            for (int32_t layer = 0; layer < (fd_fault_at(i)->outside ? 1 : b.graph->hparams.n_layer); layer++)
                inject_and_explain(&b, b.graph, &clean, tokens, i, layer, archs[a], &s);
        print_score(archs[a], &s);
        all.n_injected += s.n_injected;
        all.n_located += s.n_located;
        all.n_named += s.n_named;
        all.n_wrong += s.n_wrong;
        recorded_run_free(&clean);
        free(tokens);
        close_model(&b);
    }
    cr_expect(all.n_injected > 600, "%d", all.n_injected);
    cr_expect_eq(all.n_wrong, 0);
    cr_expect_eq(all.n_located, all.n_injected);
    cr_expect(100 * all.n_named >= 98 * all.n_injected, "named %d of %d", all.n_named, all.n_injected);
}
