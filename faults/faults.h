/* Faults: the real bugs of other engines, each a row of a table, injected into a graph before any executor sees it, and
 * tried as an explanation by compare/explain/explain.h. docs/faults.md lists them with the public cases they come
 * from. */
#ifndef FD_FAULTS_FAULTS_H
#define FD_FAULTS_FAULTS_H

#include "exec/exec.h"

typedef struct fd_fault_info {
    const char *name; /* "rope_pairing" */
    /* "loader", "dequantise", "embedding", "norm", "matmul", "rope", "attention", "kv_cache", "ffn", "moe", "residual",
     * "numerics", "output" or "ranks" */
    const char *family;
    const char *summary; /* one line: what the faulty engine does */
    /* The node suffix where it first shows, "attn_q_rope"; several, of which a model has one there, are separated by
     * spaces: "ffn_act ffn_moe_act". */
    const char *located;
    bool outside; /* sits outside the layers ("token_embd", "logits"): takes no @LAYER */
    /* Where the fault is a coarser type for the factors of a product: its unit roundoff. In an engine whose factors
     * are as coarse it is no bug. Else 0. */
    double u_in;
    bool whole_batch; /* computes a row from others of its batch, also from later ones */
    bool lasting;     /* what it makes of a step's rows of a cache is what later steps find there */
    bool pair;        /* exchanges what two nodes have: at one of them alone it is another bug */
    const char *
        form_of; /* a form of this, "GELU in place of the activation", that rounding may not tell from its others; NULL: of none */
    double
        roundings; /* of a fault that computes what the op does not: how many an element has, of its row's largest value; else 0 */
    bool all_alike; /* in all rows it does no harm, of which its summary speaks behind a colon */
    bool later;     /* does no harm in a first batch: it shows in those that find rows in the cache */
    bool hardly;    /* leaves out what hardly changes small numbers: rounding of few bits leaves that out as well */
} fd_fault_info;

int32_t fd_fault_count(void);
const fd_fault_info *fd_fault_at(int32_t i);
int32_t fd_fault_find(const char *name); /* -1: there is none */

/* "blk.3.attn_q" → "attn_q"; the whole name outside the layers. */
const char *fd_fault_suffix(const fd_node *node);

/* The same suffix: attn_q of two layers. And the first node of its kind, in whatever layer that is. */
bool fd_fault_same_kind(const fd_node *a, const fd_node *b);
/* The node of `layer` that is there what `node` is in its own; -1. */
int32_t fd_fault_in_layer(const fd_graph *graph, const fd_node *node, int32_t layer);
bool fd_fault_begins_kind(const fd_graph *graph, int32_t node);
int32_t *fd_fault_kinds(const fd_graph *graph); /* that node's id for each; malloc'ed [n_node]; NULL: out of memory */

/* True when the fault first shows at nodes of this name, in whatever layer. */
bool fd_fault_shows_at(const fd_fault_info *info, const fd_node *node);

/* Applies "NAME" or "NAME@LAYER" (all layers without @) to a graph of the caller's own (fd_graph_clone). Replaced
 * weight bytes are owned by *owner, which must outlive the graph's use. FD_ERR_INPUT: unknown name (lists the known),
 * layer out of range, a layer for a fault outside the layers, or nothing in this model that the fault could change (no
 * bias, no Q8_0 weight, output not tied, …). */
typedef struct fd_fault_owner fd_fault_owner;
fd_code fd_fault_apply(const char *spec, fd_graph *graph, fd_fault_owner **owner, fd_error *err);
void fd_fault_owner_free(fd_fault_owner *owner);

/* One node as a fault has it. */
typedef struct fd_faulty_node {
    fd_node node;
    fd_weight weight[FD_MAX_WEIGHTS]; /* what its slots read, where they are in use */
    bool replaced; /* the bytes of weight[0] are not the graph's: `owner` has them, and node.weight[0] is as before */
    fd_fault_owner *owner; /* NULL: the fault does not concern the node */
} fd_faulty_node;

/* Applies fault i to a copy of `node`, which is a node of the graph or was changed by the caller. out->owner says
 * whether the fault concerns it; freed with fd_faulty_node_free. */
fd_code fd_fault_edit_node(int32_t i, const fd_graph *graph, const fd_node *node, fd_faulty_node *out, fd_error *err);
void fd_faulty_node_free(fd_faulty_node *faulty); /* frees the owner, not the struct */

#endif
