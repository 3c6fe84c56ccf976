#include "engine/match.h"

#include "engine/edges.h"
#include "engine/patterns.h"
#include "engine/split.h"

static void add_member(fd_item *item, int32_t id) {
    if (id < 0) return;
    int at = item->n_member++;
    for (; at > 0 && item->members[at - 1] > id; at--) item->members[at] = item->members[at - 1];
    item->members[at] = id;
}

static bool has_member(const fd_item *item, int32_t id) {
    for (int i = 0; i < item->n_member; i++)
        if (item->members[i] == id) return true;
    return false;
}

static void fill_members(fd_item *item) {
    const int32_t of_rows[] = {item->norm,   item->add,    item->silu,    item->gather, item->q_rope,
                               item->k_rope, item->scores, item->softmax, item->mix};
    for (size_t i = 0; i < sizeof of_rows / sizeof *of_rows; i++) add_member(item, of_rows[i]);
    for (int i = 0; i < item->n_matmul; i++) add_member(item, item->matmul[i]);
    if (item->k >= 0) { /* with K and V come their cache writes */
        add_member(item, item->cache_k);
        add_member(item, item->cache_v);
    }
    if (item->n_member == 0) add_member(item, item->node);
}

/* What members read of other items. A product by cuBLAS reads its input in binary16. */
static void fill_reads(const fd_graph *graph, fd_item *item) {
    bool gemm = item->kernel == FD_KERNEL_GEMM_F16 || item->kernel == FD_KERNEL_GEMM_ADD_F16;
    for (int i = 0; i < item->n_member; i++)
        for (int k = 0; k < FD_MAX_INPUTS; k++) {
            const fd_node *member = &graph->nodes[item->members[i]];
            fd_edge edge = {member->input[k], gemm && member->op == FD_OP_MATMUL ? FD_HALF : FD_REAL};
            bool known = edge.node < 0 || has_member(item, edge.node);
            for (int r = 0; r < item->n_read; r++)
                known = known || (item->reads[r].node == edge.node && item->reads[r].type == edge.type);
            if (!known) item->reads[item->n_read++] = edge;
        }
}

/* Which members are kept for other items; their types are the plan's. */
static bool is_kept(const fd_matcher *m, const fd_item *item, int32_t id) {
    switch (item->kernel) {
    case FD_KERNEL_MATVEC:
        return item->silu >= 0 ? id == item->silu : item->add >= 0 ? id == item->add : id != item->norm;
    case FD_KERNEL_ATTN_DECODE:
    case FD_KERNEL_ATTN_DECODE_F16:
    case FD_KERNEL_ATTN_ROW_F16:
    case FD_KERNEL_ATTENTION_F16: return id == item->mix;
    case FD_KERNEL_ROPE_KV_WRITE: return id != item->k_rope || !(m->patterns & FD_MATCH_DROP_K);
    case FD_KERNEL_GATHER_ADD:
    case FD_KERNEL_GEMM_ADD_F16: return id == item->add;
    default: return true;
    }
}

static fd_item item_at(int32_t id) {
    return (fd_item){.node = id,
                     .norm = -1,
                     .add = -1,
                     .silu = -1,
                     .gather = -1,
                     .q_rope = -1,
                     .k_rope = -1,
                     .cache_k = -1,
                     .cache_v = -1,
                     .scores = -1,
                     .softmax = -1,
                     .mix = -1,
                     .q = -1,
                     .k = -1,
                     .v = -1,
                     .sent_sum = -1};
}

/* Whether what the item reads is there at its place, no node of it was due before (each product norms for itself), and
 * its nodes can be shown in the list's order. */
static bool fits(const fd_matcher *m, const fd_item *item, bool is_last) {
    if (!is_last && item->members[0] != item->node && item->members[0] != item->norm) return false;
    for (int i = 0; i < item->n_read; i++)
        if (item->reads[i].node >= item->node) return false;
    if (!(m->patterns & FD_MATCH_IN_ORDER)) return true;
    for (int32_t i = item->members[0]; i < item->members[item->n_member - 1]; i++)
        if (!has_member(item, i) && !fd_split_for_observers(&m->graph->nodes[i])) return false;
    return true;
}

static bool match_one(const fd_matcher *m, const fd_pattern *p, int32_t id, fd_item *item) {
    *item = item_at(id);
    if (!(m->patterns & p->pattern) || !fd_is_plain(m->graph, id, p->op) || !p->match(m, id, item)) return false;
    fill_members(item);
    fill_reads(m->graph, item);
    return fits(m, item, p->is_last);
}

void fd_match_begin(fd_matcher *m) {
    fd_item item;
    for (int p = 0; p < fd_n_pattern; p++)
        for (int32_t i = 0; fd_patterns[p].is_last && i < m->graph->n_node; i++) {
            if (m->covered[i] || !match_one(m, &fd_patterns[p], i, &item)) continue;
            for (int k = 0; k < item.n_member; k++) m->covered[item.members[k]] = item.members[k] != i;
        }
}

bool fd_match(fd_matcher *m, int32_t id, fd_item *item) {
    int32_t reader;
    bool found = false;
    if (m->covered[id]) return false;
    if (m->patterns & FD_MATCH_MATVEC && fd_is_norm_of_matmuls(m->graph, id) &&
        fd_readers_of(m->graph, id, &reader) > 0)
        return false; /* every product that reads it norms for itself */
    for (int p = 0; p < fd_n_pattern && !found; p++) found = match_one(m, &fd_patterns[p], id, item);
    if (!found) {
        *item = item_at(id);
        fill_members(item);
        fill_reads(m->graph, item);
    }
    for (int i = 0; i < item->n_member; i++) {
        m->covered[item->members[i]] = true;
        if (is_kept(m, item, item->members[i])) item->writes[item->n_write++].node = item->members[i];
    }
    return true;
}

bool fd_match_attention_f16(const fd_graph *graph, int32_t id) {
    const fd_matcher m = {.graph = graph, .patterns = FD_MATCH_ATTENTION_F16 | FD_MATCH_IN_ORDER};
    fd_item item;
    for (int p = 0; p < fd_n_pattern; p++)
        if (match_one(&m, &fd_patterns[p], id, &item)) return true;
    return false;
}
