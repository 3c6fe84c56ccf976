/* Every fault of the table, injected into a run of each bundled and conformance model at the first, a middle or the last
 * layer by turns, must be located at its exact node: by lockstep (diff) and from two traces (compare).
 * tests/compare/test_explain.c and test_explain_archs.c have each in all these layers, a batch long; what shows later is in all of
 * them here. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compare/compare.h"
#include "compare/diff/lockstep.h"
#include "faults/faults.h"
#include "model/gguf_writer/made_model.h"
#include "reference_cpu/reference.h"
#include "tests/compare/explain_bench.h"
#include "tests/faults/dressed.h"
#include "tests/ops/shared_files.h"
#include "tests/scratch.h"

enum { N_GENERATE = 3, N_ARCH = 11 };
/* With a window of 16, which a prompt must be longer than. */
static const char *const archs[N_ARCH] = {"qwen3-dense",  "gemma2-dense",   "qwen3moe-moe", "gpt-oss-moe",
                                          "gpt2-dense",   "bloom-dense",    "olmo-dense",   "nemotron-dense",
                                          "deepseek-moe", "stablelm-dense", "falcon-dense"};

typedef struct feed {
    const int32_t *tokens;
    int32_t n;
} feed;
static const feed short_prompt = {(const int32_t[]){1, 300, 45, 1036, 261, 7}, 6};
static const feed long_prompt = {
    (const int32_t[]){65, 91, 7, 119, 63, 13, 40, 28, 95, 120, 63, 97, 26, 63, 3, 55, 104, 71, 46, 99}, 20};

/* So that a clamp is reached. */
static bench open_clamped(const char *name) {
    bench b = open_arch(name);
    for (int32_t i = 0; i < b.graph->n_node; i++) b.graph->nodes[i].limit *= 0.1f; /* gpt-oss, olmo */
    return b;
}

/* mistral3 with an attention temperature that rises every four positions: its file says 0, and so does not scale. */
static bench open_with_temperature(char **bytes) {
    bench b = {0};
    fd_error err = {0};
    size_t size;
    *bytes = read_bytes(shared_file("conformance/mistral3-dense.gguf"), &size);
    put_value(*bytes, size, "mistral3.attention.temperature_scale", &(float){0.5f});
    must(fd_gguf_parse(*bytes, size, &b.gguf, &err), &err);
    must(fd_graph_build(b.gguf, &b.graph, NULL, &err), &err);
    for (int32_t i = 0; i < b.graph->n_node; i++) /* a file's is the context that it was trained with, 128 */
        if (b.graph->nodes[i].op == FD_OP_ATTN_TEMPERATURE) b.graph->nodes[i].length = 4;
    return b;
}

static bench open_made(const fd_made_model *what) {
    bench b = {0};
    fd_error err = {0};
    must(fd_made_model_open(what, &b.gguf, &err), &err);
    must(fd_graph_build(b.gguf, &b.graph, NULL, &err), &err);
    return b;
}

/* Compressed K and V, experts in groups, chosen by a sigmoid. Q's matrix is square, as the other models' are. */
static const fd_made_model with_mla = {
    .arch = "deepseek2",
    .n_embd = 64,
    .n_ff = 64,
    .keys = {"expert_feed_forward_length=64 attention.q_lora_rank=0",
             "attention.key_length=72 attention.key_length_mla=16 rope.dimension_count=8 expert_gating_func=2"}};
/* Models with a state, and how the names of their own faults begin: what is not their own sits at nodes that they
 * lack. */
static const struct {
    fd_made_model model;
    const char *faults[3];
} with_state[] = {
    {{.arch = "lfm2", .n_layer = 3, .n_embd = 64, .keys = {"attention.head_count_kv=0,2,0", "shortconv.l_cache=3"}},
     {"shortconv_"}},
    {{.arch = "mamba", .n_layer = 3, .n_embd = 64, .keys = {"ssm.inner_size=128"}}, {"ssm_"}},
    {{.arch = "mamba2", .n_layer = 3, .n_embd = 64, .keys = {"ssm.inner_size=128 ssm.group_count=2"}}, {"ssm_"}},
    {{.arch = "qwen3next",
      .n_embd = 64,
      .n_layer = 3,
      .keys = {"full_attention_interval=2 expert_feed_forward_length=64 expert_shared_feed_forward_length=64"}},
     {"attn_gate_", "delta_", "moe_shared_ungated"}},
    {{.arch = "rwkv7", .n_embd = 64, .n_ff = 64, .n_layer = 3, .keys = {"wkv.head_size=32"}}, {"wkv_", "shift_"}},
};

static bool is_own(int m, const fd_fault_info *fault) {
    bool own = false;
    for (int i = 0; i < 3 && with_state[m].faults[i]; i++)
        own |= strncmp(fault->name, with_state[m].faults[i], strlen(with_state[m].faults[i])) == 0;
    return own;
}

static fd_exec *executor(const fd_graph *graph, feed p) {
    fd_exec *exec;
    fd_error err = {0};
    fd_reference_options options = {.numerics = FD_NUMERICS_EXACT, .n_ctx = p.n + N_GENERATE, .n_thread = 1};
    must(fd_reference_new(graph, &options, &exec, &err), &err);
    return exec;
}

static fd_verdict diff(const fd_graph *clean, const fd_graph *faulty, feed p, const char *fault) {
    fd_lockstep_options o = {.tokens = p.tokens, .n_token = p.n, .n_generate = N_GENERATE};
    fd_verdict v;
    fd_error err = {0};
    o.ref = (fd_lockstep_side){.exec = executor(clean, p), .label = "clean", .fault = ""};
    o.cand = (fd_lockstep_side){.exec = executor(faulty, p), .label = "faulty", .fault = fault};
    must(fd_lockstep_run(&o, &v, &err), &err);
    fd_exec_free(o.ref.exec);
    fd_exec_free(o.cand.exec);
    return v;
}

static fd_trace *record(const fd_graph *graph, feed p) {
    char path[SCRATCH_PATH];
    fd_error err = {0};
    fd_trace_writer *writer;
    fd_trace *trace;
    int file = mkstemp(scratch_path(path, "firstdiff-fault-XXXXXX"));
    cr_assert(file >= 0 && close(file) == 0);
    fd_trace_info info = {.numerics = "exact", .contract = FD_CONTRACT_VERSION, .level = FD_TRACE_FINGERPRINT};
    fd_trace_options to = fd_trace_defaults(path);
    to.level = info.level;
    fd_exec *exec = executor(graph, p);
    must(fd_trace_create(&to, &info, graph, FD_NUMERICS_EXACT, &writer, &err), &err);
    fd_exec_set_observer(exec, fd_trace_observer(writer));
    must(fd_trace_begin_step(writer, FD_STEP_PREFILL, p.tokens, p.n, 0, &err), &err);
    must(fd_exec_forward(exec, &(fd_batch){.tokens = p.tokens, .n_tok = p.n}, &err), &err);
    must(fd_trace_end_step(writer, &err), &err);
    must(fd_trace_finish(writer, &err), &err);
    fd_exec_free(exec);
    must(fd_trace_open(path, &trace, &err), &err);
    unlink(path);
    return trace;
}

static fd_verdict compare(fd_trace *clean, const fd_graph *faulty, feed p) {
    fd_verdict v;
    fd_error err = {0};
    fd_trace *trace = record(faulty, p);
    must(fd_compare_traces(clean, trace, &(fd_compare_options){0}, &v, &err), &err);
    fd_trace_close(trace);
    return v;
}

static void expect_located(const fd_verdict *v, const char *expected, const char *spec, const char *model,
                           const char *by) {
    cr_expect_eq(v->status, FD_DIVERGED, "%s in %s by %s: %s", spec, model, by, fd_verdict_status_name(v->status));
    cr_expect_str_eq(v->divergence.node, expected, "%s in %s by %s: located at %s, expected %s", spec, model, by,
                     v->divergence.node, expected);
    cr_expect_eq(v->divergence.inputs_equal, FD_EQUAL, "%s in %s by %s", spec, model, by);
}

/* The node of that layer where the fault must show; layer -1: outside the layers. */
static const char *expected_node(const fd_graph *graph, const fd_fault_info *fault, int32_t layer) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        const bool no_window =
            strcmp(fault->name, "mask_missing") == 0 && node->op == FD_OP_ATTN_SCORES && !node->window;
        if (node->layer == layer && fd_fault_shows_at(fault, node) && !no_window) return node->name;
    }
    return "no node of this model";
}

/* Returns false when the model has nothing that the fault could change. */
static bool locate(const fd_fault_info *fault, int32_t layer, const fd_graph *graph, fd_trace *clean, feed p,
                   const char *model, bool from_traces) {
    char spec[96];
    const char *expected = expected_node(graph, fault, fault->outside ? -1 : layer);
    fd_error err = {0};
    fd_graph *faulty;
    fd_fault_owner *owner;
    snprintf(spec, sizeof spec, fault->outside ? "%s" : "%s@%d", fault->name, layer);
    must(fd_graph_clone(graph, &faulty, &err), &err);
    fd_code code = fd_fault_apply(spec, faulty, &owner, &err);
    if (code == FD_OK) {
        fd_verdict v = diff(graph, faulty, p, spec);
        expect_located(&v, expected, spec, model, "diff");
        fd_verdict_free(&v);
        if (from_traces && !fault->later) { /* the traces hold a first batch alone */
            v = compare(clean, faulty, p);
            expect_located(&v, expected, spec, model, "compare");
            fd_verdict_free(&v);
        }
    } else {
        cr_expect_eq(code, FD_ERR_INPUT);
        cr_expect(strstr(err.message, "nothing that it could change"), "%s: %s", spec, err.message);
    }
    fd_graph_free(faulty);
    fd_fault_owner_free(owner);
    return code == FD_OK;
}

enum { MAX_FAULT = 512 };

/* In a layer that the turn chooses, or the next one that has what the fault changes; in all three what shows later; what sits outside
 * the layers once. Counts the injections per fault. */
static void locate_family(const char *family, const fd_graph *graph, int turn, feed p, const char *model,
                          int32_t n_applied[MAX_FAULT]) {
    fd_trace *clean = record(graph, p);
    int32_t last = graph->hparams.n_layer - 1, layers[] = {last / 2, 0, last};
    for (int32_t i = 0; i < fd_fault_count(); i++) {
        const fd_fault_info *fault = fd_fault_at(i);
        bool done = false;
        if (family && strcmp(fault->family, family) != 0) continue;
        for (int k = 0; k < (fault->outside ? 1 : 3) && !(done && !fault->later); k++) {
            done = locate(fault, layers[(i + turn + k) % 3], graph, clean, p, model, true);
            n_applied[i] += done;
        }
    }
    fd_trace_close(clean);
}

Test(faults, each_is_located_at_its_exact_node_in_the_first_a_middle_or_the_last_layer) {
    int32_t n_applied[MAX_FAULT] = {0}, n_total = 0;
    cr_assert(fd_fault_count() > 0 && fd_fault_count() <= MAX_FAULT);
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_model(models[m]);
        locate_family(NULL, b.graph, m, short_prompt, models[m], n_applied);
        for (int d = 0; d < FD_N_DRESS_ALL && m == 0; d++) {
            fd_dressed dressed = fd_dress_up(b.graph, &fd_dresses[d]);
            locate_family(d < FD_N_DRESS ? NULL : "dequantise", dressed.graph, d, short_prompt, fd_dresses[d].name,
                          n_applied);
            fd_undress(&dressed);
        }
        close_model(&b);
    }
    bool with_archs = *shared_file("conformance/gpt-oss-moe.gguf");
    if (!with_archs) fprintf(stderr, "skipped: the conformance models are not there\n");
    for (int m = 0; m < N_ARCH && with_archs; m++) {
        bench b = open_clamped(archs[m]);
        locate_family(NULL, b.graph, m, long_prompt, archs[m], n_applied);
        close_model(&b);
    }
    if (with_archs) {
        char *bytes;
        bench b = open_with_temperature(&bytes);
        locate_family(NULL, b.graph, 0, long_prompt, "mistral3 with a temperature", n_applied);
        close_model(&b);
        free(bytes);
    }
    bench made = open_made(&with_mla);
    locate_family(NULL, made.graph, 1, long_prompt, "made deepseek2", n_applied);
    close_model(&made);
    for (int m = 0; m < (int)(sizeof with_state / sizeof *with_state); m++) {
        made = open_made(&with_state[m].model);
        fd_trace *clean = record(made.graph, long_prompt);
        for (int32_t i = 0; i < fd_fault_count(); i++)
            for (int32_t layer = 0; layer < 3 && is_own(m, fd_fault_at(i)); layer++)
                n_applied[i] +=
                    locate(fd_fault_at(i), layer, made.graph, clean, long_prompt, with_state[m].model.arch, layer == 1);
        fd_trace_close(clean);
        close_model(&made);
    }
    for (int32_t i = 0; i < fd_fault_count(); i++) {
        n_total += n_applied[i];
        cr_expect(n_applied[i] > 0 || !with_archs, "%s applied to no model", fd_fault_at(i)->name);
    }
    fprintf(stderr, "%d faults, %d injections located by diff, and from traces where a batch shows them\n",
            fd_fault_count(), n_total);
}

Test(faults, a_fault_in_every_layer_is_located_in_the_first) {
    bench b = open_model(models[1]);
    for (int32_t i = 0; i < fd_fault_count(); i++) {
        const fd_fault_info *fault = fd_fault_at(i);
        fd_error err = {0};
        fd_graph *faulty;
        fd_fault_owner *owner;
        must(fd_graph_clone(b.graph, &faulty, &err), &err);
        if (fd_fault_apply(fault->name, faulty, &owner, &err) == FD_OK) {
            fd_verdict v = diff(b.graph, faulty, short_prompt, fault->name);
            /* the first layer has no layer before it */
            int first = strcmp(fault->name, "kv_previous_layer") == 0 ? 1 : 0;
            const char *expected = expected_node(b.graph, fault, fault->outside ? -1 : first);
            expect_located(&v, expected, fault->name, models[1], "diff");
            fd_verdict_free(&v);
            fd_fault_owner_free(owner);
        }
        fd_graph_free(faulty);
    }
    close_model(&b);
}

Test(faults, a_clean_run_raises_no_alarm) {
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_model(models[m]);
        fd_graph *clone;
        fd_error err = {0};
        must(fd_graph_clone(b.graph, &clone, &err), &err);
        fd_verdict v = diff(b.graph, clone, short_prompt, "");
        cr_expect_eq(v.status, FD_IDENTICAL, "%s: %s at %s", models[m], fd_verdict_status_name(v.status),
                     v.divergence.node);
        fd_verdict_free(&v);
        fd_graph_free(clone);
        close_model(&b);
    }
}
