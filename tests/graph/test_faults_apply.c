/* Faults as edits of a graph: what each changes, and what is refused. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "faults/faults.h"
#include "tests/common.h"
#include "tests/graph/small_model.h"

static fd_graph *build(const char *arch) {
    fd_error err = {0};
    fd_graph *graph;
    fd_gguf *gguf = small_model(&(small_model_options){.arch = arch, .tied = true});
    cr_assert(fd_graph_build(gguf, &graph, NULL, &err) == FD_OK, "%s", err.message);
    return kept(graph);
}

static bool node_changed(const fd_graph *a, const fd_graph *b, int32_t i) {
    return memcmp(&a->nodes[i], &b->nodes[i], sizeof a->nodes[i]) != 0; /* a clone's nodes are copied bytes */
}

static int32_t first_changed(const fd_graph *clean, const fd_graph *g, int32_t only_layer, const char *spec) {
    int32_t first = -1;
    for (int32_t i = 0; i < g->n_node; i++)
        if (node_changed(clean, g, i)) {
            if (first < 0) first = i;
            cr_expect(g->nodes[i].layer == only_layer, "%s changes %s", spec, g->nodes[i].name);
        }
    return first;
}

/* A bug of the mask touches the scores too, but only where nobody looks: past a row's own position. */
static bool starts_unseen(const char *name) {
    return strncmp(name, "mask_", 5) == 0;
}

/* Returns false when the model has nothing that the fault could change. */
static bool check_one(const fd_graph *clean, const fd_fault_info *info, int32_t layer) {
    char spec[64];
    fd_error err = {0};
    fd_graph *g;
    fd_fault_owner *owner;
    snprintf(spec, sizeof spec, layer >= 0 ? "%s@%d" : "%s", info->name, layer);
    cr_assert(fd_graph_clone(clean, &g, &err) == FD_OK);
    bool applied = fd_fault_apply(spec, g, &owner, &err) == FD_OK;
    if (applied) {
        cr_expect(fd_graph_validate(g, &err) == FD_OK, "%s: %s", spec, err.message);
        int32_t first = first_changed(clean, g, layer, spec);
        const fd_node *node = first >= 0 ? &g->nodes[first] : NULL;
        bool right = node && (fd_fault_shows_at(info, node) ||
                              (starts_unseen(info->name) && strstr(node->name, ".attn_scores") != NULL));
        cr_expect(right && node->layer == layer, "%s changes %s first, expected %s", spec,
                  node ? node->name : "nothing", info->located);
    } else {
        cr_expect(owner == NULL && strstr(err.message, "has nothing that it could change"), "%s: %s", spec,
                  err.message);
        cr_expect(first_changed(clean, g, layer, spec) < 0, "%s is refused, and changes the graph", spec);
    }
    fd_graph_free(g);
    fd_fault_owner_free(owner);
    return applied;
}

Test(faults, each_changes_first_the_node_it_says_and_only_its_layer) {
    fd_graph *clean = build("qwen2");
    int32_t n_applied = 0;
    for (int32_t f = 0; f < fd_fault_count(); f++) {
        const fd_fault_info *info = fd_fault_at(f);
        for (int32_t layer = info->outside ? -1 : 0; layer < (info->outside ? 0 : 2); layer++)
            n_applied += check_one(clean, info, layer);
    }
    cr_expect(n_applied > 3 * fd_fault_count() / 4, "%d of %d faults apply to a small F32 model", n_applied,
              fd_fault_count());
}

Test(faults, names_and_nodes_are_unique_and_filled_in) {
    for (int32_t f = 0; f < fd_fault_count(); f++) {
        const fd_fault_info *info = fd_fault_at(f);
        cr_expect(info->name && info->family && info->summary && info->located);
        cr_expect_eq(fd_fault_find(info->name), f, "%s stands twice", info->name);
        cr_expect(strpbrk(info->name, "@+ ") == NULL, "%s cannot be written in a spec", info->name);
    }
    cr_expect_eq(fd_fault_find("no_such"), -1);
}

Test(faults, the_manual_lists_each_and_no_other) {
    FILE *file = fopen(FD_SOURCE_DIR "/docs/faults.md", "r");
    char line[1024], name[64];
    int32_t n_listed = 0;
    cr_assert(file != NULL);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "| `%63[a-z0-9_]` |", name) != 1) continue;
        n_listed++;
        cr_expect(fd_fault_find(name) >= 0, "docs/faults.md lists %s", name);
    }
    fclose(file);
    cr_expect_eq(n_listed, fd_fault_count(), "docs/faults.md lists %d of %d faults", n_listed, fd_fault_count());
}

/* The same node, but for the numbers of replaced weights; the same bytes in every slot. */
static bool same_edit(const fd_faulty_node *alone, const fd_graph *whole) {
    fd_node node = whole->nodes[alone->node.id];
    for (int k = 0; k < FD_MAX_WEIGHTS; k++) {
        const fd_weight *w = node.weight[k] < 0 ? NULL : &whole->weights[node.weight[k]];
        if (w && (w->dtype != alone->weight[k].dtype || w->bytes != alone->weight[k].bytes ||
                  memcmp(w->data, alone->weight[k].data, w->bytes) != 0))
            return false;
        if (k == 0 && alone->replaced) node.weight[k] = alone->node.weight[k];
    }
    return memcmp(&node, &alone->node, sizeof node) == 0;
}

Test(faults, one_node_alone_is_changed_as_in_the_whole_layer) {
    fd_graph *clean = build("llama"), *whole;
    for (int32_t f = 0; f < fd_fault_count(); f++) {
        fd_error err = {0};
        fd_fault_owner *owner;
        cr_assert(fd_graph_clone(clean, &whole, &err) == FD_OK);
        bool applied = fd_fault_apply(fd_fault_at(f)->name, whole, &owner, &err) == FD_OK;
        for (int32_t i = 0; i < clean->n_node; i++) {
            fd_faulty_node alone;
            cr_assert(fd_fault_edit_node(f, clean, &clean->nodes[i], &alone, &err) == FD_OK, "%s", err.message);
            cr_expect_eq(alone.owner != NULL, applied && node_changed(clean, whole, i), "%s at %s",
                         fd_fault_at(f)->name, clean->nodes[i].name);
            cr_expect(same_edit(&alone, whole), "%s at %s", fd_fault_at(f)->name, clean->nodes[i].name);
            fd_faulty_node_free(&alone);
        }
        fd_graph_free(whole);
        fd_fault_owner_free(owner);
    }
}

Test(faults, in_out_moves_elements_and_short_bytes_are_zero) {
    fd_graph *clean = build("llama"), *g;
    fd_error err = {0};
    fd_fault_owner *owner;
    int32_t k = fd_graph_find(clean, "blk.1.attn_k");
    const fd_weight *w = &clean->weights[clean->nodes[k].weight[0]];

    cr_assert(fd_graph_clone(clean, &g, &err) == FD_OK && fd_fault_apply("weight_in_out@1", g, &owner, &err) == FD_OK);
    const float *before = w->data, *after = g->weights[g->nodes[k].weight[0]].data;
    cr_assert(after[1 * w->n_col + 2] == before[2 * w->n_row + 1]);
    fd_graph_free(g);
    fd_fault_owner_free(owner);

    cr_assert(fd_graph_clone(clean, &g, &err) == FD_OK &&
              fd_fault_apply("bytes_read_short@1", g, &owner, &err) == FD_OK);
    const char *bytes = g->weights[g->nodes[k].weight[0]].data;
    size_t read = (size_t)(w->n_row * w->n_col) / 2;
    cr_assert(memcmp(bytes, w->data, read) == 0);
    for (size_t i = read; i < w->bytes; i++) cr_assert(bytes[i] == 0);
    fd_graph_free(g);
    fd_fault_owner_free(owner);
}

Test(faults, bad_specs_are_refused_by_name) {
    static const struct {
        const char *spec, *message;
    } cases[] = {
        {"rope_parity", "fault \"rope_parity\": unknown; known: rope_pairing"},
        {"rope_pairing@2", "fault layer \"2\": expected 0 to 1"},
        {"rope_pairing@", "fault layer \"\""},
        {"rope_pairing@1x", "fault layer \"1x\""},
        {"rope_pairing@-1", "fault layer \"-1\""},
        {"missing_qkv_bias", "has nothing that it could change"},
        {"nibble_order@1", "has nothing that it could change in that layer"},
        {"embed_by_column@0", "token_embd is outside the layers, found \"@0\""},
        {"kv_previous_layer@0", "has nothing that it could change in that layer"},
    };
    fd_graph *graph = build("llama");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_error err = {0};
        fd_fault_owner *owner;
        cr_expect(fd_fault_apply(cases[i].spec, graph, &owner, &err) == FD_ERR_INPUT && owner == NULL);
        cr_expect(strstr(err.message, cases[i].message), "%s: \"%s\"", cases[i].spec, err.message);
    }
}
