/* Q, K and V, or gate and up, in one array: where each part lies, and how a rule takes it out. */
#include <criterion/criterion.h>
#include <string.h>

#include "dumpers/import/import.h"

/* 4 heads of 2 for Q, 1 for K and V. */
Test(map_parts, parts_of_one_array_lie_side_by_side) {
    const fd_name_map_values sizes = {
        .of =
            {[FD_NAME_MAP_HEAD_DIM] = 2, [FD_NAME_MAP_N_HEAD] = 4, [FD_NAME_MAP_N_HEAD_KV] = 1, [FD_NAME_MAP_N_FF] = 5},
        .rows = {3, 4, 9}};
    const fd_fused_place expected[FD_FUSED_PART_COUNT] = {{0, 8, 12}, {8, 2, 12}, {10, 2, 12},
                                                          {0, 5, 10}, {5, 5, 10}, {3, 4, 9}};
    for (int i = 0; i < FD_FUSED_PART_COUNT; i++) {
        fd_fused_place place;
        cr_assert(fd_fused_part_place(&fd_fused_parts[i], &sizes, &place));
        cr_assert_eq(memcmp(&place, &expected[i], sizeof place), 0, "%s", fd_fused_parts[i].name);
        cr_assert(!fd_fused_part_place(&fd_fused_parts[i], &(fd_name_map_values){0}, &place));
    }
}

Test(map_parts, parts_of_each_kv_head) {
    /* two K/V heads with two Q heads each, of width 1: q q k v, q q k v */
    static const fd_name_map_values sizes = {
        .of = {[FD_NAME_MAP_N_HEAD] = 4, [FD_NAME_MAP_N_HEAD_KV] = 2, [FD_NAME_MAP_HEAD_DIM] = 1}};
    static const struct {
        const char *line;
        int64_t shape[2];
        double out[4];
    } parts[] = {{"x -> y heads=n_head_kv part=q", {4, 1}, {0, 1, 4, 5}},
                 {"x -> y heads=n_head_kv part=k", {2, 1}, {2, 6}},
                 {"x -> y heads=n_head_kv part=v", {2, 1}, {3, 7}}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        fd_error err = {0};
        fd_name_map *map;
        cr_assert_eq(fd_name_map_parse("m.map", parts[i].line, strlen(parts[i].line), &map, &err), FD_OK, "%s",
                     err.message);
        double a[8] = {0, 1, 2, 3, 4, 5, 6, 7}, b[8] = {0}, *data = a, *scratch = b;
        int rank = 1;
        int64_t shape[8] = {8};
        cr_assert_eq(fd_name_map_apply(map, map->rules, &sizes, &rank, shape, &data, &scratch, &err), FD_OK, "%s",
                     err.message);
        cr_assert(rank == 2 && shape[0] == parts[i].shape[0] && shape[1] == parts[i].shape[1]);
        for (int64_t k = 0; k < shape[0] * shape[1]; k++) cr_assert_eq(data[k], parts[i].out[k], "%s", parts[i].line);
        fd_name_map_free(map);
    }
}

/* The file has one matrix of 12 rows for three nodes. */
Test(map_parts, the_rows_of_a_nodes_weight) {
    fd_weight weights[] = {{.name = "a.weight[0:5]"},
                           {.name = "a.weight[5:9]"},
                           {.name = "a.weight[9:12]"},
                           {.name = "aa.weight[0:70]"},
                           {.name = "b.weight"}};
    fd_node nodes[] = {
        {.name = "one", .weight = {0, -1}}, {.name = "two", .weight = {1, -1}}, {.name = "whole", .weight = {4, -1}}};
    const fd_graph graph = {.nodes = nodes, .n_node = 3, .weights = weights, .n_weight = 5};
    static const struct {
        const char *node;
        fd_fused_place place;
    } cases[] = {{"one", {0, 5, 12}}, {"two", {5, 4, 12}}, {"whole", {0, 0, 0}}, {"none", {0, 0, 0}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const fd_fused_place place = fd_import_rows_of_weight(&graph, cases[i].node);
        cr_expect_eq(memcmp(&place, &cases[i].place, sizeof place), 0, "%s: %lld, %lld of %lld", cases[i].node,
                     (long long)place.first, (long long)place.n, (long long)place.width);
    }
    cr_expect_eq(fd_import_rows_of_weight(NULL, "one").width, 0);
}
