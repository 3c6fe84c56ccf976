/* Replay on the conformance models: clean runs of every emulated engine are noise, also where experts are chosen,
 * windows end and tensors are missing; wrong experts are not. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "compare/infer/evidence.h"
#include "tests/compare/replay_bench.h"

static const char *const archs[] = {"qwen3-dense", "gemma2-dense",   "qwen3moe-moe", "gpt-oss-moe",
                                    "llama-moe",   "gpt2-dense",     "bloom-dense",  "olmo-dense",
                                    "phi3-dense",  "nemotron-dense", "deepseek-moe", "stablelm-dense"};
enum { N_ARCH = sizeof archs / sizeof *archs, N_WITHOUT_A_CLASS = 5 };
static const int32_t tokens[N_PREFILL + N_DECODE] = {65, 91, 7, 119, 63, 13, 40, 28};

/* With windows of 3 positions, so that eight tokens leave some behind. */
static bench open_windowed(const char *name) {
    bench b = open_arch(name);
    for (int32_t i = 0; i < b.graph->n_node; i++)
        if (b.graph->nodes[i].window > 0) b.graph->nodes[i].window = 3;
    b.ref = record(b.graph, (recording){.tokens = tokens});
    return b;
}

Test(replay_archs, a_clean_run_is_noise_in_every_class_told_or_inferred) {
    for (int a = 0; a < N_ARCH; a++) {
        bench b = open_windowed(archs[a]);
        for (int32_t i = 0; i < fd_emulate_class_count(); i++) {
            if (a >= N_WITHOUT_A_CLASS && (i + a) % 2) continue;
            const char *name = fd_emulate_class_at(i)->name;
            recording told = {.emulated = name, .tokens = tokens}, silent = told;
            silent.numerics = "unknown";
            expect_noise(judged(&b, b.graph, told), archs[a], name);
            if (i % N_WITHOUT_A_CLASS == a) expect_noise(judged(&b, b.graph, silent), archs[a], name);
        }
        close_model(&b);
    }
}

/* What stands between two recorded tensors is replayed through: choices of experts that rounding turned must not be
 * called errors. In bf16 choices lie so close that nothing can be told without them. */
Test(replay_archs, clean_runs_with_few_tensors_are_no_errors) {
    static const struct {
        const char *class, *tensors;
        bool told; /* NOISE; else it may also be "cannot tell" */
    } cases[] = {
        {"f32", "*l_out", true},
        {"q8", "*attn_out", true},
        {"f32", "*ffn_moe_out", true},
        {"q8", "*ffn_moe_weights", true},
        {"hf-bf16", "*l_out", false},
        {"hf-bf16", "*ffn_moe_out", false},
        {"hf-bf16", "*attn_out", false},
        {"hf-bf16", "*ffn_moe_weights", false},
        {"hf-bf16", "*ffn_inp,*ffn_moe_topk,*ffn_moe_out,*l_out", true},
    };
    int n_told = 0;
    for (int a = 1; a < N_ARCH; a++) {
        bench b = open_windowed(archs[a]);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            recording how = {.emulated = cases[i].class, .tokens = tokens, .tensors = cases[i].tensors};
            if (strstr(how.tensors, "moe") && b.graph->hparams.n_expert == 0) continue;
            fd_verdict v = judged(&b, b.graph, how);
            bool untold = !cases[i].told && v.status == FD_INCOMPLETE;
            cr_expect(v.status == FD_NOISE || untold, "%s %s %s: %s at %s, z %g", archs[a], how.emulated, how.tensors,
                      fd_verdict_status_name(v.status), v.divergence.node, v.replay.z);
            cr_expect_eq(v.replay.n_introduced, 0);
            n_told += v.status == FD_NOISE;
            fd_verdict_free(&v);
        }
        close_model(&b);
    }
    cr_expect(n_told >= 18, "only %d told", n_told);
}

Test(replay_archs, a_trace_says_what_its_nodes_were_made_with) {
    static const struct {
        const char *arch, *node, *op, *params;
    } cases[] = {
        {"gemma2-dense", "token_embd_scaled", "scale", "factor=11.3137083"},
        {"gemma2-dense", "blk.0.attn_scores", "attn_scores", "scale=0.176776692 window=3 softcap=50"},
        {"gemma2-dense", "blk.1.attn_scores", "attn_scores", "scale=0.176776692 softcap=50"},
        {"gemma2-dense", "logits", "softcap", "cap=30"},
        {"qwen3-dense", "blk.1.attn_q_norm", "rms_norm", "eps=9.99999975e-06"},
        {"qwen3moe-moe", "blk.1.ffn_moe_topk", "top_k", "k=2"},
        {"qwen3moe-moe", "blk.1.ffn_moe_weights", "expert_weights", "gating=normalised"},
        {"gpt-oss-moe", "blk.1.ffn_moe_weights", "expert_weights", "gating=softmax"},
        {"gpt-oss-moe", "blk.1.ffn_moe_act", "swiglu_clamp", "slope=1.70200002 limit=7"},
        {"gpt-oss-moe", "blk.1.ffn_moe_down", "expert_matmul", "n_expert=4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench b = open_windowed(cases[i].arch);
        fd_trace *trace = record(b.graph, (recording){.tokens = tokens, .tensors = cases[i].node});
        int32_t at = fd_trace_find(trace, cases[i].node);
        cr_assert(at >= 0, "%s", cases[i].node);
        cr_expect_str_eq(fd_trace_node_at(trace, at)->op, cases[i].op);
        cr_expect_str_eq(fd_trace_node_at(trace, at)->params, cases[i].params);
        fd_trace_close(trace);
        close_model(&b);
    }
}

Test(replay_archs, faults_are_found_at_their_node_in_noise) {
    static const struct {
        const char *arch, *fault, *node;
    } cases[] = {
        {"qwen3-dense", "qk_norm_missing@1", "blk.1.attn_q_norm"},
        {"gemma2-dense", "attn_softcap_missing@1", "blk.1.attn_scores"},
        {"gemma2-dense", "window_one_more@2", "blk.2.attn_scores"},
        {"gemma2-dense", "window_one_less@0", "blk.0.attn_scores"},
        {"gemma2-dense", "embed_scale_missing", "token_embd_scaled"},
        {"gemma2-dense", "norm_plus_one_missing@1", "blk.1.attn_norm"},
        {"gemma2-dense", "final_softcap_missing", "logits"},
        {"qwen3moe-moe", "moe_next_expert@1", "blk.1.ffn_moe_gate"},
        {"qwen3moe-moe", "moe_smallest@1", "blk.1.ffn_moe_topk"},
        {"qwen3moe-moe", "moe_not_normalised@2", "blk.2.ffn_moe_weights"},
        {"gpt-oss-moe", "sinks_missing@1", "blk.1.attn_weights"},
        {"gpt-oss-moe", "moe_softmax_over_all@1", "blk.1.ffn_moe_weights"},
        {"gpt-oss-moe", "moe_bias_missing@0", "blk.0.ffn_moe_gate"},
        {"llama-moe", "moe_first_alone@1", "blk.1.ffn_moe_out"},
    };
    static const char *const classes[] = {"f32", "f16", "q8"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench b = open_windowed(cases[i].arch);
        for (size_t k = 0; k < sizeof classes / sizeof *classes; k++) {
            fd_graph *faulty = faulted(&b, cases[i].fault);
            fd_verdict v = judged(&b, faulty, (recording){.emulated = classes[k], .tokens = tokens});
            cr_expect_eq(v.status, FD_DIVERGED, "%s in %s, %s: %s", cases[i].fault, cases[i].arch, classes[k],
                         fd_verdict_status_name(v.status));
            cr_expect_str_eq(v.divergence.node, cases[i].node, "%s in %s, %s: found at %s", cases[i].fault,
                             cases[i].arch, classes[k], v.divergence.node);
            fd_verdict_free(&v);
        }
        close_model(&b);
    }
}

/* What follows the last product is the logits, capped or scaled: engines of 16-bit tensors widen all of it. */
Test(replay_archs, logits_begin_with_the_last_product) {
    static const char *const first[] = {"logits", "logits_raw"};
    for (int a = 0; a < 2; a++) {
        bench b = open_arch(archs[a]);
        const int32_t i = fd_first_of_logits(b.graph);
        cr_expect_str_eq(b.graph->nodes[i].name, first[a], "%s: %s", archs[a], b.graph->nodes[i].name);
        close_model(&b);
    }
}
