/* Engines that quantise the file's weights as they load them: no op is wrong, the weights are others, and the verdict says which. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/weights/requantise.h"
#include "model/gguf/quant.h"
#include "tests/compare/mixed_products.h"
#include "tests/compare/replay_bench.h"

/* What one test holds. */
typedef struct engine {
    fd_graph *graph;
    void *rows[256];
    int32_t n_row;
} engine;

static engine new_engine(const bench *b) {
    return (engine){.graph = graph_copy(b)};
}

static void drop(engine *e) {
    for (int32_t i = 0; i < e->n_row; i++) free(e->rows[i]);
    fd_graph_free(e->graph);
}

/* Matrices whose name has `part`. */
static void quantise(engine *e, const char *part, fd_requantisation q) {
    fd_error err = {0};
    for (int32_t i = 0; i < e->graph->n_weight; i++) {
        fd_weight again, *w = &e->graph->weights[i];
        if (w->n_row == 1 || !strstr(w->name, part) || !fd_requantisation_fits(&q, w->n_col)) continue;
        must(fd_requantise_weight(&q, w, &again, &err), &err);
        e->rows[e->n_row++] = (void *)again.data;
        *w = again;
    }
}

static const char all[] = "*", layers[] = "token_embd,*l_out,logits",
                  products[] = "*norm,*attn_[qkv],*proj,*inp,*down,*l_out";

static fd_verdict verdict_of(const bench *b, const engine *e, recording how) {
    how.numerics = "unknown";
    return judge(b->graph, b->ref, record(e->graph, how), NULL);
}

static void expect_named(fd_verdict *v, const char *says, const char *what) {
    cr_expect_eq(v->status, FD_DIVERGED, "%s: %s", what, fd_verdict_status_name(v->status));
    cr_expect_str_eq(v->weights.fault, "quantised_again", "%s", what);
    cr_expect(strstr(v->weights.summary, says) != NULL, "%s: %s", what, v->weights.summary);
    cr_expect(v->weights.replayed && v->weights.n_differ > 1, "%s: %d", what, v->weights.n_differ);
    cr_expect_str_empty(v->replay.finding, "%s: every op is right by them, but %s", what, v->divergence.node);
    fd_verdict_free(v);
}

static void expect_not_named(fd_verdict v, const char *what) {
    cr_expect_str_empty(v.weights.fault, "%s: %s", what, v.weights.summary);
    cr_expect_eq(v.weights.n_differ, 0, "%s", what);
    fd_verdict_free(&v);
}

static const struct {
    fd_requantisation q;
    const char *says;
} grids[] = {
    {{FD_REQUANTISE_LARGEST, 8, 64, FD_F32, false}, "8 bits in groups of 64, each with a scale (symmetric)"},
    {{FD_REQUANTISE_LARGEST, 8, 0, FD_F32, false}, "8 bits in whole rows, each with a scale (symmetric)"},
    {{FD_REQUANTISE_LARGEST_WIDE, 4, 32, FD_F16, false}, "4 bits in groups of 32, each with a scale (symmetric)"},
    {{FD_REQUANTISE_LARGEST_HALF, 4, 128, FD_F16, false}, "4 bits in groups of 128, each with a scale (symmetric)"},
    {{FD_REQUANTISE_SIGNED, 4, 32, FD_F16, false}, "4 bits in groups of 32, each with a scale (symmetric)"},
    {{FD_REQUANTISE_ZERO_POINT, 4, 128, FD_F16, false},
     "4 bits in groups of 128, each with a scale and an offset (affine)"},
    {{FD_REQUANTISE_MINIMUM, 3, 64, FD_F32, false}, "3 bits in groups of 64, each with a scale and an offset (affine)"},
    {{FD_REQUANTISE_EDGE, 4, 64, FD_F32, false}, "4 bits in groups of 64, each with a scale and an offset (affine)"},
    {{FD_REQUANTISE_EDGE, 8, 32, FD_BF16, true}, "8 bits in groups of 32, each with a scale and an offset (affine)"},
    {{FD_REQUANTISE_NF4, 4, 64, FD_F32, false}, "4 bits in groups of 64, each with a scale (NF4)"},
};
enum { N_GRID = sizeof grids / sizeof *grids };

Test(requantised, bits_and_groups_are_solved_for) {
    static const char *const tensors[] = {all, products, layers};
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_bench(models[m], (recording){0});
        for (int i = m; i < N_GRID; i += N_MODEL) {
            engine e = new_engine(&b);
            quantise(&e, "", grids[i].q);
            fd_verdict v = verdict_of(&b, &e, (recording){.tensors = tensors[i % 3]});
            expect_named(&v, grids[i].says, grids[i].says);
            drop(&e);
        }
        close_model(&b);
    }
}

/* Embedding and head often stay as they are; the weights' own rounding is larger than bfloat16's. */
Test(requantised, beside_rounding_and_in_the_layers_alone) {
    bench b = open_bench(models[1], (recording){0});
    for (int i = 0; i < N_GRID; i += 2) {
        engine e = new_engine(&b);
        quantise(&e, "blk.", grids[i].q);
        fd_verdict v = verdict_of(&b, &e, (recording){.tensors = products, .emulated = i % 4 ? "hf-bf16" : "f16"});
        cr_expect_str_eq(v.weights.fault, "quantised_again", "%s", grids[i].says);
        cr_expect(strstr(v.weights.summary, grids[i].says) != NULL, "%s: %s", grids[i].says, v.weights.summary);
        cr_expect_eq(strncmp(v.weights.name, "blk.0.", 6), 0, "%s: %s", grids[i].says, v.weights.name);
        fd_verdict_free(&v);
        drop(&e);
    }
    close_model(&b);
}

/* Of an embedding nothing says so, and most weights that something is said of are the file's. */
Test(requantised, of_one_matrix_a_layer_and_no_more) {
    static const char inside[] = "*norm,*attn_[qkv],*proj,*inp,*act,*down,*l_out";
    bench b = open_bench(models[1], (recording){0});
    engine e = new_engine(&b);
    quantise(&e, "ffn_down", grids[0].q);
    fd_verdict v = verdict_of(&b, &e, (recording){.tensors = inside});
    cr_expect_eq(v.weights.n_differ, b.graph->hparams.n_layer, "%d: also %s", v.weights.n_differ, v.weights.others);
    expect_named(&v, grids[0].says, "down alone");
    drop(&e);
    close_model(&b);
}

/* Activations in int8 blocks meet weights that the file has in another type. */
Test(requantised, int8_activations_beside_them_are_a_class) {
    bench b = open_bench(models[1], (recording){0});
    engine e = new_engine(&b);
    quantise(&e, "", grids[0].q);
    for (int32_t i = 0; i < e.graph->n_node; i++)
        if (e.graph->nodes[i].op == FD_OP_MATMUL) e.graph->nodes[i].override = int8_blocks_64;
    fd_verdict v = verdict_of(&b, &e, (recording){.tensors = all});
    cr_expect_str_eq(v.replay.numerics, "int8-64-f32kv");
    expect_named(&v, grids[0].says, "runq.c");
    drop(&e);
    close_model(&b);
}

Test(requantised, hashes_say_it_too) {
    bench b = open_bench(models[0], (recording){0});
    for (int i = 0; i < N_GRID; i++) {
        engine e = new_engine(&b);
        quantise(&e, i % 2 ? "blk.1" : "", grids[i].q);
        fd_verdict v = verdict_of(&b, &e, (recording){.weights = b.graph, .n_prompt = 2});
        cr_expect(!v.weights.by_values);
        cr_expect_eq(v.weights.n_explained, v.weights.n_differ, "%s", grids[i].says);
        expect_named(&v, grids[i].says, grids[i].says);
        drop(&e);
    }
    close_model(&b);
}

/* A bug beside them is found with the weights as they were. */
Test(requantised, a_bug_beside_them_has_its_own_name) {
    bench b = open_bench(models[0], (recording){0});
    engine e = new_engine(&b);
    quantise(&e, "", grids[7].q);
    fd_fault_owner *owner;
    fd_error err = {0};
    must(fd_fault_apply("rope_pairing@2", e.graph, &owner, &err), &err);
    fd_verdict v = verdict_of(&b, &e, (recording){.tensors = all});
    cr_expect_str_eq(v.weights.fault, "quantised_again");
    cr_expect_str_eq(v.divergence.node, "blk.2.attn_q_rope");
    cr_expect(v.diagnosis.explanation.named);
    cr_expect_str_eq(v.diagnosis.explanation.remaining[0].name, "rope_pairing");
    fd_verdict_free(&v);
    fd_fault_owner_free(owner);
    drop(&e);
    close_model(&b);
}

static float *last_cast;
static void cast_weights(engine *e, float (*to)(float)) {
    for (int32_t i = 0; i < e->graph->n_weight; i++) {
        fd_weight again, *w = &e->graph->weights[i];
        const fd_requantisation nothing = {FD_REQUANTISE_LARGEST, 8, 1 << 30, FD_F32, false};
        fd_error err = {0};
        must(fd_requantise_weight(&nothing, w, &again, &err), &err); /* no row has a group */
        last_cast = (float *)again.data;
        for (int64_t k = 0; k < w->n_row * w->n_col; k++) last_cast[k] = to(last_cast[k]);
        e->rows[e->n_row++] = last_cast;
        *w = again;
    }
}

static float to_f16(float x) {
    return (float)(_Float16)x;
}
static float to_bf16(float x) {
    return fd_bf16_to_f32(fd_f32_to_bf16(x));
}
static float a_hundredth_more(float x) {
    return 1.01f * x;
}

/* Q8_0 in binary16 is off by what a scale in binary16 is. */
Test(requantised, other_weights_are_not_called_so) {
    static float (*const to[])(float) = {to_f16, to_bf16, a_hundredth_more};
    static const char *const classes[] = {"hf-f16", "hf-bf16", "f16"};
    for (int m = 0; m < N_MODEL; m++) {
        bench b = open_bench(models[m], (recording){0});
        for (int i = 0; i < 3; i++) {
            engine e = new_engine(&b);
            cast_weights(&e, to[i]);
            expect_not_named(verdict_of(&b, &e, (recording){.tensors = products, .emulated = classes[i]}), classes[i]);
            drop(&e);
        }
        close_model(&b);
    }
}

/* A class of its own, w8a8; and what blocks of activations leave, is no quantising of weights. */
Test(requantised, int8_of_activations_is_not_called_so) {
    static const fd_override_fn how[] = {int8_rows,       int8_both,    int8_blocks_64,
                                         int8_blocks_128, bf16_factors, tf32_factors};
    bench b = open_bench(models[0], (recording){0});
    for (size_t k = 0; k < sizeof how / sizeof *how; k++) {
        engine e = new_engine(&b);
        for (int32_t i = 0; i < e.graph->n_node; i++)
            if (e.graph->nodes[i].op == FD_OP_MATMUL) e.graph->nodes[i].override = how[k];
        expect_not_named(verdict_of(&b, &e, (recording){.tensors = all}), "products");
        drop(&e);
    }
    close_model(&b);
}
