/* Names that are nodes' own, where values decide nothing: behind a bug nothing has the right values, and the name still says it. */
#include <string.h>

#include "dumpers/import/propose/internal.h"

/* As the map gguf reads a tensor of that name. */
static const char *reading_of(const fd_trace_node *node) {
    if (node->over_kv) return "";
    return strcmp(node->name, "logits") == 0 ? " axis=first rows=last" : " axis=first";
}

void fd_propose_by_name(fd_proposer *p) {
    for (size_t i = 0; i < p->n; i++) {
        fd_proposed *item = &p->items[i];
        const int32_t v = fd_trace_find(p->ref, item->name);
        const fd_source_tensor *t = fd_source_at(p->source, item->tensors[0]);
        if (item->written || item->clear || item->slice[0] || v < 0 || fd_propose_is_named(p, v, item) ||
            !fd_propose_size_fits(p, t, fd_trace_node_at(p->ref, v)))
            continue;
        fprintf(p->out, "%-44s -> %s%s  # by its name alone", item->name, item->name,
                reading_of(fd_trace_node_at(p->ref, v)));
        if (item->best[0].node < 0)
            fprintf(p->out, "\n");
        else
            fprintf(p->out, ": its values decide nothing, nearest %s, cosine %.4f\n",
                    fd_trace_node_at(p->ref, item->best[0].node)->name, 1 - item->best[0].away);
        item->written = item->matched = true;
        item->best[0].node = v;
        p->total->n_by_name++;
    }
}
