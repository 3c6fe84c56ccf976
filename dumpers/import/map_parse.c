#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "dumpers/import/map_internal.h"

enum { MAX_LINE = 1024, MAX_WORDS = 64, MAX_NODE = 63 };

typedef struct parser {
    fd_name_map *map;
    int line;
    char *words[MAX_WORDS];
    int n_word;
    fd_error *err;
} parser;

static fd_code wrong(const parser *p, const char *what, const char *word) {
    return fd_fail(p->err, FD_ERR_INPUT, "%s:%d: %s \"%s\"", p->map->name, p->line, what, word);
}

static fd_code no_memory(const parser *p) {
    return fd_fail(p->err, FD_ERR_MEMORY, "%s: out of memory", p->map->name);
}

static bool append(fd_name_map_list *list, char *item) {
    char **items = item ? realloc(list->items, (list->n + 1) * sizeof *items) : NULL;
    if (!items) {
        free(item);
        return false;
    }
    list->items = items;
    items[list->n++] = item;
    return true;
}

/* ---- lines ---- */

/* The "#2" or "#last" at the end of a source. */
static fd_code take_source(const parser *p, const char *word, fd_name_map_rule *rule) {
    fd_name_map_source *sources = realloc(rule->sources, (rule->n_source + 1) * sizeof *sources);
    if (!sources) return no_memory(p);
    rule->sources = sources;
    fd_name_map_source *source = &sources[rule->n_source];
    *source = (fd_name_map_source){0};
    const char *hash = strrchr(word, '#');
    if (hash) {
        char *end;
        long number = strtol(hash + 1, &end, 10);
        source->occurrence = strcmp(hash, "#last") == 0 ? -1 : (int32_t)number;
        if (source->occurrence != -1 && (end == hash + 1 || *end || number < 1 || number > 1000000))
            return wrong(p, "expected #1, #2, … or #last at the end of", word);
    }
    source->pattern = hash ? strndup(word, (size_t)(hash - word)) : strdup(word);
    if (!source->pattern) return no_memory(p);
    rule->n_source++;
    return source->pattern[0] ? FD_OK : wrong(p, "no name before", word);
}

/* Every number of the node comes from the source; {last} from all names together. So does {name}, at the end of both. */
static bool placeholders_fit(const char *pattern, const char *node) {
    const char *rest = strstr(node, "{name}"), *own = strstr(pattern, "{name}");
    if ((rest || own) && !(rest && own && strcmp(rest, own) == 0 && rest[6] == '\0')) return false;
    if (strstr(node, "{layer}") && !strstr(pattern, "{layer}") && !strstr(pattern, "{layer+1}")) return false;
    return !strstr(node, "{rank}") || strstr(pattern, "{rank}");
}

/* Rules and patterns of lists: each is tried on every tensor. */
static fd_code count_rule(parser *p) {
    const fd_name_map *m = p->map;
    size_t n = m->n_rule + m->skip.n + m->allow.n + m->absent.n + m->ask.n;
    if (n < (size_t)fd_limit_of(FD_LIMIT_RULES)) return FD_OK;
    return fd_limit_exceeded(p->err, FD_LIMIT_RULES, "%s:%d: more rules and patterns", m->name, p->line);
}

static fd_code take_rule(parser *p) {
    fd_name_map *map = p->map;
    FD_TRY(count_rule(p));
    fd_name_map_rule *rules = realloc(map->rules, (map->n_rule + 1) * sizeof *rules);
    if (!rules) return no_memory(p);
    map->rules = rules;
    fd_name_map_rule *rule = &rules[map->n_rule++];
    *rule = (fd_name_map_rule){.line = p->line};
    int at = 0;
    for (bool more = true; more; at++) {
        if (at == p->n_word || strcmp(p->words[at], "->") == 0 || strcmp(p->words[at], "|") == 0)
            return wrong(p, "expected SOURCE [| SOURCE] -> NODE, found", p->words[at < p->n_word ? at : p->n_word - 1]);
        FD_TRY(take_source(p, p->words[at], rule));
        if (++at == p->n_word) return wrong(p, "expected -> NODE after", p->words[at - 1]);
        more = strcmp(p->words[at], "|") == 0;
        if (!more && strcmp(p->words[at], "->") != 0) return wrong(p, "expected | or ->, found", p->words[at]);
    }
    if (at >= p->n_word) return wrong(p, "no node after", "->");
    if (strlen(p->words[at]) > MAX_NODE || strpbrk(p->words[at], "*?#/|"))
        return wrong(p, "no name of a node (at most 63 bytes, no * ? # / |):", p->words[at]);
    if (!(rule->node = strdup(p->words[at]))) return no_memory(p);
    for (size_t i = 0; i < rule->n_source; i++)
        if (!placeholders_fit(rule->sources[i].pattern, rule->node))
            return wrong(p, "the node has a {layer}, {rank} or {name} (at the end) that the source lacks:",
                         rule->sources[i].pattern);
    for (at++; at < p->n_word; at++) {
        const char *what = fd_name_map_take_operation(p->words[at], rule);
        if (what) return wrong(p, what, p->words[at]);
    }
    return FD_OK;
}

static fd_code take_ask(parser *p) {
    char *text = NULL;
    size_t size = 0;
    FD_TRY(count_rule(p));
    FILE *to = open_memstream(&text, &size);
    if (!to) return no_memory(p);
    fprintf(to, "%s:%d:", p->map->name, p->line);
    for (int i = 1; i < p->n_word; i++) fprintf(to, " %s", p->words[i]);
    fd_name_map_asked *asked = realloc(p->map->asked, (p->map->ask.n + 1) * sizeof *asked);
    char *pattern = strdup(p->n_word > 1 ? p->words[1] : "");
    if (asked) p->map->asked = asked;
    if (fclose(to) != 0 || !asked || !pattern || !append(&p->map->ask, text)) {
        free(pattern);
        return no_memory(p);
    }
    asked[p->map->ask.n - 1] = (fd_name_map_asked){p->line, pattern};
    return FD_OK;
}

static fd_code take_line(parser *p) {
    fd_name_map_list *list = strcmp(p->words[0], "skip") == 0     ? &p->map->skip
                             : strcmp(p->words[0], "allow") == 0  ? &p->map->allow
                             : strcmp(p->words[0], "absent") == 0 ? &p->map->absent
                                                                  : NULL;
    bool is_rule = p->n_word > 1 && (strcmp(p->words[1], "->") == 0 || strcmp(p->words[1], "|") == 0);
    if (is_rule) return take_rule(p);
    if (strcmp(p->words[0], "ask") == 0) return take_ask(p);
    if (!list) return wrong(p, "expected SOURCE -> NODE, skip, allow, absent or ask, found", p->words[0]);
    const bool with = list == &p->map->absent && p->n_word > 3 && strcmp(p->words[p->n_word - 2], "with") == 0;
    const int n = with ? p->n_word - 2 : p->n_word;
    if (n == 1) return wrong(p, "no pattern after", p->words[0]);
    for (int i = 1; i < n; i++) {
        FD_TRY(count_rule(p));
        if (!append(list, strdup(p->words[i]))) return no_memory(p);
        const char *only = with ? p->words[n + 1] : "";
        if (list == &p->map->absent && !append(&p->map->absent_with, strdup(only))) return no_memory(p);
    }
    return FD_OK;
}

/* Cuts a line into words; a # that begins a word ends it. */
static fd_code cut(parser *p, char *line) {
    p->n_word = 0;
    char *rest;
    for (char *word = strtok_r(line, " \t\r", &rest); word && word[0] != '#'; word = strtok_r(NULL, " \t\r", &rest)) {
        if (p->n_word == MAX_WORDS) return wrong(p, "more than 64 words, at", word);
        for (const char *c = word; *c; c++)
            if (iscntrl((unsigned char)*c)) return wrong(p, "a control character in", "a word");
        p->words[p->n_word++] = word;
    }
    return FD_OK;
}

static fd_code parse(parser *p, const char *text, size_t size) {
    char line[MAX_LINE];
    for (size_t at = 0; at < size; p->line++) {
        const char *end = memchr(text + at, '\n', size - at);
        size_t n = end ? (size_t)(end - text) - at : size - at;
        if (n >= sizeof line || memchr(text + at, '\0', n))
            return fd_fail(p->err, FD_ERR_INPUT,
                           "%s:%d: a line of %zu bytes or with a zero byte, expected text of at most %d", p->map->name,
                           p->line, n, MAX_LINE - 1);
        memcpy(line, text + at, n);
        line[n] = '\0';
        FD_TRY(cut(p, line));
        if (p->n_word > 0) FD_TRY(take_line(p));
        at += n + 1;
    }
    return FD_OK;
}

fd_code fd_name_map_parse(const char *name, const char *text, size_t size, fd_name_map **out, fd_error *err) {
    *out = NULL;
    fd_name_map *map = calloc(1, sizeof *map);
    if (!map || !(map->name = strdup(name))) {
        free(map);
        return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", name);
    }
    parser p = {.map = map, .line = 1, .err = err};
    fd_code code = parse(&p, text, size);
    if (code == FD_OK && map->n_rule == 0 && map->ask.n == 0)
        code = fd_fail(err, FD_ERR_INPUT, "%s: no rule (SOURCE -> NODE) in it", name);
    if (code == FD_OK)
        *out = map;
    else
        fd_name_map_free(map);
    return code;
}

static void free_list(fd_name_map_list *list) {
    for (size_t i = 0; i < list->n; i++) free(list->items[i]);
    free(list->items);
}

void fd_name_map_free(fd_name_map *map) {
    if (!map) return;
    for (size_t i = 0; i < map->n_rule; i++) {
        for (size_t k = 0; k < map->rules[i].n_source; k++) free(map->rules[i].sources[k].pattern);
        free(map->rules[i].sources);
        free(map->rules[i].node);
        free(map->rules[i].archs);
    }
    free(map->rules);
    free_list(&map->skip);
    free_list(&map->allow);
    free_list(&map->absent);
    free_list(&map->absent_with);
    for (size_t i = 0; i < map->ask.n; i++) free(map->asked[i].pattern);
    free(map->asked);
    free_list(&map->ask);
    free(map->name);
    free(map);
}

fd_code fd_name_map_open(const char *name, fd_name_map **out, fd_error *err) {
    size_t size;
    const char *builtin = fd_name_map_builtin(name, &size);
    *out = NULL;
    if (builtin) {
        FD_TRY(fd_name_map_parse(name, builtin, size, out, err));
        (*out)->builtin = true;
        return FD_OK;
    }
    if (access(name, F_OK) != 0)
        return fd_fail(
            err, FD_ERR_INPUT,
            "%s: no map file, and no built-in map of that name (gguf, llama.cpp, llama2.c, transformers, vllm, onnx)",
            name);
    char *text;
    FD_TRY(fd_file_read(name, "a map", FD_LIMIT_MAP_BYTES, &text, &size, err));
    fd_code code = fd_name_map_parse(name, text, size, out, err);
    const size_t n = strlen(FD_FOUND_MAP);
    if (code == FD_OK) (*out)->builtin = size >= n && memcmp(text, FD_FOUND_MAP, n) == 0;
    free(text);
    return code;
}
