#include "cli/check/candidate.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/check/choose_map.h"
#include "cli/check/doubt_dump.h"
#include "cli/check/kept_rows.h"
#include "cli/check/rank_dumps.h"
#include "cli/check/readings.h"
#include "cli/check/split_steps.h"
#include "cli/import/auto_map.h"
#include "cli/import/map_lines.h"
#include "cli/import/mapped_trace.h"
#include "cli/open_trace.h"
#include "cli/output.h"
#include "cli/temporary.h"

typedef struct opening {
    const fd_check_input *input;
    const fd_check_reference *reference;
    fd_source *source, *weights;
    bool of_ranks; /* `source` is to be put together of a tensor-parallel engine's dumps, one a rank */
    fd_import_options how;
    int32_t *tokens, *steps;
    fd_name_map *map;
    fd_cli_readings readings;
    fd_candidate *out;
    fd_trace **ref;
} opening;

/* A trace whose names are nodes of the model, for the most part, needs no map. */
static bool has_own_names(const fd_source *source, const fd_graph *graph) {
    const fd_trace *trace = fd_source_trace(source);
    int32_t n = 0;
    if (!trace || fd_source_names(source)) return false;
    for (int32_t i = 0; i < fd_trace_n_node(trace); i++)
        n += fd_graph_find(graph, fd_trace_node_at(trace, i)->name) >= 0;
    return 2 * n > fd_trace_n_node(trace);
}

static fd_code open_own(const opening *o, fd_error *err) {
    const fd_cli_model *model = o->reference->model;
    if (o->input->cache_type)
        return fd_fail(err, FD_ERR_INPUT, "--cache-type goes with a dump; the trace %s says its own", o->input->path);
    FD_TRY(fd_cli_open_trace(o->input->path, SIZE_MAX, &o->out->trace, err));
    return fd_cli_check_trace_model(model, o->input->model_path, o->out->trace, err);
}

static fd_code read_options(opening *o, fd_error *err) {
    const fd_check_input *in = o->input;
    const fd_graph *graph = o->reference->model->graph;
    /* a map that was chosen for most of the names need not fit the others */
    o->how = (fd_import_options){.graph = graph, .leave_misfits = !in->map && !fd_source_names(o->source)};
    FD_TRY(fd_cli_token_list(in->tokens, in->tokens_file, graph->hparams.n_vocab, &o->tokens, &o->how.n_token, err));
    if (in->steps && fd_cli_parse_ids(in->steps, INT32_MAX, &o->steps, &o->how.n_step_size, err) != FD_OK)
        return fd_error_prefix(err, "--steps");
    uint32_t k, v;
    if (in->cache_type && fd_kv_types_parse(in->cache_type, &k, &v, err) != FD_OK)
        return fd_error_prefix(err, "--cache-type");
    o->how.cache_type = in->cache_type;
    if (in->weights) FD_TRY(fd_source_open(in->weights, &o->weights, err));
    o->how.tokens = o->tokens;
    o->how.step_sizes = o->steps;
    o->how.weights = o->weights;
    return FD_OK;
}

static fd_code run_reference(opening *o, fd_error *err) {
    fd_import_plan plan;
    if (*o->ref) return FD_OK;
    FD_TRY(fd_import_begin_plan(o->source, &o->how, &plan, err));
    fd_trace_step *steps = calloc((size_t)plan.n_step + 1, sizeof *steps);
    int32_t n = 0;
    for (int32_t i = 0; steps && i < plan.n_step; i++)
        if (plan.steps[i].n_pos > 0)
            steps[n++] = (fd_trace_step){plan.steps[i].pos0, plan.steps[i].n_pos, plan.steps[i].kind};
    fd_graph_set_context(o->reference->model->graph, plan.n_token);
    fd_code code = steps ? fd_check_run_reference(o->reference, plan.tokens, plan.n_token, steps, n, o->ref, err)
                         : fd_fail(err, FD_ERR_MEMORY, "%d steps: out of memory", plan.n_step);
    free(steps);
    fd_import_plan_free(&plan);
    return code;
}

/* "6,5,1,1": what --steps would say. */
static void say_steps(const opening *o, const fd_import_plan *plan, const int32_t *sizes, const char *how) {
    fprintf(stderr, "%s: steps of ", o->input->path);
    for (int32_t s = 0; s < plan->n_step; s++)
        fprintf(stderr, "%s%d", s ? "," : "", sizes ? sizes[s] : plan->steps[s].n_pos);
    fprintf(stderr, " tokens, %s\n", how);
}

/* The reference is run on the guessed steps, and on those that were found. */
static fd_code take_split(opening *o, const fd_import_plan *plan, fd_error *err) {
    fd_step_split split = {.sizes = malloc(sizeof *split.sizes * ((size_t)plan->n_step + 1))};
    char how[320];
    if (!split.sizes) return fd_fail(err, FD_ERR_MEMORY, "%d steps: out of memory", plan->n_step);
    fd_code code = run_reference(o, err);
    if (code == FD_OK) code = fd_cli_split_steps(plan, *o->ref, &split, err);
    if (code == FD_OK && split.better) {
        snprintf(how, sizeof how, "by the positions whose values %s has; --steps says others", split.name);
        say_steps(o, plan, split.sizes, how);
        fd_trace_close(*o->ref);
        *o->ref = NULL;
        o->steps = split.sizes;
        o->how.step_sizes = split.sizes;
        o->how.n_step_size = plan->n_step;
        return FD_OK;
    }
    if (code == FD_OK && !split.sure) say_steps(o, plan, NULL, "a guess: nothing recorded says it; --steps does");
    free(split.sizes);
    return code;
}

static fd_code find_steps(opening *o, fd_error *err) {
    fd_import_plan plan;
    if (o->steps || fd_source_trace(o->source)) return FD_OK;
    FD_TRY(fd_import_begin_plan(o->source, &o->how, &plan, err));
    fd_code code = plan.guessed_steps ? take_split(o, &plan, err) : FD_OK;
    fd_import_plan_free(&plan);
    return code;
}

static fd_code keep_map(const opening *o, const char *text, size_t size, fd_error *err) {
    char path[4096];
    FILE *file;
    if (!o->input->keep) return FD_OK;
    snprintf(path, sizeof path, "%s/found.map", o->input->keep);
    FD_TRY(fd_cli_output_open(path, &file, err));
    fputs(FD_FOUND_MAP, file);
    fwrite(text, 1, size, file);
    return fd_cli_output_close(file, path, err);
}

/* A map from the values of what o->map does not name, as text; the caller frees it. The reference is run for it. */
static fd_code propose_map(opening *o, fd_proposal *found, char **text, size_t *size, fd_error *err) {
    fd_import_options how = o->how;
    how.map = o->map;
    FD_TRY(run_reference(o, err));
    return fd_cli_auto_map(o->source, &how, *o->ref, text, size, found, err);
}

/* Values that name less than half of the names: what the dump says against the tokens and the model comes before any map. */
static fd_code doubt_dump(const opening *o, const fd_proposal *found, fd_error *err) {
    char doubt[300];
    fd_import_plan plan;
    if (found->n_sure + found->n_by_name >= found->n_ask + found->n_unmatched) return FD_OK;
    FD_TRY(fd_import_begin_plan(o->source, &o->how, &plan, err));
    fd_code code = fd_cli_doubt_dump(o->source, plan.n_token, o->how.graph, doubt, sizeof doubt, err);
    fd_import_plan_free(&plan);
    return code != FD_OK || !doubt[0] ? code : fd_fail(err, FD_ERR_INPUT, "%s: %s", o->input->path, doubt);
}

/* Other tokens than were given may be the engine's bug, so that is said and no more. */
static fd_code say_tokens(const opening *o, fd_error *err) {
    char doubt[300];
    fd_import_plan plan;
    FD_TRY(fd_import_begin_plan(o->source, &o->how, &plan, err));
    fd_code code = fd_cli_doubt_types(&plan, o->how.graph, err);
    if (code == FD_OK) code = fd_cli_doubt_tokens(&plan, o->how.graph, doubt, sizeof doubt, err);
    fd_import_plan_free(&plan);
    if (code == FD_OK && doubt[0])
        fprintf(stderr, "%s: %s: was it fed these? --tokens says others\n", o->input->path, doubt);
    return code;
}

static fd_code find_map(opening *o, fd_error *err) {
    char *text = NULL;
    size_t size = 0;
    fd_proposal found;
    fd_code code = propose_map(o, &found, &text, &size, err);
    if (code == FD_OK) code = keep_map(o, text, size, err);
    if (code == FD_OK) code = doubt_dump(o, &found, err);
    if (code == FD_OK && found.n_sure + found.n_by_name == 0)
        code =
            fd_fail(err, FD_ERR_INPUT,
                    "%s: none of its %zu tensors has a known name or values that are clearly one node's; write a map "
                    "(docs/mapping.md), beginning with: firstdiff import %s --map auto --model %s",
                    o->input->path, fd_source_count(o->source), o->input->path, o->input->model_path);
    if (code == FD_OK) code = fd_name_map_parse("found from the values", text, size, &o->map, err);
    if (code == FD_OK) o->map->builtin = true; /* its patterns know no layer that lacks a node */
    if (code == FD_OK && found.n_ask)
        fprintf(stderr,
                "%zu name%s undecided: firstdiff import %s --map auto --model %s > my.map, edit it, --map my.map\n",
                found.n_ask, found.n_ask == 1 ? " is" : "s are", o->input->path, o->input->model_path);
    free(text);
    return code;
}

static fd_code count_unmatched(const opening *o, size_t *n, fd_error *err) {
    fd_import_options with = o->how;
    fd_import_plan plan;
    with.map = o->map;
    FD_TRY(fd_import_make_plan(o->source, &with, &plan, err));
    *n = plan.n_unmatched;
    fd_import_plan_free(&plan);
    return FD_OK;
}

static fd_code find_readings(opening *o, fd_error *err) {
    o->how.map = o->map;
    if (!fd_cli_may_read_otherwise(o->map, o->how.graph)) return FD_OK;
    FD_TRY(run_reference(o, err));
    FD_TRY(fd_cli_find_readings(o->source, &o->how, *o->ref, &o->readings, err));
    o->how.rows_kept = o->readings.rows_kept;
    return fd_cli_read_so(&o->readings, &o->map, err);
}

/* What a built-in map leaves over of a folder or archive is asked of the values. */
static fd_code complete_map(opening *o, fd_error *err) {
    char *builtin = fd_cli_text_read_so(o->map->name, &o->readings), *found = NULL, *text = NULL, name[128];
    size_t n = 0, size = 0;
    fd_proposal proposal;
    fd_code code = builtin ? count_unmatched(o, &n, err) : FD_OK;
    if (code == FD_OK && n > 0) {
        code = propose_map(o, &proposal, &found, &size, err);
        FILE *memory = code == FD_OK ? open_memstream(&text, &size) : NULL;
        if (memory) fd_cli_put_rules(memory, builtin, strlen(builtin), found);
        if (code == FD_OK && (!memory || fclose(memory) != 0)) code = fd_fail(err, FD_ERR_MEMORY, "map: out of memory");
        if (code == FD_OK && o->readings.rows_kept) fd_cli_drop_halves(text);
        if (code == FD_OK) code = keep_map(o, text, size, err);
        snprintf(name, sizeof name, "%s (+ values)", o->map->name);
        if (code == FD_OK) code = fd_cli_replace_map(&o->map, name, text, err);
    }
    free(builtin);
    free(found);
    free(text);
    return code;
}

static fd_code import_candidate(opening *o, fd_error *err) {
    char path[4096];
    fd_trace **trace = &o->out->trace;
    o->how.map = o->map;
    o->out->of_files = !fd_source_trace(o->source);
    if (!o->input->keep)
        FD_TRY(fd_cli_temporary(path, err));
    else if (snprintf(path, sizeof path, "%s/cand.h5", o->input->keep) >= (int)sizeof path)
        return fd_fail(err, FD_ERR_INPUT, "--keep %.100s…: too long", o->input->keep);
    fd_code code = fd_cli_write_mapped(o->source, &o->how, path, &o->out->unmatched, trace, err);
    if (!o->input->keep)
        unlink(path); /* what is open stays readable */
    else if (code == FD_OK && o->out->of_files && !fd_trace_set_path(*trace, path))
        code = fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", path);
    if (code == FD_OK)
        fprintf(stderr, "%s: %d nodes over %d positions, with the map %s\n", o->input->path, fd_trace_n_node(*trace),
                fd_trace_n_pos(*trace), o->map->name);
    return code;
}

/* With the map's names the sizes of tensors are known, and where ranks contradict each other. */
static fd_code join_ranks(opening *o, fd_error *err) {
    fd_candidate *out = o->out;
    o->how.map = o->map;
    FD_TRY(fd_cli_join_rank_dumps(o->input->path, &o->how, &o->source, err));
    const int32_t n_rank = fd_ranks_report_of(o->source)->n_rank;
    fprintf(stderr, "%s: dumps of %d ranks, put together (docs/mapping.md)\n", o->input->path, n_rank);
    if ((out->copies_differ = fd_cli_copies_differ(o->source))) FD_TRY(run_reference(o, err));
    return fd_cli_judge_ranks(o->source, *o->ref, &out->ranks, &out->ranks_disagree, err);
}

static fd_code open_foreign(opening *o, fd_error *err) {
    const fd_check_input *in = o->input;
    if (fd_source_trace(o->source))
        FD_TRY(fd_cli_check_trace_model(o->reference->model, in->model_path, fd_source_trace(o->source), err));
    FD_TRY(read_options(o, err));
    FD_TRY(fd_cli_prepare_source(o->source, &o->how, err));
    if (o->of_ranks) FD_TRY(fd_cli_join_rank_dumps(in->path, &o->how, &o->source, err));
    FD_TRY(find_steps(o, err));
    FD_TRY(say_tokens(o, err));
    FD_TRY(fd_cli_choose_map(o->source, in->map, &o->how, &o->map, err));
    if (o->map && !in->map) fd_cli_leave_few_misfits(o->source, o->map, &o->how);
    if (o->map && !in->map && !o->of_ranks) FD_TRY(find_readings(o, err));
    if (!o->map)
        FD_TRY(find_map(o, err));
    else if (!in->map && !o->of_ranks && !fd_source_names(o->source))
        FD_TRY(complete_map(o, err));
    if (o->of_ranks) FD_TRY(join_ranks(o, err));
    return import_candidate(o, err);
}

fd_code fd_candidate_open(const fd_check_input *input, const fd_check_reference *reference, fd_candidate *out,
                          fd_trace **ref, fd_error *err) {
    opening o = {.input = input, .reference = reference, .out = out, .ref = ref};
    bool of_golden = strchr(input->path, '#') && access(input->path, F_OK) != 0;
    fd_code code = of_golden ? FD_OK : fd_source_open_any(input->path, &o.source, &o.of_ranks, err);
    if (code == FD_OK && (of_golden || (!input->map && has_own_names(o.source, reference->model->graph))))
        code = open_own(&o, err);
    else if (code == FD_OK)
        code = open_foreign(&o, err);
    if (code == FD_OK && !*ref) fd_cli_set_context_of(reference->model, out->trace);
    fd_name_map_free(o.map);
    fd_source_close(o.weights);
    fd_source_close(o.source);
    free(o.tokens);
    free(o.steps);
    return code;
}
