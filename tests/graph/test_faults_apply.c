/* Faults as edits of a graph: what each changes, and what is refused. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "faults/faults.h"
#include "tests/graph/small_model.h"

static fd_graph *build(const char *arch, fd_gguf **gguf) {
    fd_error err = {0};
    fd_graph *graph;
    *gguf = small_model(&(small_model_options){.arch = arch, .tied = true});
    cr_assert(fd_graph_build(*gguf, &graph, NULL, &err) == FD_OK, "%s", err.message);
    return graph;
}

static bool node_changed(const fd_graph *a, const fd_graph *b, int32_t i) {
    const fd_node *x = &a->nodes[i], *y = &b->nodes[i];
    return x->override != y->override || x->rope.pairing != y->rope.pairing || x->row_offset != y->row_offset ||
           x->weight[0] != y->weight[0] || x->weight[1] != y->weight[1];
}

Test(faults, each_changes_first_the_node_it_says_and_only_its_layer) {
    fd_gguf *gguf;
    fd_graph *clean = build("qwen2", &gguf);
    for (int32_t f = 0; f < fd_fault_count(); f++)
        for (int32_t layer = 0; layer < 2; layer++) {
            const fd_fault_info *info = fd_fault_at(f);
            char spec[64], expected[64];
            snprintf(spec, sizeof spec, "%s@%d", info->name, layer);
            snprintf(expected, sizeof expected, "blk.%d.%s", layer, info->located);
            fd_error err = {0};
            fd_graph *g;
            fd_fault_owner *owner;
            cr_assert(fd_graph_clone(clean, &g, &err) == FD_OK);
            cr_assert(fd_fault_apply(spec, g, &owner, &err) == FD_OK, "%s", err.message);
            cr_expect(fd_graph_validate(g, &err) == FD_OK, "%s: %s", spec, err.message);
            int32_t first = -1;
            for (int32_t i = 0; i < g->n_node; i++)
                if (node_changed(clean, g, i)) {
                    if (first < 0) first = i;
                    cr_expect(g->nodes[i].layer == layer, "%s changes %s", spec, g->nodes[i].name);
                }
            cr_expect(first >= 0 && strcmp(g->nodes[first].name, expected) == 0, "%s changes %s first, expected %s", spec,
                      first >= 0 ? g->nodes[first].name : "nothing", expected);
            fd_graph_free(g);
            fd_fault_owner_free(owner);
        }
    fd_graph_free(clean);
    fd_gguf_close(gguf);
}

Test(faults, in_out_moves_elements_and_short_bytes_are_zero) {
    fd_gguf *gguf;
    fd_graph *clean = build("llama", &gguf), *g;
    fd_error err = {0};
    fd_fault_owner *owner;
    int32_t k = fd_graph_find(clean, "blk.1.attn_k");
    const fd_weight *w = &clean->weights[clean->nodes[k].weight[0]];

    cr_assert(fd_graph_clone(clean, &g, &err) == FD_OK && fd_fault_apply("weight_in_out@1", g, &owner, &err) == FD_OK);
    const float *before = w->data, *after = g->weights[g->nodes[k].weight[0]].data;
    cr_assert(after[1 * w->n_col + 2] == before[2 * w->n_row + 1]);
    fd_graph_free(g);
    fd_fault_owner_free(owner);

    cr_assert(fd_graph_clone(clean, &g, &err) == FD_OK && fd_fault_apply("bytes_read_short@1", g, &owner, &err) == FD_OK);
    const char *bytes = g->weights[g->nodes[k].weight[0]].data;
    size_t read = (size_t)(w->n_row * w->n_col) / 2;
    cr_assert(memcmp(bytes, w->data, read) == 0);
    for (size_t i = read; i < w->bytes; i++) cr_assert(bytes[i] == 0);
    fd_graph_free(g);
    fd_fault_owner_free(owner);
    fd_graph_free(clean);
    fd_gguf_close(gguf);
}

Test(faults, bad_specs_are_refused_by_name) {
    static const struct { const char *spec, *message; } cases[] = {
        {"rope_parity", "fault \"rope_parity\": unknown; known: rope_pairing"},
        {"rope_pairing@2", "fault layer \"2\": expected 0 to 1"},
        {"rope_pairing@", "fault layer \"\""},
        {"rope_pairing@1x", "fault layer \"1x\""},
        {"rope_pairing@-1", "fault layer \"-1\""},
        {"missing_qkv_bias", "has nothing that it could change"},
    };
    fd_gguf *gguf;
    fd_graph *graph = build("llama", &gguf);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_error err = {0};
        fd_fault_owner *owner;
        cr_expect(fd_fault_apply(cases[i].spec, graph, &owner, &err) == FD_ERR_INPUT && owner == NULL);
        cr_expect(strstr(err.message, cases[i].message), "%s: \"%s\"", cases[i].spec, err.message);
    }
    fd_graph_free(graph);
    fd_gguf_close(gguf);
}
