#include "cli/check/readings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/check/embedding_stage.h"
#include "cli/check/kept_rows.h"

/* Before the lines of the map gguf, which turn nothing. */
static const char turned_rows[] =
    "blk.{layer}.attn_q -> blk.{layer}.attn_q axis=first heads=n_head rope=halves\n"
    "blk.{layer}.attn_k -> blk.{layer}.attn_k axis=first heads=n_head_kv rope=halves\n"
    "blk.{layer}.attn_q_rope -> blk.{layer}.attn_q_rope axis=first heads=n_head rope=halves\n"
    "blk.{layer}.attn_k_rope -> blk.{layer}.attn_k_rope axis=first heads=n_head_kv rope=halves\n"
    "blk.{layer}.cache_k -> blk.{layer}.cache_k axis=first heads=n_head_kv rope=halves\n";

static bool is_gguf(const fd_name_map *map) {
    return strcmp(map->name, "gguf") == 0;
}

bool fd_cli_may_read_otherwise(const fd_name_map *map, const fd_graph *graph) {
    return fd_cli_may_scale_later(graph) || (fd_cli_may_turn_rows(graph) && (fd_cli_turns_rows(map) || is_gguf(map)));
}

char *fd_cli_text_read_so(const char *name, const fd_cli_readings *readings) {
    size_t size;
    const char *builtin = fd_name_map_builtin(name, &size);
    const size_t before = readings->rows_turned ? strlen(turned_rows) : 0;
    char *text = builtin ? malloc(before + size + 1) : NULL;
    if (!text) return NULL;
    memcpy(text, turned_rows, before);
    memcpy(text + before, builtin, size);
    text[before + size] = '\0';
    if (readings->rows_kept) fd_cli_drop_halves(text);
    if (readings->scaled_later) fd_cli_drop_scaled(text);
    return text;
}

fd_code fd_cli_replace_map(fd_name_map **map, const char *name, const char *text, fd_error *err) {
    fd_name_map *other;
    FD_TRY(fd_name_map_parse(name, text, strlen(text), &other, err));
    fd_name_map_free(*map);
    *map = other;
    other->builtin = true; /* its patterns know no layer that lacks a node */
    return FD_OK;
}

fd_code fd_cli_read_so(const fd_cli_readings *readings, fd_name_map **map, fd_error *err) {
    if (!readings->rows_turned && !readings->scaled_later) return FD_OK;
    char *text = fd_cli_text_read_so((*map)->name, readings);
    fd_code code =
        text ? fd_cli_replace_map(map, (*map)->name, text, err) : fd_fail(err, FD_ERR_MEMORY, "map: out of memory");
    free(text);
    return code;
}

/* Of the map gguf with those lines before it. An array that they cannot read says nothing. */
static fd_code count_turned(const fd_source *source, const fd_import_options *how, const fd_trace *ref,
                            int32_t *balance, fd_error *err) {
    fd_import_options with = *how;
    fd_name_map *map = NULL;
    char *text = fd_cli_text_read_so("gguf", &(fd_cli_readings){.rows_turned = true});
    if (!text) return fd_fail(err, FD_ERR_MEMORY, "map: out of memory");
    fd_code code = fd_cli_replace_map(&map, "gguf", text, err);
    with.map = map;
    if (code == FD_OK) code = fd_cli_count_kept_rows(source, &with, ref, balance, err);
    if (code == FD_ERR_INPUT) code = FD_OK;
    fd_name_map_free(map);
    free(text);
    return code;
}

static fd_code find_order_of_rows(const fd_source *source, const fd_import_options *how, const fd_trace *ref,
                                  fd_cli_readings *out, fd_error *err) {
    int32_t balance = 0;
    if (!fd_cli_may_turn_rows(how->graph)) return FD_OK;
    if (fd_cli_turns_rows(how->map)) {
        FD_TRY(fd_cli_count_kept_rows(source, how, ref, &balance, err));
        out->rows_kept = balance > 0;
    } else if (is_gguf(how->map)) {
        FD_TRY(count_turned(source, how, ref, &balance, err));
        out->rows_turned = balance < 0;
    }
    if (out->rows_kept || out->rows_turned)
        fprintf(stderr, "%s: Q and K have their rows in %s order\n", fd_source_path(source),
                out->rows_kept ? "the GGUF's" : "a checkpoint's");
    return FD_OK;
}

fd_code fd_cli_find_readings(const fd_source *source, const fd_import_options *how, const fd_trace *ref,
                             fd_cli_readings *out, fd_error *err) {
    *out = (fd_cli_readings){0};
    FD_TRY(find_order_of_rows(source, how, ref, out, err));
    if (!fd_cli_may_scale_later(how->graph)) return FD_OK;
    return fd_cli_scales_later(source, how, ref, &out->scaled_later, err);
}
