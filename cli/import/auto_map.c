#include "cli/import/auto_map.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/import/map_lines.h"
#include "cli/temporary.h"
#include "compare/attribute/own_values.h"
#include "reference_cpu/reference.h"

/* More by so much is no accident: of a single name, four digits. */
#define BETTER 2.0
/* Multiply-adds that a search may take, a minute of two cores, and attempts. */
#define MOST_WORK     4e11
#define MOST_ATTEMPTS 96

typedef struct search {
    const fd_source *source;
    const fd_import_options *how;
    int64_t attempts_left;
    fd_cli_progress progress; /* of attempts that may be needed */
    fd_error *err;
} search;

/* What is known so far: the names against the values that follow from those that `taken` and the sure ones among them give. */
typedef struct stand {
    char *taken; /* rules of names that no values decide, a line each */
    bool by_elimination;
    char *text; /* the proposed map */
    size_t size;
    fd_proposal found;
    fd_trace *own; /* NULL: the right run's values were compared */
} stand;

static void drop(stand *s) {
    free(s->taken);
    free(s->text);
    fd_trace_close(s->own);
    *s = (stand){0};
}

/* The map that `how` has, the rules of `text`, those of `taken`. */
static fd_code make_map(const search *s, const char *text, const char *taken, fd_name_map **out) {
    char *all = NULL;
    size_t size = 0, builtin_size = 0;
    const char *builtin = s->how->map ? fd_name_map_builtin(s->how->map->name, &builtin_size) : NULL;
    FILE *memory = open_memstream(&all, &size);
    if (!memory) return fd_fail(s->err, FD_ERR_MEMORY, "map auto: out of memory");
    fd_cli_put_rules(memory, builtin, builtin_size, text);
    fd_cli_put_rules(memory, NULL, 0, taken);
    fd_code code = fclose(memory) == 0 ? FD_OK : fd_fail(s->err, FD_ERR_MEMORY, "map auto: out of memory");
    if (code == FD_OK) code = fd_name_map_parse("found from the values", all, size, out, s->err);
    if (code == FD_OK) (*out)->builtin = true;
    free(all);
    return code;
}

static fd_code open_mapped(const search *s, const fd_name_map *map, fd_trace **out) {
    fd_import_options how = *s->how;
    fd_import_plan plan;
    char path[4096];
    how.map = map;
    FD_TRY(fd_import_make_plan(s->source, &how, &plan, s->err));
    fd_code code = fd_cli_temporary(path, s->err);
    if (code == FD_OK) {
        code = fd_import_write(&plan, path, s->err);
        if (code == FD_OK) code = fd_trace_open(path, out, s->err);
        unlink(path); /* what is open stays readable */
    }
    fd_import_plan_free(&plan);
    return code;
}

static fd_code make_own_values(const search *s, const fd_name_map *map, fd_trace **out) {
    fd_trace *mapped = NULL;
    char path[4096];
    FD_TRY(open_mapped(s, map, &mapped));
    fd_code code = fd_cli_temporary(path, s->err);
    if (code == FD_OK) {
        code = fd_replay_own_values(s->how->graph, mapped, fd_reference_op, path, s->err);
        if (code == FD_OK) code = fd_trace_open(path, out, s->err);
        unlink(path);
    }
    fd_trace_close(mapped);
    return code;
}

/* `map`: of names that are left out; NULL: none. `own`: the map that `ref` follows from; NULL: the right run. */
static fd_code propose(const search *s, const fd_trace *ref, const fd_name_map *own, const fd_name_map *map,
                       stand *out) {
    fd_import_options how = *s->how;
    how.map = map;
    FILE *memory = open_memstream(&out->text, &out->size);
    if (!memory) return fd_fail(s->err, FD_ERR_MEMORY, "map auto: out of memory");
    fd_code code = fd_propose_map(s->source, &how, ref, own, memory, &out->found, s->err);
    if (fclose(memory) != 0 && code == FD_OK) code = fd_fail(s->err, FD_ERR_MEMORY, "map auto: out of memory");
    return code;
}

/* Where `from` stands, with `choices` [n] taken besides. A choice that does not fit the arrays leaves *out empty. */
static fd_code attempt(search *s, const stand *from, const fd_propose_choice *const *choices, size_t n, const char *why,
                       stand *out) {
    fd_name_map *map = NULL;
    char lines[1200] = "";
    size_t at = 0;
    *out = (stand){0};
    if (!from->taken || !from->taken[0]) at = fd_cli_put_asked(from->text, lines, sizeof lines);
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(lines + at, sizeof lines - at, "%-44s -> %s%s%s  # %s\n", choices[i]->source,
                               choices[i]->node, choices[i]->ops[0] ? " " : "", choices[i]->ops, why);
    if (asprintf(&out->taken, "%s%s", from->taken ? from->taken : "", lines) < 0) out->taken = NULL;
    if (!out->taken) return fd_fail(s->err, FD_ERR_MEMORY, "map auto: out of memory");
    fd_cli_progress_to(&s->progress, s->progress.total - s->attempts_left--);
    fd_code code = make_map(s, from->text, out->taken, &map);
    if (code == FD_OK) code = make_own_values(s, map, &out->own);
    if (code == FD_OK) code = propose(s, out->own, map, s->how->map, out);
    fd_name_map_free(map);
    if (code == FD_OK) return FD_OK;
    drop(out);
    if (code != FD_ERR_INPUT) return code;
    *s->err = (fd_error){0};
    return FD_OK;
}

/* Tries them; *best becomes where they lead to, if that is better. */
static fd_code try_choices(search *s, const stand *from, const fd_propose_choice *const *choices, size_t n,
                           stand *best) {
    stand now;
    if (s->attempts_left <= 0) return FD_OK;
    FD_TRY(attempt(s, from, choices, n, "other names' values follow from it", &now));
    if (now.text && now.found.agreement > (best->text ? best->found.agreement : from->found.agreement + BETTER)) {
        drop(best);
        *best = now;
    } else {
        drop(&now);
    }
    return FD_OK;
}

/* Is it added to the residual stream? */
static bool is_branch(const search *s, const fd_propose_choice *choice) {
    const fd_graph *graph = s->how->graph;
    char name[96];
    const char *tail = strchr(choice->node, '}');
    if (!tail) return false;
    snprintf(name, sizeof name, "blk.0%s", tail + 1);
    const int32_t id = fd_graph_find(graph, name);
    for (int32_t i = id + 1; id >= 0 && i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_ADD && (graph->nodes[i].input[0] == id || graph->nodes[i].input[1] == id))
            return true;
    return false;
}

static bool is_taken(const stand *s, const fd_propose_choice *choice) {
    char start[310];
    snprintf(start, sizeof start, "%s ", choice->source);
    const char *at = s->taken ? strstr(s->taken, start) : NULL;
    return at && (at == s->taken || at[-1] == '\n');
}

/* One name more; else, where two names are what a layer adds to the residual stream, both, for one of them says nothing. */
static fd_code try_all(search *s, const stand *from, const fd_propose_choice *choices, size_t n, stand *best) {
    fd_code code = FD_OK;
    for (size_t i = 0; i < n && code == FD_OK; i++) {
        const fd_propose_choice *one[] = {&choices[i]};
        if (!is_taken(from, &choices[i])) code = try_choices(s, from, one, 1, best);
    }
    for (size_t i = 0; i < n && code == FD_OK && !best->text; i++)
        for (size_t k = 0; k < n && code == FD_OK; k++) {
            const fd_propose_choice *two[] = {&choices[i], &choices[k]};
            if (strcmp(choices[i].source, choices[k].source) >= 0 || strcmp(choices[i].node, choices[k].node) == 0 ||
                is_taken(from, two[0]) || is_taken(from, two[1]) || !is_branch(s, two[0]) || !is_branch(s, two[1]))
                continue;
            code = try_choices(s, from, two, 2, best);
        }
    return code;
}

/* A better stand than *at, if there is one: by what is sure alone, then by a choice. */
static fd_code improve(search *s, stand *at, bool *improved) {
    fd_propose_choice *choices;
    size_t n;
    stand best = {0};
    FD_TRY(fd_propose_choices(at->text, &choices, &n, s->err));
    fd_code code = n ? try_choices(s, at, NULL, 0, &best) : FD_OK;
    if (code == FD_OK && !best.text) code = try_all(s, at, choices, n, &best);
    free(choices);
    *improved = code == FD_OK && best.text;
    if (*improved) {
        drop(at);
        *at = best;
    }
    return code;
}

/* Is a name some node of a layer? */
static bool names_layers(const stand *at) {
    bool any = at->taken && at->taken[0];
    for (const char *line = at->text; !any && *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *node = strstr(line, " -> ");
        any = strncmp(line, "ask ", 4) != 0 && line[0] != '#' && node && node < line + strcspn(line, "\n") &&
              strncmp(node + 4, "blk.", 4) == 0;
    }
    return any;
}

/* Tensors of every layer that no value decides, and no others, behind a bug of the first layer: taken for the layers' outputs, or what
 * else of their size comes first by its length. Whatever they are of a layer, the bug is at the first of them or before it. */
static fd_code take_outputs(search *s, stand *at) {
    fd_propose_choice *choices;
    size_t n;
    stand taken = {0};
    FD_TRY(fd_propose_choices(at->text, &choices, &n, s->err));
    bool alone = n > 0, wide = false;
    for (size_t i = 0; i < n; i++) {
        alone &= strcmp(choices[i].source, choices[0].source) == 0;
        wide |= strcmp(choices[i].node, "blk.{layer}.l_out") == 0;
    }
    const fd_propose_choice *first = choices;
    fd_code code = alone && wide
                       ? attempt(s, at, &first, 1, "by elimination: of layers nothing else was recorded", &taken)
                       : FD_OK;
    if (taken.text) {
        drop(at);
        *at = taken;
        at->by_elimination = true;
    }
    free(choices);
    return code;
}

static int64_t attempts(const search *s, const fd_trace *ref) {
    const double n = MOST_WORK / (fd_graph_n_parameter(s->how->graph) * fd_trace_n_pos(ref));
    return n < MOST_ATTEMPTS ? (int64_t)n : MOST_ATTEMPTS;
}

/* The lines of what was taken, then those of all other names. */
static fd_code finish(const search *s, stand *at) {
    fd_name_map *map = NULL, *own = NULL;
    stand rest = {0};
    char *whole;
    size_t n = 0;
    if (at->taken) fd_cli_drop_idle_questions(at->taken);
    if (!at->taken || !at->taken[0]) return FD_OK;
    FD_TRY(make_map(s, "", at->taken, &map));
    fd_code code = make_map(s, at->text, at->taken, &own);
    if (code == FD_OK) code = propose(s, at->own, own, map, &rest);
    fd_name_map_free(own);
    fd_name_map_free(map);
    for (const char *c = at->taken; *c;) n += strncmp(fd_cli_next_line(&c, ""), "ask ", 4) != 0;
    if (code == FD_OK && !(whole = fd_cli_join_lines(at->taken, rest.text)))
        code = fd_fail(s->err, FD_ERR_MEMORY, "map auto: out of memory");
    if (code == FD_OK) {
        free(at->text);
        at->text = whole;
        at->size = strlen(whole);
        at->found = rest.found;
        *(at->by_elimination ? &at->found.n_by_name : &at->found.n_sure) += n * (size_t)s->how->graph->hparams.n_layer;
    }
    drop(&rest);
    return code;
}

fd_code fd_cli_auto_map(const fd_source *source, const fd_import_options *how, const fd_trace *ref, char **text,
                        size_t *size, fd_proposal *found, fd_error *err) {
    search s = {.source = source, .how = how, .err = err};
    stand at = {0};
    fd_code code = propose(&s, ref, NULL, how->map, &at);
    s.attempts_left = attempts(&s, ref);
    s.progress = fd_cli_progress_start("try names", s.attempts_left);
    for (bool improved = true; code == FD_OK && improved;) code = improve(&s, &at, &improved);
    if (code == FD_OK && !names_layers(&at)) code = take_outputs(&s, &at);
    if (code == FD_OK) code = finish(&s, &at);
    fd_cli_progress_end(&s.progress);
    *text = NULL;
    *size = 0;
    if (code == FD_OK) {
        *text = at.text;
        *size = at.size;
        *found = at.found;
        at.text = NULL;
    }
    drop(&at);
    return code;
}
