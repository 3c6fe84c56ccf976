/* The op graph: an architecture as a declarative list of nodes, in execution order, and the table of weights they use.
 * Four readers execute the same list: reference_cpu, emulate, engine and compare's replay. */
#ifndef FD_MODEL_GRAPH_H
#define FD_MODEL_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "model/gguf/gguf.h"
#include "numerics/contract.h"

typedef enum fd_op {
#define FD_OP(ENUM, name, n_input, summary) FD_OP_##ENUM,
#include "model/ops.def"
#undef FD_OP
    FD_OP_COUNT
} fd_op;

const char *fd_op_name(fd_op op); /* as ops.def and traces spell it: "attn_scores" */

typedef enum fd_rope_pairing {
    FD_ROPE_INTERLEAVED, /* rotates (2i, 2i+1): llama */
    FD_ROPE_HALF,        /* rotates (i, i + n_rot/2): qwen2, "neox" */
} fd_rope_pairing;

typedef enum fd_rope_scaling {
    FD_ROPE_SCALING_NONE,
    FD_ROPE_SCALING_LINEAR,
    FD_ROPE_SCALING_LLAMA3,
    FD_ROPE_SCALING_YARN,
    FD_ROPE_SCALING_LONGROPE, /* by two tables of frequency factors, one for contexts longer than the original one */
    FD_ROPE_SCALING_COUNT
} fd_rope_scaling;
const char *fd_rope_scaling_name(fd_rope_scaling scaling); /* "none", "linear", "llama3", "yarn", "longrope" */

typedef struct fd_rope {
    fd_rope_pairing pairing;
    int32_t n_rot; /* leading elements of a head that rotate; even, ≤ head_dim */
    double base;   /* rope.freq_base */
    fd_rope_scaling scaling;
    double factor;                            /* linear, llama3, yarn: 1 when none */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double original_context;                  /* llama3, yarn, longrope: positions before the scaling */
    double beta_fast, beta_slow; /* yarn: pairs that turn more often than beta_fast over the original context keep their
                                    frequency, those that turn less than beta_slow times have it divided by factor */
    double ext_factor;           /* yarn: how much of that ramp is used, 1; negative in no real model: reversed */
    double attention_factor;     /* of cos and sin; 0 counts as 1 */
} fd_rope;

/* The norm of an architecture's layers. */
typedef enum fd_norm {
    FD_NORM_RMS,
    FD_NORM_LAYER,
    FD_NORM_LAYER_PLAIN, /* without weights */
} fd_norm;

/* How the weights of the chosen experts come from the router's row. */
typedef enum fd_gating {
    FD_GATING_GATHER,     /* the chosen elements as they are */
    FD_GATING_NORMALISED, /* divided by their sum: the row holds probabilities */
    FD_GATING_SOFTMAX,    /* softmax over the chosen elements alone: the row holds logits */
} fd_gating;
const char *fd_gating_name(fd_gating gating);    /* "gather", "normalised", "softmax" */
const char *fd_gating_summary(fd_gating gating); /* in words */

typedef struct fd_hparams {
    char arch[32];
    char name[128]; /* general.name, or "" */
    int32_t n_layer, n_embd, n_ff, n_vocab;
    int32_t n_head, n_head_kv, head_dim; /* n_head % n_head_kv == 0 */
    int32_t n_ctx_train;
    fd_norm norm;
    float rms_eps; /* of its norms, whichever they are */
    fd_rope rope;
    bool rope_rows_kept; /* checkpoints pair neighbours, too: converters keep the rows of Q and K as they are */
    /* What only some architectures read (fd_arch.reads); 0 where an architecture does not. */
    int32_t n_expert, n_expert_used, n_ff_expert;
    float expert_scale;    /* of the experts' weights */
    bool expert_norm;      /* they are divided by their sum, where the architecture leaves it to the file */
    int32_t expert_gating; /* expert_gating_func: 0 not said, 1 softmax, 2 sigmoid, 3 softmax of the chosen */
    int32_t n_expert_group, n_expert_group_used; /* experts are chosen from the best groups alone; 0: no groups */
    int32_t n_ff_shared;                         /* of the experts that every token uses, together; 0: none */
    int32_t n_layer_dense;                       /* the first layers have an FFN in place of experts */
    int32_t window;                    /* positions that a query of a windowed layer sees, its own among them */
    float attn_softcap, final_softcap; /* cap·tanh(x / cap) of scores and of logits */
    float embedding_scale, residual_scale, logit_scale; /* 1: none; logits are divided by logit_scale */
    float attn_scale;                                   /* of scores; 0: 1/sqrt(head_dim) */
    float clamp_qkv, max_alibi_bias;                    /* 0: none */
    float temperature_scale;                            /* of Q by position; 0: none */
    int32_t temperature_length;                         /* positions until it rises */
    bool parallel_residual;                             /* attention and FFN read the same stream */
    bool rope_used;                                     /* granite: false where rope.scaling.finetuned says so */
} fd_hparams;

typedef struct fd_weight {
    char name[128];   /* as in the GGUF */
    uint32_t dtype;   /* fd_dtype */
    int64_t n_row;    /* outputs (tokens for an embedding); 1 for a vector; experts' matrices one after the other */
    int64_t n_col;    /* contiguous: inputs */
    const void *data; /* n_row rows of fd_dtype_row_bytes(dtype, n_col); borrowed from the GGUF or from a fault */
    uint64_t bytes;
    bool requantised; /* its values are what integers stand for that an engine made of the file's, whatever dtype says */
} fd_weight;

enum { FD_MAX_STATE = 256, FD_MAX_GROUPS = 64, FD_MAX_INPUTS = 2, FD_MAX_WEIGHTS = 2, FD_MAX_SHAPE = 2 };

struct fd_op_args;
/* Computes a node in place of its op (faults; host memory, binary32). */
typedef void (*fd_override_fn)(const struct fd_op_args *args);

typedef struct fd_node {
    int32_t id; /* index in the graph and sequence number in a trace */
    fd_op op;
    char name[64];                /* "blk.3.attn_q_rope" */
    int32_t layer;                /* -1 outside the layers */
    int32_t input[FD_MAX_INPUTS]; /* node ids, -1 unused; EMBED takes the tokens instead */
    /* Indices of fd_graph.weights, -1 unused. MATMUL {W, bias}; RMS_NORM {w}, LAYER_NORM {w, b}, of one row or one a
     * head; ADD_POSITION {table}; ADD_VECTOR {b}; EMBED {table}; ROPE {frequency factors in use, LongRoPE: those of the
     * other context length}; HEAD_MATMUL {W [n_head · n_out, n_in]}; CONV {W [n, taps], bias}; SSM_SCAN {A [n_head, 1
     * or n_state], D [n_head]}; MUL_VECTOR {w}; TOKEN_SHIFT {w}; ATTN_SOFTMAX {sinks [n_head]}; EXPERT_MATMUL {W
     * [n_expert · n_out, n_in], bias [n_expert, n_out]}. */
    int32_t weight[FD_MAX_WEIGHTS];
    /* Of one position's tensor: [n], [n_head, head_dim] or [n_chosen, n_out]; attn_scores, attn_weights: [n_head,
     * 0]. */
    int32_t n_dim; /* 1 or 2 */
    int32_t shape[FD_MAX_SHAPE];
    bool over_kv; /* last dimension runs over positions 0…pos: shape[1] is 0, its length pos + 1 */

    float eps;                     /* RMS_NORM, LAYER_NORM, L2_NORM */
    float scale;                   /* ATTN_SCORES, SCALE, GATED_DELTA; EXPERT_WEIGHTS: 1 when none */
    float softcap;                 /* SOFTCAP; ATTN_SCORES: after the scale, 0: none */
    int32_t window;                /* ATTN_SCORES: a query at p sees p - window + 1 … p; 0: all up to p */
    bool chunked;                  /* ATTN_SCORES: it sees those of its chunk alone, p - p % window … p */
    float slope, limit;            /* SWIGLU_CLAMP; CLAMP: limit alone */
    float max_bias;                /* ATTN_ALIBI: fd_alibi_slope */
    int32_t length;                /* ATTN_TEMPERATURE: positions until it rises, with scale, counted from -first */
    fd_gating gating;              /* EXPERT_WEIGHTS */
    int32_t n_group, n_group_used; /* TOP_K: of the groups with the largest sums of two elements alone; 0: no groups */
    int32_t first;                 /* SLICE: of the elements of a head; ATTN_TEMPERATURE: added to the position */
    fd_rope rope;                  /* ROPE */
    int32_t row_offset;            /* KV_WRITE: rows are written at pos + row_offset; 0 in every real model */
    uint32_t kv_type;              /* KV_WRITE: fd_dtype that rows are rounded to; FD_F32: they stay as they are */
    fd_override_fn override;       /* NULL in every real model */
} fd_node;

/* A KV_WRITE of K or V, which engines keep in types of their own; the states of recurrent layers are none. */
bool fd_node_is_kv_cache(const fd_node *node);

typedef struct fd_graph {
    fd_hparams hparams;
    fd_node *nodes; /* owned */
    int32_t n_node;
    fd_weight *weights; /* owned array, borrowed data */
    int32_t n_weight;
    char kv_type[16]; /* as fd_graph_set_kv_types was told, in small letters; "": K and V stay as they are */
} fd_graph;

typedef struct fd_missing_weight {
    char name[128];
    int32_t n_dim;
    int64_t shape[FD_GGUF_MAX_DIM]; /* that the graph expects, as fd_gguf_tensor has it */
} fd_missing_weight;

/* The tensors of the file that the graph does not use, and those it needs and lacks. */
typedef struct fd_weight_report {
    fd_missing_weight *missing;
    int32_t n_missing;
    char (*unused)[128];
    int32_t n_unused;
} fd_weight_report;

/* Builds the graph of the architecture the file names. FD_ERR_UNSUPPORTED for an unknown one (named, with the known
 * ones); FD_ERR_INPUT for missing or senseless hyperparameters, missing weights and wrong shapes (named, with found and
 * expected). `report` may be NULL; when given it is filled even when weights are missing, and freed by the caller. */
fd_code fd_graph_build(const fd_gguf *gguf, fd_graph **out, fd_weight_report *report, fd_error *err);
void fd_weight_report_free(fd_weight_report *report);

/* The same for a file that holds metadata alone, with a key vocab_size: report->missing is then every tensor that a
 * file of this model must hold. `with` names optional ones that it is to have, without "blk.N.", separated by spaces:
 * "output.weight attn_q.bias". */
fd_code fd_graph_weights(const fd_gguf *metadata, const char *with, fd_weight_report *report, fd_error *err);

/* A graph of its own with the same borrowed weight data, to be edited by a fault. */
fd_code fd_graph_clone(const fd_graph *graph, fd_graph **out, fd_error *err);
void fd_graph_free(fd_graph *graph);

/* Elements of all weights. */
double fd_graph_n_parameter(const fd_graph *graph);

/* Chooses LongRoPE's factors for runs whose context is n_ctx positions, rounded up to a multiple of 256 as
 * llama.cpp's contexts are: the long ones where that is more than the original context. A graph is built for a
 * context of 1. Without such factors nothing changes. */
void fd_graph_set_context(fd_graph *graph, int32_t n_ctx);

/* Rows of K and V are rounded to a type as they are written, as engines with such a cache read them back: "q8_0", q4_0,
 * q4_1, q5_0, q5_1, iq4_nl, f16, bf16, "f32" as they are; "q8_0/q4_0": of K and of V. Caches of other layers' states stay as they are.
 * FD_ERR_INPUT for an unknown name, where a head is no whole number of blocks, or nothing attends; FD_ERR_UNSUPPORTED
 * for another type. */
fd_code fd_graph_set_kv_types(fd_graph *graph, const char *types, fd_error *err);
fd_code fd_kv_types_parse(const char *types, uint32_t *k, uint32_t *v, fd_error *err);

/* llama.cpp multiplies Q by the scale of the scores before the product with K, so it is Q times the scale that its kernels round
 * (its graphs of Gemma, Phi 2 and Phi 3); elsewhere the product is scaled. */
bool fd_graph_scales_query(const fd_graph *graph);

/* RMSNorm or LayerNorm. */
static inline bool fd_node_is_norm(const fd_node *node) {
    return node->op == FD_OP_RMS_NORM || node->op == FD_OP_LAYER_NORM;
}

/* FD_ERR_UNSUPPORTED for a graph with a node that no GPU kernel computes, or with caches in a type that none keeps, named. */
fd_code fd_graph_check_gpu(const fd_graph *graph, fd_error *err);

/* Checks the invariants executors rely on: inputs come earlier, shapes follow the op's rule, weights fit. */
fd_code fd_graph_validate(const fd_graph *graph, fd_error *err);

/* First position that a query at `pos` sees: scores before it are -inf. */
static inline int32_t fd_node_first_seen(const fd_node *scores, int32_t pos) {
    if (scores->window == 0 || pos < scores->window) return 0;
    return scores->chunked ? pos - pos % scores->window : pos - scores->window + 1;
}

/* A score behind a mask: -Inf, or what a type's lowest value, binary16's at least, or a number like -1e30 and a score add up to. No weight is left
 * of it, however wide the type is. */
static inline bool fd_score_is_hidden(double score) {
    return score < -6e4;
}

/* ATTN_TEMPERATURE's factor at a position. */
static inline double fd_node_temperature(const fd_node *node, int64_t pos) {
    return fd_attn_temperature(pos + node->first, node->length, node->scale);
}

/* The expert that a real names, -1 when it is none of [0, n): ids are recorded as reals, and a trace may hold any. */
static inline int64_t fd_expert_of(double id, int64_t n) {
    return id >= 0 && id < (double)n && id == (double)(int64_t)id ? (int64_t)id : -1;
}

/* -1 when there is no such node. */
int32_t fd_graph_find(const fd_graph *graph, const char *name);

/* Elements of one position of a tensor that does not run over positions (over_kv is false). */
static inline int64_t fd_node_width(const fd_node *node) {
    return (int64_t)node->shape[0] * (node->n_dim == 2 ? node->shape[1] : 1);
}

/* Elements of one position of any tensor when n_kv positions are visible to it (pos + 1). */
static inline int64_t fd_node_elements(const fd_node *node, int32_t n_kv) {
    return node->over_kv ? (int64_t)node->shape[0] * n_kv : fd_node_width(node);
}

/* Elements from row to row as executors lay out a batch: every row has room for the batch's last position. */
static inline int64_t fd_node_row_stride(const fd_node *node, int32_t batch_n_kv) {
    return fd_node_elements(node, batch_n_kv);
}

/* cos and sin of a ROPE node's angles at positions [pos0, pos0 + n): each [n, n_rot/2], computed with the contract's
 * binary64 functions, rounded once. `factors` [1, n_rot/2] is the node's rope_freqs weight, or NULL. Every executor and
 * every replay reads these tables, so that angles cannot differ between them. */
void fd_rope_table(const fd_rope *rope, const fd_weight *factors, int32_t pos0, int32_t n, float *cos_out,
                   float *sin_out);
void fd_rope_table_f64(const fd_rope *rope, const fd_weight *factors, int32_t pos0, int32_t n, double *cos_out,
                       double *sin_out);

/* Two ROPE nodes of a graph that can share their tables: all but the pairing is equal. */
bool fd_rope_same_table(const fd_node *a, const fd_node *b);
#endif
