/* Between the files of faults/: what a row of the table is, and what edits share. Every family has a file and an array
 * of rows in it; faults.c joins the arrays. */
#ifndef FD_FAULTS_INTERNAL_H
#define FD_FAULTS_INTERNAL_H

#include "faults/faults.h"

struct fd_fault_owner {
    void **blocks; /* replaced weight bytes, malloc'ed */
    int32_t n_block;
};

/* One node that a fault may change. */
typedef struct fd_fault_site {
    const fd_graph *graph;
    fd_node *node; /* the graph's, or a copy */
    fd_fault_owner *owner;
    fd_weight weight; /* what its first slot reads when it was replaced */
    bool replaced;
    fd_code code; /* of an edit that failed */
    fd_error *err;
} fd_fault_site;

/* Changes the node when the fault concerns it, else leaves it alone. It must not look at what the same fault changed in
 * other nodes: fd_fault_edit_node edits one alone. */
typedef void (*fd_fault_edit)(fd_fault_site *site);

typedef struct fd_fault {
    fd_fault_info info;
    fd_op op;          /* of the nodes it concerns; FD_OP_COUNT: the edit decides */
    const char *nodes; /* their suffixes, "attn_q attn_k"; NULL: every node of that op */
    bool (*applies)(const fd_graph *graph, const fd_node *node); /* NULL: always */
    fd_fault_edit edit;                                          /* either this … */
    fd_override_fn override;                                     /* … or what computes the node instead of its op */
    bool
        of_table; /* explains the embeddings too, whose table is decoded by the same code; they stay right where it is injected */
} fd_fault;

typedef struct fd_fault_family {
    const fd_fault *rows;
    int32_t n_row;
} fd_fault_family;

extern const fd_fault_family fd_loader_faults, fd_block_faults, fd_packing_faults, fd_group_faults, fd_half_faults,
    fd_embed_faults, fd_norm_faults, fd_norm_rows_faults, fd_matmul_faults, fd_rope_faults, fd_rope_layout_faults,
    fd_attention_faults, fd_softmax_faults, fd_tile_faults, fd_cache_faults, fd_past_faults, fd_activation_faults,
    fd_ffn_faults, fd_moe_faults, fd_numerics_faults, fd_output_faults, fd_rank_faults, fd_recurrent_faults,
    fd_ssm_faults, fd_router_faults, fd_gate_up_faults, fd_fused_faults;

/* A row of a decoder's bug, but for its edit. */
#define FD_DECODER(name, summary)                                                                                      \
    .info = {name, "dequantise", summary, "attn_q", false}, .op = FD_OP_MATMUL, .of_table = true

#define FD_FAULT_FAMILY(rows)                                                                                          \
    { (rows), (int32_t)(sizeof(rows) / sizeof *(rows)) }

/* Functions of rows that are one statement or one condition: an edit of `node`, a condition on `graph` and `node`, an
 * override that computes from `args`. */
#define FD_EDIT(name, ...)                                                                                             \
    static void name(fd_fault_site *site) {                                                                            \
        fd_node *node = site->node;                                                                                    \
        (void)node;                                                                                                    \
        __VA_ARGS__;                                                                                                   \
    }
#define FD_APPLIES(name, ...)                                                                                          \
    static bool name(const fd_graph *graph, const fd_node *node) {                                                     \
        (void)graph, (void)node;                                                                                       \
        return __VA_ARGS__;                                                                                            \
    }
#define FD_OVERRIDE(name, ...)                                                                                         \
    static void name(const fd_op_args *args) {                                                                         \
        __VA_ARGS__;                                                                                                   \
    }

/* Elements of a matrix from which threads are worth waking. Each is computed by itself, so their number changes nothing. */
enum { FD_FAULT_MANY = 1 << 20 };

/* fd_dot of numerics/contract.h; and a kernel's whose accumulators are binary16: 64 of them, each rounded at every step, and
 * so is the tree (dot.c). */
float fd_fault_dot(const float *w, const float *x, int64_t n);
float fd_fault_dot_f16(const float *w, const float *x, int64_t n);

/* Gives the node's first weight slot a weight of its own with the old one's shape: `bytes` bytes of `dtype`, zeroed and
 * the owner's, for the caller to fill. NULL, and the site has the failure: out of memory. */
void *fd_fault_new_weight(fd_fault_site *site, uint32_t dtype, uint64_t bytes);

/* Gives it a copy of the old one's bytes, of which each block goes through the edit of the weight's type; none: left alone. */
typedef void (*fd_fault_bytes)(uint8_t *block);
void fd_fault_repack(fd_fault_site *site, const fd_fault_bytes edits[FD_DTYPE_LIMIT]);

/* The weight of a slot; NULL when there is none. */
const fd_weight *fd_fault_weight(const fd_graph *graph, const fd_node *node, int slot);

/* True when the node's name without its layer is one of the words ("attn_q attn_k"). */
bool fd_fault_is_one_of(const fd_node *node, const char *words);

/* The node of the same layer with that suffix; -1. */
int32_t fd_fault_sibling(const fd_graph *graph, const fd_node *node, const char *suffix);

/* Heads of Q and of K and V in the node's layer, which in some models differ from layer to layer; the model's where the
 * layer does not attend. */
typedef struct fd_fault_heads {
    int32_t n_head, n_head_kv;
} fd_fault_heads;
fd_fault_heads fd_fault_heads_of(const fd_graph *graph, const fd_node *node);

/* The node that is input i. */
const fd_node *fd_fault_input(const fd_op_args *args, int i);

/* Position of the first row of the batch that row `row` is of. */
int32_t fd_fault_batch_start(const fd_op_args *args, int32_t row);
/* And the position after its last row. */
int32_t fd_fault_batch_end(const fd_op_args *args, int32_t row);

/* What a norm of the graph makes of n_row rows, which need not be its own input's. */
void fd_fault_norm(const fd_graph *graph, const fd_node *norm, const float *x, int32_t n_row, float *out);

/* An override: the first input as it is. */
void fd_fault_copy(const fd_op_args *args);

/* Row `row` of a weight as binary32, malloc'ed; NULL when memory ran out (an override then writes NaN: it cannot
 * fail). */
float *fd_fault_row(const fd_weight *weight, int64_t row);

/* Rounded to the type and back. */
typedef float (*fd_fault_round)(float x);
float fd_fault_to_f16(float x);
float fd_fault_to_bf16(float x);

/* Fills an override's output, n_pos rows of `width`, with NaN. */
void fd_fault_nan(const fd_op_args *args, int64_t width);

#endif
