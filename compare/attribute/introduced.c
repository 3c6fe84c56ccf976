/* What an attribution keeps of errors that were introduced. */
#include <stdlib.h>
#include <string.h>

#include "compare/attribute/attribution_row.h"
#include "faults/faults.h"

const char *fd_finding_name(fd_finding finding) {
    static const char *const names[] = {"not judged", "NOISE", "INHERITED", "AMPLIFIER", "INTRODUCED", "BOTH"};
    return names[finding];
}

bool fd_finding_earlier(const fd_node_finding *a, const fd_node_finding *b) {
    if (a->step != b->step) return a->step < b->step;
    if (a->node != b->node) return a->node < b->node;
    return a->pos < b->pos;
}

void fd_note_introduced(fd_attribution *out, const fd_node_finding *f) {
    fd_node_finding *own = &out->introduced[f->node];
    if (own->finding == FD_FOUND_NOTHING || fd_finding_earlier(f, own)) *own = *f;
    if (!out->found || fd_finding_earlier(f, &out->first)) {
        if (out->found && (out->first.node != f->node || out->first.step != f->step)) out->next = out->first;
        out->first = *f;
        out->found = true;
    } else if (f->node != out->first.node &&
               (out->next.finding == FD_FOUND_NOTHING || fd_finding_earlier(f, &out->next))) {
        out->next = *f;
    }
}

/* The findings are counted with what was judged; those that come later raise the counts. */
static void promote(fd_attribution *of, const fd_node_finding *f) {
    of->n_by_finding[of->finding[f->node]]--;
    of->n_by_finding[f->finding]++;
    of->finding[f->node] = (uint8_t)f->finding;
    fd_note_introduced(of, f);
}

void fd_attribution_promote(const fd_graph *graph, fd_attribution *of, const char *suffix) {
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node_finding *f = &of->suspect[i];
        const fd_node_finding *found = &of->introduced[i];
        bool earlier = found->finding == FD_FOUND_NOTHING || fd_finding_earlier(f, found);
        if (f->finding == FD_FOUND_NOTHING || !earlier) continue;
        if (!suffix || strcmp(suffix, fd_fault_suffix(&graph->nodes[i])) == 0) promote(of, f);
    }
}

void fd_attribution_free(fd_attribution *attribution) {
    free(attribution->z);
    free(attribution->finding);
    free(attribution->introduced);
    free(attribution->suspect);
    free(attribution->uses_room);
    free(attribution->n_moved);
    attribution->suspect = NULL;
    attribution->z = NULL;
    attribution->finding = NULL;
    attribution->introduced = NULL;
}
