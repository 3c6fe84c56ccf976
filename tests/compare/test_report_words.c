/* Single words and lines of a report: an index, a value, the map of layers. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/describe.h"
#include "compare/report/line.h"
#include "compare/report/report.h"

Test(report_words, an_index_is_said_in_the_words_of_its_node) {
    static const struct {
        const char *node;
        int32_t n_dim;
        bool over_kv;
        const char *text;
    } cases[] = {{"blk.0.attn_q", 2, false, "head 1 · element 5"},
                 {"blk.0.attn_scores", 2, true, "head 1 · key position 5"},
                 {"blk.0.ffn_moe_up", 2, false, "chosen expert 1 · element 5"},
                 {"blk.0.ffn_moe_out", 1, false, "element 21"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64];
        fd_index_text(cases[i].node, cases[i].n_dim, (int64_t[]){4, 16}, cases[i].over_kv, 21, text, sizeof text);
        cr_expect_str_eq(text, cases[i].text);
    }
}

Test(report_words, values_are_printed_so_that_they_identify_the_bits) {
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0.1f, "0.100000001"}, {0.1, "0.10000000000000001"}, {-0.0, "-0"}, {NAN, "nan"}, {-NAN, "nan"},
                 {INFINITY, "inf"},     {-INFINITY, "-inf"},          {1, "1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[40];
        fd_value_text(cases[i].value, text, sizeof text);
        cr_expect_str_eq(text, cases[i].text);
    }
}

/* 100 layers of two kinds, of which a layer's second is wrong and all after it inherits. */
static fd_verdict large_map(int32_t n_layer, int32_t wrong) {
    fd_verdict v = {.status = FD_DIVERGED};
    v.map.n_node = v.measures.n_node = 2 * n_layer;
    v.map.cells = calloc((size_t)v.map.n_node, sizeof *v.map.cells);
    v.measures.nodes = calloc((size_t)v.map.n_node, sizeof *v.measures.nodes);
    for (int32_t i = 0; i < v.map.n_node; i++) {
        fd_verdict_cell *cell = &v.map.cells[i];
        *cell = (fd_verdict_cell){.layer = i / 2, .input = {i - 1, -1}, .z = i / 2 > wrong ? 0.5f : 0.05f};
        if (i == 2 * wrong + 1) cell->z = INFINITY;
        snprintf(cell->name, sizeof cell->name, "blk.%d.%s", i / 2, i % 2 ? "l_out" : "attn_norm");
        snprintf(cell->finding, sizeof cell->finding, "%s",
                 i == 2 * wrong + 1 ? "INTRODUCED"
                 : i / 2 > wrong    ? "INHERITED"
                 : i == 2 * wrong   ? "AMPLIFIER"
                                    : "NOISE");
    }
    return v;
}

static void expect_lines(const fd_verdict *v, const char *const *lines, size_t n) {
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    fd_report_text(to, v, NULL);
    fd_report_details(to, v, NULL);
    fclose(to);
    for (size_t i = 0; i < n; i++) cr_expect(strstr(text, lines[i]), "\"%s\" is not in:\n%s", lines[i], text);
    for (const char *line = strstr(text, "\n  map"); line && *++line; line = strchr(line, '\n')) {
        int wide = 0;
        for (const char *p = line; *p && *p != '\n'; p++) wide += (*p & 0xc0) != 0x80;
        cr_expect_leq(wide, 100, "%.120s", line);
    }
    free(text);
}

Test(report_words, the_map_has_a_character_a_layer_or_for_several_the_worst) {
    static const char *const small[] = {"\n    attn_norm          ..://\n", "\n    l_out              ..#//\n",
                                        "layers 0…4\n", "by layer    ▂▂█▄▄  largest z of layers 0…4"};
    static const char *const large[] = {"layers 0…199, 3 layers a column\n",
                                        "\n    l_out              ................#///", "█▄▄"};
    fd_verdict v = large_map(5, 2);
    expect_lines(&v, small, 4);
    fd_verdict_free(&v);
    v = large_map(200, 50);
    expect_lines(&v, large, 3);
    fd_verdict_free(&v);
}
