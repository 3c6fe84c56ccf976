/* Map files: names that match, operations on elements, and errors that say where. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dumpers/import/map.h"

static const struct {
    const char *pattern, *name;
    bool fits;
    int32_t layer, rank;
} names[] = {
    {"embd", "embd", true, -1, -1},
    {"embd", "embd2", false, -1, -1},
    {"q-{layer}.ROPE", "q-12.ROPE", true, 12, -1},
    {"q-{layer}.ROPE", "q-.ROPE", false, -1, -1},
    {"q-{layer}", "q-1234567", false, -1, -1},
    {"cache_k_l{layer}?(view).SET_ROWS", "cache_k_l3 (view).SET_ROWS", true, 3, -1},
    {"*.layers.{layer}.*q_proj", "model.layers.7.self_attn.q_proj", true, 7, -1},
    {"l{layer}.x{layer}", "l3.x3", true, 3, -1},
    {"l{layer}.x{layer}", "l3.x4", false, -1, -1},
    {"layers.{layer+1}.in", "layers.4.in", true, 3, -1},
    {"layers.{layer+1}.in", "layers.0.in", false, -1, -1},
    {"node_{rank}.MUL_MAT", "node_31.MUL_MAT", true, -1, 31},
    {"*a*b", "xxaxxaxb", true, -1, -1},
    {"*a*b", "xxaxxaxbx", false, -1, -1},
    {"*", "", true, -1, -1},
    {"blk.{layer}.{name}", "blk.3.attn_q", true, 3, -1},
    {"blk.{layer}.{name}", "blk.3.", false, -1, -1},
    {"?", "", false, -1, -1},
};

Test(map, patterns) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fd_name_map_capture capture;
        bool fits = fd_name_map_matches(names[i].pattern, names[i].name, &capture);
        cr_assert_eq(fits, names[i].fits, "%s against %s", names[i].pattern, names[i].name);
        if (!fits) continue;
        cr_assert_eq(capture.layer, names[i].layer, "%s", names[i].pattern);
        cr_assert_eq(capture.rank, names[i].rank, "%s", names[i].pattern);
    }
}

/* "x -> y OPERATIONS" on 0, 1, … of a shape. */
static const struct {
    const char *ops;
    int rank;
    int64_t shape[3];
    int out_rank;
    int64_t out_shape[3];
    double out[8];
} operations[] = {
    {"reshape=2,-1", 1, {6}, 2, {2, 3}, {0, 1, 2, 3, 4, 5}},
    {"transpose", 2, {2, 3}, 2, {3, 2}, {0, 3, 1, 4, 2, 5}},
    {"permute=1,0", 2, {2, 3}, 2, {3, 2}, {0, 3, 1, 4, 2, 5}},
    {"permute=2,0,1", 3, {1, 2, 3}, 3, {3, 1, 2}, {0, 3, 1, 4, 2, 5}},
    {"heads=2", 1, {6}, 2, {2, 3}, {0, 1, 2, 3, 4, 5}},
    {"heads=n_head", 1, {8}, 2, {4, 2}, {0, 1, 2, 3, 4, 5, 6, 7}},
    {"slice=1:3", 2, {2, 3}, 2, {2, 2}, {1, 2, 4, 5}},
    {"slice=1:n_expert_used", 1, {4}, 1, {2}, {1, 2}}, /* n_expert_used 3 */
    {"scale=0.5", 1, {3}, 1, {3}, {0, 0.5, 1}},
    {"scale=1/4", 1, {3}, 1, {3}, {0, 0.25, 0.5}},
    {"scale=1/sqrt(head_dim)", 1, {3}, 1, {3}, {0, 0.25, 0.5}}, /* head_dim 16 */
    {"scale=sqrt(n_embd)", 1, {2}, 1, {2}, {0, 8}},             /* n_embd 64 */
    {"interleave", 2, {2, 4}, 2, {2, 4}, {0, 2, 1, 3, 4, 6, 5, 7}},
    {"deinterleave", 1, {4}, 1, {4}, {0, 2, 1, 3}},
    {"rope=halves", 1, {4}, 1, {4}, {0, 2, 1, 3}},
    {"interleave deinterleave", 1, {6}, 1, {6}, {0, 1, 2, 3, 4, 5}},
    {"heads=2 transpose reshape=-1", 1, {6}, 1, {6}, {0, 3, 1, 4, 2, 5}},
    {"slice=2:6 reshape=2,2 transpose", 1, {8}, 2, {2, 2}, {2, 4, 3, 5}},
    {"part=gate", 2, {2, 4}, 2, {2, 2}, {0, 1, 4, 5}}, /* n_ff 2 */
    {"part=up", 2, {2, 4}, 2, {2, 2}, {2, 3, 6, 7}},
    {"part=rows", 2, {2, 3}, 2, {2, 2}, {1, 2, 4, 5}}, /* rows 1 and 2 of 3 */
    {"scale=attn_scale", 1, {3}, 1, {3}, {0, 0.5, 1}},
    {"arch=gemma2,gemma3 heads=2", 1, {4}, 2, {2, 2}, {0, 1, 2, 3}},
};
static const fd_name_map_values values = {.of = {[FD_NAME_MAP_HEAD_DIM] = 16,
                                                 [FD_NAME_MAP_N_HEAD] = 4,
                                                 [FD_NAME_MAP_N_EMBD] = 64,
                                                 [FD_NAME_MAP_N_FF] = 2,
                                                 [FD_NAME_MAP_N_EXPERT_USED] = 3},
                                          .attn_scale = 0.5,
                                          .rope_neighbours = 1,
                                          .rows = {1, 2, 3}};

static fd_name_map *parse(const char *line, fd_error *err) {
    fd_name_map *map = NULL;
    fd_name_map_parse("m.map", line, strlen(line), &map, err);
    return map;
}

Test(map, operations) {
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        char line[128];
        snprintf(line, sizeof line, "x -> y %s", operations[i].ops);
        fd_error err = {0};
        fd_name_map *map = parse(line, &err);
        cr_assert(map, "%s: %s", line, err.message);
        double a[8] = {0, 1, 2, 3, 4, 5, 6, 7}, b[8] = {0}, *data = a, *scratch = b;
        int rank = operations[i].rank;
        int64_t shape[8] = {operations[i].shape[0], operations[i].shape[1], operations[i].shape[2]}, n = 1;
        cr_assert_eq(fd_name_map_apply(map, map->rules, &values, &rank, shape, &data, &scratch, &err), FD_OK, "%s: %s",
                     line, err.message);
        cr_assert_eq(rank, operations[i].out_rank, "%s", line);
        for (int k = 0; k < rank; k++) {
            cr_assert_eq(shape[k], operations[i].out_shape[k], "%s: axis %d is %lld", line, k, (long long)shape[k]);
            n *= shape[k];
        }
        for (int64_t k = 0; k < n; k++)
            cr_assert_eq(data[k], operations[i].out[k], "%s: element %lld is %g", line, (long long)k, data[k]);
        fd_name_map_free(map);
    }
}

Test(map, operations_that_do_not_fit_are_refused) {
    static const struct {
        const char *ops;
        const char *message;
    } bad[] = {
        {"reshape=4,2", "reshape does not fit a tensor of shape [6]"},
        {"reshape=4,-1", "reshape does not fit"},
        {"transpose", "transpose does not fit"},
        {"permute=0,1", "permute does not fit"},
        {"heads=4", "heads does not fit"},
        {"slice=0:7", "slice does not fit"},
        {"slice=3:n_expert_used", "slice does not fit"},
        {"reshape=2,3 interleave", "interleave does not fit a tensor of shape [2, 3]"},
        {"part=up", "part does not fit a tensor of shape [6]"},
        {"part=q", "part needs the parts' widths, which nothing says: give --model"},
        {"heads=n_head_kv", "needs n_head_kv, which nothing says: give --model"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char line[128];
        snprintf(line, sizeof line, "\nx -> y %s", bad[i].ops);
        fd_error err = {0};
        fd_name_map *map = parse(line, &err);
        cr_assert(map, "%s", err.message);
        int rank = 1;
        int64_t shape[8] = {6};
        cr_assert_eq(fd_name_map_apply(map, map->rules, &values, &rank, shape, NULL, NULL, &err), FD_ERR_INPUT, "%s",
                     bad[i].ops);
        cr_assert(strstr(err.message, bad[i].message) && strstr(err.message, "m.map:2"), "%s", err.message);
        fd_name_map_free(map);
    }
}

/* [12], a step of 2 tokens; n_head is 4. */
Test(map, shape_gives_an_array_its_dimensions) {
    static const struct {
        const char *shape, *message; /* "" where it fits */
        int rank;
        int64_t out[3];
    } rows[] = {
        {"n_tok,-1", "", 2, {2, 6}},
        {"-1,n_tok", "", 2, {6, 2}},
        {"n_tok,n_head,-1", "does not fit an array of shape [12] in a step of 2 tokens", 0, {0}},
        {"-1,n_head,1", "", 3, {3, 4, 1}},
        {"3,4", "", 2, {3, 4}},
        {"3,5", "does not fit", 0, {0}},
        {"n_head_kv,-1", "shape= needs n_head_kv: give --model", 0, {0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char line[128];
        snprintf(line, sizeof line, "\nx -> y shape=%s", rows[i].shape);
        fd_error err = {0};
        fd_name_map *map = parse(line, &err);
        cr_assert(map, "%s", err.message);
        int rank = 1;
        int64_t shape[8] = {12};
        fd_code code = fd_name_map_reshape(map, map->rules, &values, 2, &rank, shape, &err);
        cr_assert_eq(code, rows[i].message[0] ? FD_ERR_INPUT : FD_OK, "%s: %s", line, err.message);
        if (code == FD_OK)
            cr_assert(rank == rows[i].rank && memcmp(shape, rows[i].out, sizeof *shape * (size_t)rank) == 0, "%s",
                      line);
        else
            cr_assert(strstr(err.message, rows[i].message) && strstr(err.message, "m.map:2"), "%s", err.message);
        fd_name_map_free(map);
    }
}

Test(map, lines_that_make_no_sense_are_refused_with_their_number) {
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"a -> b\nc d\n", "m.map:2: expected SOURCE -> NODE"},
        {"a ->", "m.map:1: no node"},
        {"a | -> b", "m.map:1: expected SOURCE"},
        {"a -> b*", "no name of a node"},
        {"a -> blk.{layer}.x", "lacks"},
        {"a{layer} -> blk.{rank}.x", "lacks"},
        {"a -> {name}", "lacks"},
        {"a{name} -> b", "lacks"},
        {"{name} -> {name}b", "lacks"},
        {"a -> b turn", "unknown operation"},
        {"a -> b transpose=1", "make no sense"},
        {"a -> b reshape=0", "make no sense"},
        {"a -> b reshape=-1,-1", "make no sense"},
        {"a -> b permute=0,0", "make no sense"},
        {"a -> b permute=1,2", "make no sense"},
        {"a -> b slice=3:3", "make no sense"},
        {"a -> b heads=1.5", "make no sense"},
        {"a -> b scale=1/0", "make no sense"},
        {"a -> b scale=nan", "make no sense"},
        {"a -> b scale=1/sqrt(x)", "make no sense"},
        {"a -> b axis=1", "axis counts from the end"},
        {"a -> b axis=", "axis counts from the end"},
        {"a -> b rows=first", "unknown operation"},
        {"a -> b shape=-1,-1", "shape has 1 to 8 dimensions"},
        {"a -> b shape=0,4", "shape has 1 to 8 dimensions"},
        {"a -> b shape=", "shape has 1 to 8 dimensions"},
        {"a -> b shape=4,,4", "shape has 1 to 8 dimensions"},
        {"a -> b shape=1,1,1,1,1,1,1,1,1", "shape has 1 to 8 dimensions"},
        {"a -> b heads=n_tok", "make no sense"},
        {"a -> b heads=attn_scale", "make no sense"},
        {"a -> b shape=attn_scale,-1", "shape has 1 to 8 dimensions"},
        {"a -> b part=x", "make no sense"},
        {"a#0 -> b", "#last"},
        {"a#x -> b", "#last"},
        {"#1 -> b\n", "no rule"},
        {"skip", "no pattern after"},
        {"absent", "no pattern after"},
        {"skip *", "no rule"},
        {"", "no rule"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fd_error err = {0};
        fd_name_map *map = parse(bad[i].text, &err);
        cr_assert(!map && err.code == FD_ERR_INPUT, "%s", bad[i].text);
        cr_assert(strstr(err.message, bad[i].message), "\"%s\": %s", bad[i].text, err.message);
    }
}

Test(map, built_in_maps_parse_and_name_every_node_of_a_layer) {
    static const char *const maps[] = {"gguf", "llama.cpp", "llama2.c", "transformers"};
    for (size_t i = 0; i < 4; i++) {
        fd_error err = {0};
        fd_name_map *map;
        cr_assert_eq(fd_name_map_open(maps[i], &map, &err), FD_OK, "%s", err.message);
        static const char *const nodes[] = {"attn_norm", "attn_q",  "attn_v", "attn_weights",
                                            "attn_out",  "ffn_act", "l_out"};
        for (size_t k = 0; k < sizeof nodes / sizeof *nodes; k++) {
            bool found = false;
            for (size_t r = 0; r < map->n_rule; r++) {
                const char *dot = strrchr(map->rules[r].node, '.');
                found = found || (dot && strcmp(dot + 1, nodes[k]) == 0);
            }
            cr_assert(found, "%s has no rule for %s", maps[i], nodes[k]);
        }
        fd_name_map_free(map);
    }
}

Test(map, architectures_of_a_rule) {
    static const struct {
        const char *archs, *arch;
        bool is_for;
    } rules[] = {
        {"", "llama", true},
        {"", NULL, true},
        {"arch=gemma2", "gemma2", true},
        {"arch=gemma2", "gemma", false},
        {"arch=gemma", "gemma2", false},
        {"arch=glm4,gemma2", "gemma2", true},
        {"arch=gemma2", NULL, false},
        {"arch=!glm4,gemma2", "gemma2", false},
        {"arch=!glm4,gemma2", "llama", true},
        {"arch=!gemma2", NULL, true},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        char line[64];
        snprintf(line, sizeof line, "x -> y %s", rules[i].archs);
        fd_error err = {0};
        fd_name_map *map = parse(line, &err);
        cr_assert(map, "%s", err.message);
        cr_assert_eq(fd_name_map_is_for(map->rules, rules[i].arch), rules[i].is_for, "%s", line);
        fd_name_map_free(map);
    }
    static const char *const bad[] = {"x -> y arch=", "x -> y arch=!", "x -> y arch=a,,b", "x -> y arch=a,",
                                      "x -> y arch=a arch=b"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fd_error err = {0};
        cr_assert(!parse(bad[i], &err), "%s", bad[i]);
        cr_assert(strstr(err.message, "arch lists architectures"), "%s", err.message);
    }
}
