/* fd_gpu_check MODEL.gguf [--prefill N] [--decode N] [--fault NAME[@LAYER]] [--quick] [--q8act] [--cache-type TYPE] [--gpus
 * N|LIST]: the GPU engine against the CPU reference, bit by bit.
 *
 * lockstep every node of a prefill of N tokens and N decode steps, both backends observed; the decode steps fused,
 * and node by node worked out fingerprints, statistics and health of the same tensors, worked out on the device,
 * decode steps late untraced logits of prefill and decode without an observer (fused, one CUDA graph) = the
 * reference's twice the same again splits the same tokens in batches of 1, 2, 3, 5, 8 and 40: the same logits
 * variants without CUDA graph, fusion, overlap: the same logits (not with --quick) last row a prompt's last logits
 * without the others' generation tokens sampled on the device = those the CPU samples from its own logits sequences
 * in one batch, of different lengths: what each gets is what it gets alone
 *
 * Exit status: 0 equal, 1 a difference, 2 unusable input, 77 no device. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "faults/faults.h"
#include "reference_cpu/reference.h"
#include "tests/gpu/check_run.h"
#include "tests/gpu/generation.h"
#include "tests/gpu/gpu_check.h"
#include "tests/gpu/lockstep.h"
#include "tests/gpu/summaries.h"

typedef struct options {
    const char *path, *fault, *cache;
    int n_prefill, n_decode;
    bool quick, q8act;
    fd_engine_devices gpus;
} options;

static error_t parse(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    switch (key) {
    case 'p': o->n_prefill = atoi(arg); return 0;
    case 'd': o->n_decode = atoi(arg); return 0;
    case 'f': o->fault = arg; return 0;
    case 'q': o->quick = true; return 0;
    case 'c': o->cache = arg; return 0;
    case '8': o->q8act = true; return 0;
    case 'g': {
        fd_error err = {0};
        if (fd_engine_parse_devices(arg, &o->gpus, &err) != FD_OK) argp_error(state, "%s", err.message);
        return 0;
    }
    case ARGP_KEY_ARG: o->path = arg; return 0;
    case ARGP_KEY_END:
        if (!o->path || o->n_prefill < 1 || o->n_decode < 0) argp_usage(state);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static void check_worked_out(check *c, fd_exec *gpu, summaries *s) {
    fd_error err = {0};
    fd_exec_set_observer(gpu, summaries_compare(s));
    run(gpu, c, c->n_prefill, 1, c->found);
    must(fd_exec_flush(gpu, &err), &err);
    fd_exec_set_observer(gpu, (fd_observer){0});
    bool same = summaries_report(s, (int64_t)c->n_token * c->graph->n_node);
    verdict(c, "worked out on the device: fingerprints, statistics and health", same);
    verdict(c, "worked out on the device: logits", same_logits(c));
}

static void check_variants(check *c, const options *o, int32_t n_ctx, fd_numerics numerics) {
    static const struct {
        const char *name;
        fd_engine_options options;
    } variants[] = {
        {"without CUDA graph", {.no_graph = true}},
        {"without fusion", {.no_fusion = true}},
        {"without overlap", {.no_overlap = true}},
        {"without any of them", {.no_graph = true, .no_fusion = true, .no_overlap = true}},
    };
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        fd_error err = {0};
        fd_exec *exec;
        char name[64];
        fd_engine_options variant = variants[i].options;
        variant.n_ctx = n_ctx;
        variant.numerics = numerics;
        variant.devices = o->gpus;
        must(fd_engine_new(c->graph, &variant, &exec, &err), &err);
        run(exec, c, c->n_prefill, 1, c->found);
        snprintf(name, sizeof name, "variants: %s", variants[i].name);
        verdict(c, name, same_logits(c));
        fd_exec_free(exec);
    }
}

static void check_generation(check *c, const options *o, fd_exec *cpu, fd_exec *gpu) {
    generation_test t = {.cpu = cpu,
                         .gpu = gpu,
                         .tokens = c->tokens,
                         .logits = c->logits,
                         .n_prompt = c->n_prefill,
                         .n_token = c->n_token};
    for (int i = 0; i < generation_samplers(); i++) {
        char name[96];
        snprintf(name, sizeof name, "generation: %s", generation_sampler_name(i));
        verdict(c, name, generation_equals_cpu(&t, i));
    }
    fd_error err = {0};
    static const int32_t counts[] = {2, 3, 8, 11};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        char name[96];
        fd_engine_options several = {.n_ctx = c->n_token, .n_seq = counts[i], .numerics = cpu->numerics};
        several.devices = o->gpus;
        must(fd_engine_new(c->graph, &several, &t.gpu, &err), &err);
        snprintf(name, sizeof name, "%d sequences: each one's logits are those it has alone", counts[i]);
        verdict(c, name, sequences_have_logits(&t, counts[i]));
        snprintf(name, sizeof name, "%d sequences: each one's tokens are those it has alone", counts[i]);
        verdict(c, name, sequences_generate_alone(&t, counts[i]));
        fd_exec_free(t.gpu);
    }
}

int main(int argc, char **argv) {
    static const struct argp_option known[] = {{"prefill", 'p', "N", 0, "tokens of the first batch (13)", 0},
                                               {"decode", 'd', "N", 0, "tokens after it, one at a time (32)", 0},
                                               {"fault", 'f', "NAME[@LAYER]", 0, "inject a fault into both", 0},
                                               {"quick", 'q', NULL, 0, "leave out the variants", 0},
                                               {"gpus", 'g', "N|LIST", 0, "the GPUs that share the model", 0},
                                               {"cache-type", 'c', "TYPE", 0, "of K and V, in both (f32)", 0},
                                               {"q8act", '8', NULL, 0, "both in q8act instead of exact", 0},
                                               {0}};
    static const struct argp parser = {known, parse, "MODEL.gguf", "Compares the GPU engine with the CPU reference.", 0,
                                       0,     0};
    options o = {.n_prefill = 13, .n_decode = 32};
    argp_parse(&parser, argc, argv, 0, NULL, &o);
    setenv("CUDA_MODULE_LOADING", "EAGER",
           0); /* where a GPU is named twice: a kernel is not loaded while another waits */
    fd_error err = {0};
    fd_gguf *gguf;
    fd_graph *built, *graph;
    fd_fault_owner *faulty = NULL;
    fd_exec *cpu, *gpu;
    open_model_or_skip(o.path, &gguf, &built);
    must(fd_graph_clone(built, &graph, &err), &err);
    if (o.cache) must(fd_graph_set_kv_types(graph, o.cache, &err), &err);
    if (o.fault) must(fd_fault_apply(o.fault, graph, &faulty, &err), &err);

    check c = {.graph = graph, .n_prefill = o.n_prefill, .n_token = o.n_prefill + o.n_decode, .started = now()};
    int32_t n_ctx = c.n_token;
    open_check(&c);
    fd_numerics numerics = o.q8act ? FD_NUMERICS_Q8ACT : FD_NUMERICS_EXACT;
    must(fd_reference_new(graph, &(fd_reference_options){.numerics = numerics, .n_ctx = n_ctx}, &cpu, &err), &err);
    fd_engine_options on_gpu = {.numerics = numerics, .n_ctx = n_ctx, .devices = o.gpus};
    must(fd_engine_new(graph, &on_gpu, &gpu, &err), &err);
    printf("%s: %s, %s, %d nodes, prefill %d, decode %d%s%s\n  on %s (%s)\n", o.path, graph->hparams.arch,
           fd_numerics_name(numerics), graph->n_node, o.n_prefill, o.n_decode, o.fault ? ", fault " : "",
           o.fault ? o.fault : "", gpu->device, gpu->driver);
    fd_engine_memory memory;
    must(fd_engine_memory_needed(graph, &(fd_engine_size){.n_ctx = n_ctx, .numerics = numerics}, &memory, &err), &err);
    printf("  estimate %.3f GiB of device memory; set up in %.1f s\n", (double)fd_engine_memory_total(&memory) / 0x1p30,
           now() - c.started);
    c.started = now();

    summaries worked_out;
    must(summaries_open(&worked_out, graph, c.n_token, &err), &err);
    fd_observer also = summaries_expect(&worked_out);
    check_lockstep(&c, "decode as it runs", cpu, gpu, &also);
    check_worked_out(&c, gpu, &worked_out);
    summaries_close(&worked_out);
    check_untraced(&c, gpu);
    check_generation(&c, &o, cpu, gpu);
    fd_exec_free(gpu);
    if (!o.quick) {
        on_gpu.observe_by_node = true;
        must(fd_engine_new(graph, &on_gpu, &gpu, &err), &err);
        check_lockstep(&c, "node by node", cpu, gpu, NULL);
        fd_exec_free(gpu);
        check_variants(&c, &o, n_ctx, numerics);
    }
    printf("%s\n", c.n_failed ? "DIFFERENT" : "EQUAL");

    fd_exec_free(cpu);
    fd_graph_free(graph);
    fd_graph_free(built);
    fd_fault_owner_free(faulty);
    fd_gguf_close(gguf);
    close_check(&c);
    return c.n_failed != 0;
}
