/* What people's hooks on the modules of transformers call their arrays: a module's path with a word for its input or output behind it, and
 * inputs under the module's path alone. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "dumpers/import/import.h"
#include "dumpers/import/source_internal.h"

static bool is_module(const char *name) {
    static const char *const paths[] = {"model.", "transformer.", "gpt_neox.", "lm_head", "embed_out"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (strncmp(name, paths[i], strlen(paths[i])) == 0) return true;
    return false;
}

/* ---- words behind the path ---- */

/* ".0" or "_0" at the end of name [n]: where it begins, and its number; else n and -1. */
static size_t item_at(const char *name, size_t n, int *item) {
    size_t at = n;
    while (at > 0 && isdigit((unsigned char)name[at - 1])) at--;
    *item = -1;
    if (at == n || n - at > 3 || at < 2 || !strchr("._", name[at - 1])) return n;
    *item = atoi(name + at);
    return at - 1;
}

/* How long the path before the word is; 0: the word does not stand at the end. */
static size_t path_before(const char *name, size_t n, const char *const *words, size_t n_word) {
    for (size_t i = 0; i < n_word; i++) {
        const size_t length = strlen(words[i]);
        if (n > length + 1 && strncmp(name + n - length, words[i], length) == 0 && strchr("._", name[n - length - 1]))
            return n - length - 1;
    }
    return 0;
}

void fd_source_hook_name(char *name, size_t size) {
    static const char *const inputs[] = {"input", "inputs", "in"}, *const outputs[] = {"output", "outputs", "out"};
    char path[1120];
    int item;
    if (!is_module(name) || strlen(name) >= sizeof path) return;
    strcpy(path, name);
    const size_t n = item_at(name, strlen(name), &item), to = path_before(name, n, inputs, 3),
                 from = to ? 0 : path_before(name, n, outputs, 3);
    if (to + from == 0) return;
    path[to + from] = '\0';
    if (to)
        snprintf(name, size, item > 0 ? "%s:in%d" : "%s:in", path, item);
    else if (item > 0)
        snprintf(name, size, "%s.%d", path, item);
    else
        snprintf(name, size, "%s", path);
}

/* ---- inputs under the path alone ---- */

/* What a product's module reads and gives differ in width, and tell which of the two was saved. */
typedef enum width { OF_EMBEDDING, OF_FFN, OF_VOCABULARY, OTHER } width;
static const struct product {
    const char *module;
    width reads, gives;
} products[] = {
    {"lm_head", OF_EMBEDDING, OF_VOCABULARY}, {"embed_out", OF_EMBEDDING, OF_VOCABULARY},
    {".gate_proj", OF_EMBEDDING, OF_FFN},     {".up_proj", OF_EMBEDDING, OF_FFN},
    {".gate_up_proj", OF_EMBEDDING, OTHER},   {".mlp.fc1", OF_EMBEDDING, OF_FFN},
    {".mlp.c_fc", OF_EMBEDDING, OF_FFN},      {".dense_h_to_4h", OF_EMBEDDING, OF_FFN},
    {".down_proj", OF_FFN, OF_EMBEDDING},     {".mlp.fc2", OF_FFN, OF_EMBEDDING},
    {".mlp.c_proj", OF_FFN, OF_EMBEDDING},    {".dense_4h_to_h", OF_FFN, OF_EMBEDDING},
};

static int64_t width_of(const fd_graph *graph, width which) {
    const int64_t widths[] = {graph->hparams.n_embd, graph->hparams.n_ff, graph->hparams.n_vocab, 0};
    return widths[which];
}

static const struct product *product_of(const char *name) {
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        if (fd_ends_with(name, products[i].module)) return &products[i];
    return NULL;
}

/* Products that the names are of, and those among them whose arrays have the width of what is read, not of what is given. Those that have
 * neither, and shared experts', which may be as wide as anything, say nothing. */
static void count_products(const fd_source *source, const fd_graph *graph, size_t *n, size_t *n_read) {
    *n = *n_read = 0;
    for (size_t i = 0; i < source->n; i++) {
        const fd_source_tensor *t = &source->tensors[i];
        const bool counts = is_module(t->name) && !strstr(t->name, "shared") && t->rank >= 2;
        const struct product *p = counts ? product_of(t->name) : NULL;
        const int64_t reads = p ? width_of(graph, p->reads) : 0, gives = p ? width_of(graph, p->gives) : 0;
        if (reads == gives || (gives > 0 && t->shape[t->rank - 1] != reads && t->shape[t->rank - 1] != gives)) continue;
        *n += 1;
        *n_read += t->shape[t->rank - 1] == reads;
    }
}

fd_code fd_source_read_inputs(fd_source *source, const fd_graph *graph, size_t *n_name, fd_error *err) {
    size_t n, n_read;
    *n_name = 0;
    if (source->trace) return FD_OK;
    count_products(source, graph, &n, &n_read);
    if (n == 0 || n_read < n) return FD_OK;
    for (size_t i = 0; i < source->n; i++) {
        char *name = source->tensors[i].name, *longer;
        if (!is_module(name) || strchr(name, ':') || fd_source_is_weight(name)) continue;
        if (!(longer = malloc(strlen(name) + 4))) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", source->path);
        sprintf(longer, "%s:in", name);
        free(name);
        source->tensors[i].name = longer;
        *n_name += source->tensors[i].step == source->tensors[0].step;
    }
    fd_source_sort(source);
    return FD_OK;
}
