#include "cli/check/choose_map.h"

#include <stdio.h>

#include "cli/check/rank_dumps.h"
#include "cli/import/mapped_trace.h"

enum { MOST_MISFITS = 10 }; /* one of so many */

static const char *const builtin[] = {"gguf", "llama.cpp", "llama2.c", "transformers", "vllm", "onnx"};

/* Tensors that the map names; 0 where it does not fit the source. *half of those that it does not pass over: of a graph that was recorded whole
 * most are the insides of its ops. */
static size_t count_named(const fd_source *source, const fd_name_map *map, const fd_import_options *how, size_t *half) {
    fd_import_options with = *how;
    fd_import_plan plan;
    fd_error ignored;
    with.map = map;
    if (fd_import_make_plan(source, &with, &plan, &ignored) != FD_OK) return 0;
    *half = (fd_source_count(source) - plan.n_skipped) / 2;
    size_t n = fd_source_count(source) - plan.n_unmatched - plan.n_allowed - plan.n_skipped;
    fd_import_plan_free(&plan);
    return n;
}

/* Of ranks' dumps the map decides how they are put together. */
static size_t count_joined(const char *path, const fd_name_map *map, const fd_import_options *how, size_t *half) {
    fd_import_options with = *how;
    fd_source *joined = NULL;
    fd_error ignored;
    with.map = map;
    size_t n =
        fd_cli_join_rank_dumps(path, &with, &joined, &ignored) == FD_OK ? count_named(joined, map, how, half) : 0;
    fd_source_close(joined);
    return n;
}

fd_code fd_cli_choose_map(const fd_source *source, const char *given, const fd_import_options *how, fd_name_map **out,
                          fd_error *err) {
    const char *named = given ? given : fd_source_names(source);
    size_t most = 0;
    *out = NULL;
    if (named && !given) FD_TRY(fd_cli_check_names(fd_source_path(source), named, err));
    if (named) return fd_name_map_open(named, out, err);
    for (size_t i = 0; i < sizeof builtin / sizeof *builtin; i++) {
        fd_name_map *map;
        fd_code code = fd_name_map_open(builtin[i], &map, err);
        if (code != FD_OK) {
            fd_name_map_free(*out);
            *out = NULL;
            return code;
        }
        size_t half = 0;
        const bool of_ranks = fd_ranks_report_of(source) != NULL;
        size_t n =
            of_ranks ? count_joined(fd_source_path(source), map, how, &half) : count_named(source, map, how, &half);
        if (n > half && n > most) {
            fd_name_map *other = *out;
            most = n;
            *out = map;
            map = other;
        }
        fd_name_map_free(map);
    }
    return FD_OK;
}

void fd_cli_leave_few_misfits(const fd_source *source, const fd_name_map *map, fd_import_options *how) {
    fd_import_options with = *how;
    fd_import_plan plan;
    fd_error strict = {0};
    with.map = map;
    if (how->leave_misfits) return;
    fd_code code = fd_import_make_plan(source, &with, &plan, &strict);
    if (code == FD_OK) fd_import_plan_free(&plan);
    if (code != FD_ERR_INPUT) return; /* what else fails does so again */
    with.leave_misfits = true;
    if (fd_import_make_plan(source, &with, &plan, &(fd_error){0}) != FD_OK) return;
    how->leave_misfits = MOST_MISFITS * plan.n_unmatched < fd_source_count(source);
    fd_import_plan_free(&plan);
    if (how->leave_misfits) fprintf(stderr, "%s: left out: %s\n", fd_source_path(source), strict.message);
}
