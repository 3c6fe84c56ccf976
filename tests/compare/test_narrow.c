/* Tensors of 16-bit values in a class that keeps binary32: said where its bounds have room for that. */
#include <criterion/criterion.h>
#include <string.h>

#include "compare/dump/narrow.h"
#include "model/gguf/quant.h"
#include "tests/compare/replay_bench.h"

Test(narrow, values_say_their_type_where_there_are_enough) {
    static const struct {
        const char *what;
        float step, first; /* values first + i step */
        int n;
        uint32_t dtype;
    } values[] = {
        {"binary32", 0.1f, 0.3f, 256, FD_F32},
        {"bfloat16", 0.25f, 1, 64, FD_BF16},
        {"binary16", 0x1p-10f, 1, 1024, FD_F16},
        {"too few", 0.25f, 1, 63, FD_F32},
        {"zeros", 0, 0, 1024, FD_F32},
        {"beyond the range of binary16, as bfloat16", 0x1p90f, 0x1p90f, 128, FD_BF16},
        {"beyond the range of binary16", 0x1p90f, 0x1.002p100f, 128, FD_F32},
    };
    float x[1024];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        for (int k = 0; k < values[i].n; k++) x[k] = values[i].first + (float)k * values[i].step;
        cr_expect_eq(fd_narrow_type(x, values[i].n), values[i].dtype, "%s", values[i].what);
    }
}

static void in_binary16(const fd_op_args *args) {
    int64_t n = args->n_pos * fd_node_width(args->node);
    run_clean(args);
    for (int64_t i = 0; i < n; i++) ((float *)args->out)[i] = fd_f16_to_f32(fd_f32_to_f16(((float *)args->out)[i]));
}

/* The class of int8 blocks has room for it, whether it is given or inferred. */
Test(narrow, a_residual_stream_in_binary16_is_said_where_the_bounds_hide_it) {
    static const struct {
        const char *what, *kind, *class_;
        bool said;
        uint32_t store;
    } engines[] = {
        {"sound", NULL, "q8", false},
        {"its stream rounded", ".l_out", "q8", true},
        {"no class given", ".l_out", NULL, true},
        {"saved in binary16", NULL, "q8", false, FD_F16},
        {"saved in binary16, no class given", NULL, NULL, true, FD_F16},
    };
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof engines / sizeof *engines; i++) {
        fd_graph *rounded;
        fd_error err = {0};
        must(fd_graph_clone(b.graph, &rounded, &err), &err);
        for (int32_t k = 0; k < rounded->n_node && engines[i].kind; k++)
            if (rounded->nodes[k].layer >= 0 && strstr(rounded->nodes[k].name, engines[i].kind))
                rounded->nodes[k].override = in_binary16;
        const char *class_ = engines[i].class_ ? engines[i].class_ : "q8";
        fd_trace *cand = record(rounded, (recording){.emulated = class_,
                                                     .numerics = "unknown",
                                                     .tensors = "*norm,*l_out,logits",
                                                     .store = engines[i].store});
        fd_verdict v = judge(b.graph, b.ref, cand, engines[i].class_);
        bool said = false;
        for (int32_t k = 0; k < v.reasons.n; k++) said |= v.reasons.items[k].kind == FD_REASON_NARROW;
        cr_expect_eq(said, engines[i].said, "%s: %s", engines[i].what, fd_verdict_status_name(v.status));
        cr_expect_eq(v.status == FD_NOISE, !engines[i].said, "%s: %s", engines[i].what,
                     fd_verdict_status_name(v.status));
        fd_verdict_free(&v);
        fd_graph_free(rounded);
    }
    close_model(&b);
}

/* Where nothing but the logits is there, they say it of an inferred class, which has to have shown itself; where others are wide, a
 * sum may end in 16 bits. */
Test(narrow, logits_of_binary16_alone_show_no_class_of_binary32_tensors) {
    static const struct {
        const char *emulated, *tensors;
        int32_t n;
    } engines[] = {{"q8", "logits", 0}, {"hf-f16", "logits", 1}, {"f16acc", "*l_out,logits", 0}};
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof engines / sizeof *engines; i++) {
        fd_trace *cand = record(b.graph, (recording){.emulated = engines[i].emulated, .tensors = engines[i].tensors});
        const fd_attribution_options how = {.graph = b.graph, .cand = cand, .numerics = fd_numerics_class_find("q8")};
        fd_narrow inferred, given;
        fd_error err = {0};
        must(fd_find_narrow(&how, true, &inferred, &err), &err);
        must(fd_find_narrow(&how, false, &given, &err), &err);
        cr_expect_eq(inferred.n, engines[i].n, "%s: %d", engines[i].emulated, inferred.n);
        cr_expect_eq(given.n, 0, "%s", engines[i].emulated);
        fd_trace_close(cand);
    }
    close_model(&b);
}
