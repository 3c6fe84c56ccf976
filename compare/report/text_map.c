/* The map as text: a row for each kind of tensor, a character for each layer; and z by layer as a line of bars. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/report/layer_rows.h"
#include "compare/report/line.h"
#include "compare/report/text.h"

enum { MOST_COLUMNS = 76 }; /* with the names before them a line has 100 at most */

/* Worse ones have larger numbers: of several layers in one column the worst is shown. */
typedef enum cell_kind { NOT_SEEN, WITHIN, ROUNDING, INHERITED, WRONG, N_KIND } cell_kind;
static const struct {
    char mark;
    const char *escape, *what;
} kinds[N_KIND] = {[NOT_SEEN] = {' ', NULL, NULL},
                   [WITHIN] = {'.', NULL, "within rounding"},
                   [ROUNDING] = {':', NULL, "rounding inherited"},
                   [INHERITED] = {'/', "\033[33m", "inherited from the bug"},
                   [WRONG] = {'#', "\033[1;31m", "wrong here"}};

static bool is(const fd_verdict_cell *cell, const char *finding) {
    return strcmp(cell->finding, finding) == 0;
}

/* after [n_node]: a path of inputs leads back to a wrong node. */
static cell_kind kind_of(const fd_verdict_map *map, int32_t i, bool *after) {
    const fd_verdict_cell *cell = &map->cells[i];
    bool wrong = is(cell, "INTRODUCED") || is(cell, "BOTH");
    after[i] = wrong;
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        after[i] |= cell->input[k] >= 0 && cell->input[k] < i && after[cell->input[k]];
    if (cell->z < 0) return NOT_SEEN;
    if (wrong) return WRONG;
    if (!is(cell, "INHERITED") && !is(cell, "AMPLIFIER")) return WITHIN;
    return after[i] ? INHERITED : ROUNDING;
}

typedef struct text_map {
    const fd_verdict_map *map;
    cell_kind *kind; /* [n_node] */
    int32_t n_layer, per_column;
    fd_report_colour colour;
} text_map;

static void put_mark(FILE *to, const text_map *m, cell_kind kind) {
    bool coloured = m->colour && kinds[kind].escape;
    if (coloured) m->colour(to, kinds[kind].escape);
    fputc(kinds[kind].mark, to);
    if (coloured) m->colour(to, "\033[0m");
}

/* "attn_q" of "blk.3.attn_q". */
static const char *name_in_layer(const fd_verdict_cell *cell) {
    const char *dot = strncmp(cell->name, "blk.", 4) == 0 ? strchr(cell->name + 4, '.') : NULL;
    return dot ? dot + 1 : cell->name;
}

/* Is it the first of its kind? Its row is then due. */
static bool begins_row(const fd_verdict_map *map, int32_t i) {
    if (map->cells[i].layer < 0) return false;
    for (int32_t k = 0; k < i; k++)
        if (map->cells[k].layer >= 0 && strcmp(name_in_layer(&map->cells[k]), name_in_layer(&map->cells[i])) == 0)
            return false;
    return true;
}

static void put_row(FILE *to, const text_map *m, const char *name) {
    cell_kind row[MOST_COLUMNS] = {NOT_SEEN}; /* a layer without this tensor */
    int32_t n = (m->n_layer + m->per_column - 1) / m->per_column;
    for (int32_t i = 0; i < m->map->n_node; i++) {
        const fd_verdict_cell *cell = &m->map->cells[i];
        if (cell->layer < 0 || strcmp(name_in_layer(cell), name) != 0) continue;
        cell_kind *at = &row[cell->layer / m->per_column];
        if (m->kind[i] > *at) *at = m->kind[i];
    }
    fprintf(to, "    %-18.18s ", name);
    for (int32_t c = 0; c < n; c++) put_mark(to, m, row[c]);
    fputc('\n', to);
}

/* Nodes before and after the layers, in a line. */
static void put_outside(FILE *to, const text_map *m) {
    int32_t n = 0;
    for (int32_t i = 0; i < m->map->n_node; i++) {
        if (m->map->cells[i].layer >= 0 || m->kind[i] == NOT_SEEN) continue;
        if (n++ == 0) fprintf(to, "    %-18s", "outside layers");
        fputc(' ', to);
        fd_put_clean(to, m->map->cells[i].name);
        fputc(' ', to);
        put_mark(to, m, m->kind[i]);
    }
    if (n) fputc('\n', to);
}

static void put_head(FILE *to, const text_map *m) {
    char columns[64] = "";
    fputs("\n  map        ", to);
    for (int kind = WRONG; kind > NOT_SEEN; kind--) {
        fputc(' ', to);
        put_mark(to, m, (cell_kind)kind);
        fprintf(to, " %s ", kinds[kind].what);
    }
    if (m->per_column > 1) snprintf(columns, sizeof columns, ", %d layers a column", m->per_column);
    fprintf(to, "\n    %-18s layers 0…%d%s\n", "", m->n_layer - 1, columns);
}

void fd_report_map(FILE *to, const fd_verdict *v, fd_report_colour colour) {
    const fd_verdict_map *map = &v->map;
    text_map m = {.map = map, .colour = colour};
    for (int32_t i = 0; i < map->n_node; i++)
        if (map->cells[i].layer >= m.n_layer) m.n_layer = map->cells[i].layer + 1;
    bool *after = calloc((size_t)map->n_node + 1, sizeof *after);
    m.kind = calloc((size_t)map->n_node + 1, sizeof *m.kind);
    m.per_column = (m.n_layer + MOST_COLUMNS - 1) / MOST_COLUMNS;
    if (after && m.kind && m.n_layer) {
        for (int32_t i = 0; i < map->n_node; i++) m.kind[i] = kind_of(map, i, after);
        put_head(to, &m);
        for (int32_t i = 0; i < map->n_node; i++)
            if (begins_row(map, i)) put_row(to, &m, name_in_layer(&map->cells[i]));
        put_outside(to, &m);
    }
    free(after);
    free(m.kind);
}

/* ---- z by layer ---- */

/* The lower four bars are within rounding, z up to 1; each bar is half a power of ten; NaN is beyond. */
static const char *bar_of(double z) {
    static const char *const bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    double bar = z > 0 ? ceil(3 + 2 * log10(z)) : 0;
    return bars[!(bar <= 7) ? 7 : bar < 0 ? 0 : (int)bar];
}

void fd_report_layer_bars(FILE *to, const fd_verdict *v) {
    char text[3 * MOST_COLUMNS + 1] = "";
    int32_t n, n_layer = 0, last = -1;
    fd_layer_row *rows = fd_layer_rows(v, &n);
    for (int32_t i = 0; rows && i < n; i++)
        if (rows[i].layer >= n_layer) n_layer = rows[i].layer + 1;
    int32_t per_column = (n_layer + MOST_COLUMNS - 1) / MOST_COLUMNS;
    double z = -1;
    for (int32_t i = 0; rows && i < n; i++) {
        if (rows[i].layer < 0) continue;
        if (rows[i].layer / per_column != last) z = -1;
        last = rows[i].layer / per_column;
        if (!(rows[i].z <= z)) z = rows[i].z;
        bool ends = i + 1 == n || rows[i + 1].layer < 0 || rows[i + 1].layer / per_column != last;
        if (ends) strcat(text, z < 0 ? "·" : bar_of(z));
    }
    if (text[0]) fd_line(to, "by layer", "%s  largest z of layers 0…%d; ▁ to ▄ is rounding", text, n_layer - 1);
    free(rows);
}
