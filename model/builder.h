/* How an architecture lists its nodes. Used by model/arch/ only.
 *
 * The first failure is kept: later calls do nothing and return 0, and fd_graph_build reports it. Missing weights do not
 * stop the listing, so that all of them can be named at once. */
#ifndef FD_MODEL_BUILDER_H
#define FD_MODEL_BUILDER_H

#include "model/arch.h"
#include "model/keys.h"

typedef struct fd_builder {
    const fd_gguf *gguf;
    const fd_keys *keys; /* of the architecture's prefix: an architecture reads here what hparams.c does not */
    fd_graph *graph;
    const fd_hparams *h;
    fd_weight_report *report;
    bool *used;       /* [fd_gguf_n_tensor] */
    const char *with; /* fd_graph_weights: optional weights that the file is to have; else "" */
    fd_code code;     /* of the first failure */
    fd_error *err;
} fd_builder;

typedef enum fd_need { FD_REQUIRED, FD_OPTIONAL } fd_need;

/* Whether the file has the tensor "attn_q_norm.weight" of a layer, -1: outside the layers. */
bool fd_build_has(const fd_builder *builder, int32_t layer, const char *name);

/* A weight of the file by name ("blk.3.attn_q.weight"), its shape checked against n_row × n_col (1 × n for a vector).
 * Returns its index in the graph, -1 when it is absent; absent and FD_REQUIRED is noted as missing. */
int32_t fd_build_weight(fd_builder *builder, const char *name, int64_t n_row, int64_t n_col, fd_need need);

/* Rows [first, first + n_row) of a matrix of n_total rows, or for n_row 0 elements [first, first + n_col) of a vector
 * of n_total: a weight of its own, "blk.3.attn_qkv.weight[0:128]", whose bytes are the file's. */
typedef struct fd_part {
    int64_t first, n_total;
} fd_part;
int32_t fd_build_weight_part(fd_builder *builder, const char *name, fd_part part, int64_t n_row, int64_t n_col,
                             fd_need need);

/* n_row rows of n_col that the file has as one vector. */
int32_t fd_build_flat_rows(fd_builder *builder, const char *name, int64_t n_row, int64_t n_col);
/* Row part.first of n_total vectors that the file has as [n_col, 1, 1, n_total]. */
int32_t fd_build_fused_row(fd_builder *builder, const char *name, fd_part part, int64_t n_col);

/* n_matrix matrices of n_row × n_col, one after the other. */
int32_t fd_build_matrices(fd_builder *builder, const char *name, int64_t n_matrix, int64_t n_row, int64_t n_col,
                          fd_need need);
/* The same for experts: n_expert matrices of n_row × n_col one after the other, for n_row 1 n_expert rows. The
 * weight's n_row counts all of them. */
int32_t fd_build_expert_weight(fd_builder *builder, const char *name, int64_t n_row, int64_t n_col, fd_need need);

/* Frequency factors of RoPE, weight indices; -1: none. */
typedef struct fd_rope_factors {
    int32_t in_use, other; /* as ROPE's weight slots */
} fd_rope_factors;
#define FD_NO_ROPE_FACTORS                                                                                             \
    (fd_rope_factors) {                                                                                                \
        -1, -1                                                                                                         \
    }

/* How a layer's attention differs from llama's. {0} with rope_freqs FD_NO_ROPE_FACTORS is plain GQA without biases. */
typedef struct fd_attention_block {
    fd_need qkv_bias;   /* FD_OPTIONAL: applied where the file has them */
    bool qk_norm;       /* norm of each head of Q and K before the rotation: attn_q_norm, attn_k_norm */
    bool qk_norm_after; /* the same after the rotation */
    bool qk_norm_row;   /* before it, of whole rows */
    bool gated;         /* attn_q has rows of Q and of a gate for each head; the head's output is times its sigmoid */
    bool gated_apart;   /* the same with attn_gate, a matrix of the layer's input */
    bool no_rope;       /* neither Q nor K is rotated */
    bool sinks;         /* attn_sinks: a logit of each head's softmax that no position has */
    fd_rope_factors rope_freqs;
    int32_t window;            /* as fd_node.window */
    bool chunked;              /* as fd_node.chunked */
    bool qk_unit_norm;         /* heads of Q and K normed without weights after the rotation */
    bool no_temperature;       /* Q keeps its size in this layer, whatever the file's temperature */
    int32_t temperature_first; /* added to the position */
    const fd_rope *rope;       /* how Q and K are rotated; NULL: as the file says for all layers */
    float softcap;             /* as fd_node.softcap */
    float scale;               /* of scores; 0: 1/sqrt(head_dim) */
} fd_attention_block;

/* Nodes; each returns its id. `layer` -1: outside the layers; the name is then not prefixed with "blk.N.". Weight names
 * get the same prefix and ".weight" / ".bias". */
int32_t fd_build_embed(fd_builder *builder);
int32_t fd_build_embed_of(fd_builder *builder, const char *name, int32_t n); /* another table, rows of n */
/* The architecture's norm. Over the last dimension: of [n_head, head_dim] every head is normed by itself, with one
 * weight for all; a LAYER_NORM's may be one a head. Its bias is optional. */
int32_t fd_build_norm(fd_builder *builder, int32_t layer, const char *name, const char *weight, int32_t x);
int32_t fd_build_rms_norm(fd_builder *builder, int32_t layer, const char *name, const char *weight, int32_t x);
/* Norms of heads of [n_head, n], each with a row of the weight: RMS with the weight [n_head, n]; LAYER with weight and
 * bias as vectors of n_head·n, and an epsilon of its own. L2 has no weight. */
int32_t fd_build_rms_norm_groups(fd_builder *builder, int32_t layer, const char *name, const char *weight, int32_t x);
int32_t fd_build_layer_norm_groups(fd_builder *builder, int32_t layer, const char *name, const char *weight, int32_t x,
                                   float eps);
int32_t fd_build_l2_norm(fd_builder *builder, int32_t layer, const char *name, int32_t x, float eps);
/* RMS norm without a weight, in two nodes: √n times the norm by Σx² + n·eps, which is called `unit`. */
int32_t fd_build_unit_norm(fd_builder *builder, int32_t layer, const char *unit, const char *name, int32_t x);
int32_t fd_build_matmul(fd_builder *builder, int32_t layer, const char *name, const char *weight, int32_t x,
                        int32_t n_out, fd_need bias);
/* A product with some rows of the weight. */
int32_t fd_build_matmul_part(fd_builder *builder, int32_t layer, const char *name, const char *weight, int32_t x,
                             fd_part part, int32_t n_out, fd_need bias);
int32_t fd_build_add_position(fd_builder *builder, int32_t x);
/* `vector` with its suffix: "exp_probs_b.bias". A sum with it is one row, whatever the shape of x. */
int32_t fd_build_mul_vector(fd_builder *builder, int32_t layer, const char *name, const char *vector, int32_t x);
int32_t fd_build_add_vector(fd_builder *builder, int32_t layer, const char *name, const char *vector, int32_t x);
int32_t fd_build_rope(fd_builder *builder, int32_t layer, const char *name, int32_t x, fd_rope_factors factors);
/* rope_freqs.weight, or LongRoPE's rope_factors_short.weight and rope_factors_long.weight, where the file has them. */
fd_rope_factors fd_build_rope_factors(fd_builder *builder);
/* A row is cached as one head. */
int32_t fd_build_kv_write(fd_builder *builder, int32_t layer, const char *name, int32_t x);
int32_t fd_build_attn_scores(fd_builder *builder, int32_t layer, int32_t q, int32_t cache_k,
                             const fd_attention_block *how);
int32_t fd_build_attn_alibi(fd_builder *builder, int32_t layer, int32_t scores);
/* `first` is added to the position. */
int32_t fd_build_attn_temperature(fd_builder *builder, int32_t layer, int32_t q, int32_t first);
int32_t fd_build_attn_softmax(fd_builder *builder, int32_t layer, int32_t scores, bool sinks);
int32_t fd_build_attn_mix(fd_builder *builder, int32_t layer, int32_t weights, int32_t cache_v);
/* Elements [first, first + n) of each head; heads of `a`, each followed by the same one of `b`, or by its only one; a
 * product with a matrix of its own for each head, which the weight, of a full name, holds one after the other. */
int32_t fd_build_slice(fd_builder *builder, int32_t layer, const char *name, int32_t x, int32_t first, int32_t n);
int32_t fd_build_concat(fd_builder *builder, int32_t layer, const char *name, int32_t a, int32_t b);
int32_t fd_build_head_matmul(fd_builder *builder, int32_t layer, const char *name, const char *weight, int32_t x,
                             int32_t n_out);
/* The same with one row of n_in a head, which the file has as one vector: a dot product a head. */
int32_t fd_build_head_dot(fd_builder *builder, int32_t layer, const char *name, const char *weight, int32_t x);
/* Over the rows of a cache: a convolution; a token shift, of one row of several in one weight;
 * gated_delta and wkv7, which model/arch/qwen3next.c and rwkv7.c describe; a state-space scan of ssm_a and ssm_d whose
 * cache has dt, x and B in each row, `read` is C, [n_group, n_state]. */
int32_t fd_build_conv(fd_builder *builder, int32_t layer, const char *name, const char *weight, int32_t cache,
                      int32_t n_tap, fd_need bias);
int32_t fd_build_token_shift(fd_builder *builder, int32_t layer, const char *name, const char *weight, int32_t cache,
                             fd_part part);
int32_t fd_build_gated_delta(fd_builder *builder, int32_t layer, const char *name, int32_t cache, int32_t q,
                             const int32_t shape[2]);
int32_t fd_build_wkv7(fd_builder *builder, int32_t layer, const char *name, int32_t cache, int32_t r);
int32_t fd_build_ssm_scan(fd_builder *builder, int32_t layer, int32_t cache, int32_t read, const int32_t shape[2],
                          bool each_state);
/* FD_OP_SILU_MUL, FD_OP_GELU_MUL, FD_OP_SWIGLU_CLAMP: the activations of a gate and up. */
bool fd_is_gated(fd_op activation);
int32_t fd_build_gated(fd_builder *builder, int32_t layer, const char *name, fd_op activation, int32_t gate,
                       int32_t up);
/* FD_OP_GELU, FD_OP_RELU_SQUARED, FD_OP_SIGMOID, FD_OP_SILU, FD_OP_SOFTPLUS, FD_OP_EXP. */
int32_t fd_build_activation(fd_builder *builder, int32_t layer, const char *name, fd_op activation, int32_t x);
int32_t fd_build_clamp(fd_builder *builder, int32_t layer, const char *name, int32_t x, float limit);
int32_t fd_build_add(fd_builder *builder, int32_t layer, const char *name, int32_t a, int32_t b);
int32_t fd_build_mul(fd_builder *builder, int32_t layer, const char *name, int32_t a, int32_t b);
int32_t fd_build_scale(fd_builder *builder, int32_t layer, const char *name, int32_t x, float factor);
/* By the one element of a weight, in F32: "layer_output_scale". */
int32_t fd_build_scale_of_file(fd_builder *builder, int32_t layer, const char *name, const char *weight, int32_t x);
int32_t fd_build_softcap(fd_builder *builder, int32_t layer, const char *name, int32_t x, float cap);
int32_t fd_build_softmax(fd_builder *builder, int32_t layer, const char *name, int32_t x);
int32_t fd_build_top_k(fd_builder *builder, int32_t layer, int32_t x);
int32_t fd_build_expert_weights(fd_builder *builder, int32_t layer, const char *name, int32_t row, int32_t ids,
                                fd_gating gating);
int32_t fd_build_expert_matmul(fd_builder *builder, int32_t layer, const char *name, const char *weight, int32_t x,
                               int32_t ids, int32_t n_out, fd_need bias);
int32_t fd_build_expert_sum(fd_builder *builder, int32_t layer, const char *name, int32_t rows, int32_t weights);

/* Says that the node's n elements, of one row or of one head, are n_head heads of n/n_head; returns the node. */
int32_t fd_build_heads(fd_builder *builder, int32_t node, int32_t n_head);
int32_t fd_build_one_head(fd_builder *builder, int32_t node); /* all of them as one */

/* Blocks that architectures share (model/arch/blocks.c, model/arch/experts.c). The first two read the block's normed
 * input and end with what is to be added to the stream. */
int32_t fd_build_attention(fd_builder *builder, int32_t layer, int32_t x, const fd_attention_block *how);
/* A gated activation (FD_OP_SILU_MUL, …) takes ffn_gate and ffn_up, or both from one ffn_up of twice the rows; another
 * (FD_OP_GELU, …) takes ffn_up alone. */
int32_t fd_build_ffn(fd_builder *builder, int32_t layer, int32_t x, fd_op activation);
int32_t fd_build_ffn_of(fd_builder *builder, int32_t layer, int32_t x, fd_op activation, int32_t n_ff);
/* With the norm before and the sum after: half of a llama layer. */
int32_t fd_build_pre_norm_attention(fd_builder *builder, int32_t layer, int32_t x, const fd_attention_block *how);
int32_t fd_build_pre_norm_ffn(fd_builder *builder, int32_t layer, int32_t x, fd_op activation);
/* x + attention + FFN, which read the same norm of x. */
int32_t fd_build_parallel_layer(fd_builder *builder, int32_t layer, int32_t x, const fd_attention_block *how,
                                fd_op activation);
/* A norm after attention and one after the FFN, before they are added; pre_norm: also before each. */
int32_t fd_build_post_norm_layer(fd_builder *builder, int32_t layer, int32_t x, const fd_attention_block *how,
                                 fd_op activation, bool pre_norm);
/* FD_READS_HYBRID: whether the layer's number of this key, "attention.head_count_kv", is other than 0. */
bool fd_layer_has(const fd_builder *builder, int32_t layer, const char *key);
/* FD_READS_LAYER_SIZES: the layer's number of this key; the hyperparameters have the largest of all layers. */
int32_t fd_layer_number(const fd_builder *builder, int32_t layer, const char *key, int32_t fallback);

/* Heads and the FFN's length in the graph's hyperparameters, which the blocks go by: of one layer, `file` where the file gives one
 * number; and those of `from`. */
void fd_read_layer_sizes(fd_builder *builder, int32_t layer, const fd_hparams *file);
void fd_set_layer_sizes(fd_builder *builder, const fd_hparams *from);
/* attention.sliding_window and its pattern: of `period` layers in a row all but the last have it, or those that the file
 * lists. */
typedef struct fd_windows {
    int32_t window, period;
    const fd_gguf_kv *pattern; /* an item a layer; NULL: by the period */
} fd_windows;
fd_windows fd_read_windows(fd_builder *builder, int32_t default_window, int32_t default_period);
bool fd_is_windowed(const fd_windows *windows, int32_t layer);
int32_t fd_window_of(const fd_windows *windows, int32_t layer); /* of a layer; 0: none */
/* The RoPE of windowed layers: its base is rope.freq_base_swa; not scaled for long contexts, it has of the scaling's keys
 * attn_factor alone. */
fd_rope fd_rope_of_windows(fd_builder *builder, double default_base, bool scaled);
/* rope.dimension_sections, M-RoPE's: whether the file has any. A text's positions are the same in the first three, which
 * must hold every pair that is rotated. */
bool fd_read_rope_sections(fd_builder *builder);
/* The last norm and the logits; the matrix is the embedding's where the file has no output.weight. */
void fd_build_logits(fd_builder *builder, int32_t x);
void fd_build_logits_normed(fd_builder *builder, int32_t x, const char *norm_weight); /* by one of another name */
void fd_build_capped_logits(fd_builder *builder, int32_t x, float cap);
void fd_build_scaled_logits(fd_builder *builder, int32_t x, float factor);
void fd_build_scaled_capped_logits(fd_builder *builder, int32_t x, float factor, float cap);

/* Latent attention (model/arch/mla.c): its sizes, from attention.*, and what is to be added to the stream. */
typedef struct fd_mla {
    int32_t q_rank, kv_rank;         /* q_rank 0: Q is not compressed */
    int32_t n_nope, n_rope, n_value; /* of each head: elements of Q and K without and with rotation, of V */
    bool absorbed;                   /* what is cached stays compressed */
    fd_attention_block how;          /* its scale and its factors of RoPE are read */
} fd_mla;
fd_mla fd_read_mla(fd_builder *builder);
int32_t fd_build_mla(fd_builder *builder, int32_t layer, int32_t x, const fd_mla *mla);

/* State-space layers (model/arch/mamba.c): their sizes, from ssm.*, and what is to be added to the stream. */
typedef struct fd_ssm {
    int32_t n_tap, n_inner, n_state, n_rank, n_group; /* n_rank: of dt in mamba, heads in mamba2 */
    fd_need extras;                                   /* the convolution's bias and mamba2's norm */
    bool normed;                                      /* mamba's dt, B and C are normed without weights */
} fd_ssm;
fd_ssm fd_read_ssm(fd_builder *builder);
fd_ssm fd_read_ssm2(fd_builder *builder);
int32_t fd_build_mamba(fd_builder *builder, int32_t layer, int32_t x, const fd_ssm *ssm);
int32_t fd_build_mamba2(fd_builder *builder, int32_t layer, int32_t x, const fd_ssm *ssm);

/* How a mixture of experts differs from Mixtral's. */
typedef struct fd_experts_block {
    fd_gating gating;
    bool sigmoid; /* the router's probabilities are a sigmoid of each logit in place of a softmax */
    fd_op activation;
    fd_need bias;      /* of the router and of the experts */
    bool shared_gated; /* what the shared experts give is times a sigmoid of ffn_gate_inp_shexp */
} fd_experts_block;
/* What the file says: expert_weights_norm, expert_gating_func. */
fd_experts_block fd_experts_of_file(const fd_builder *builder);
/* Where the file does not say the length of an expert, feed_forward_length is that of a token's experts together. */
void fd_default_expert_length(fd_builder *builder);

/* Router, chosen experts, their FFNs and the sum. `gating` FD_GATING_SOFTMAX chooses among logits, the others among
 * probabilities (ffn_moe_probs), to which exp_probs_b is added for the choice alone where the file has it. */
int32_t fd_build_experts(fd_builder *builder, int32_t layer, int32_t x, const fd_experts_block *how);
int32_t fd_build_routed_experts(fd_builder *builder, int32_t layer, int32_t router, int32_t x,
                                const fd_experts_block *how); /* whose router reads another row */
/* `experts`, what the chosen ones gave, plus what the shared ones give. */
int32_t fd_build_shared_experts(fd_builder *builder, int32_t layer, int32_t x, int32_t experts,
                                const fd_experts_block *how);
/* The same, then ffn_*_shexp, which every token uses, where h->n_ff_shared is more than 0; a plain FFN in the first
 * h->n_layer_dense layers, and where the file has no experts. */
int32_t fd_build_mixture(fd_builder *builder, int32_t layer, int32_t x, const fd_experts_block *how);

/* Every layer pre-norm: attention, then an FFN, or a mixture of experts where `experts` is given (else NULL). The model
 * is the embedding, these layers and the logits. */
int32_t fd_build_pre_norm_layers(fd_builder *builder, int32_t x, const fd_attention_block *attention, fd_op activation,
                                 const fd_experts_block *experts);
void fd_build_pre_norm_model(fd_builder *builder, const fd_attention_block *attention, fd_op activation,
                             const fd_experts_block *experts);

/* For the files of model/ that build: keeps the first failure; appends a copy of `item` to a growing array, whose space
 * doubles at powers of two (false: out of memory). */
fd_code fd_builder_set_error(fd_builder *builder, fd_code code);
bool fd_builder_append(void *array, int32_t *count, size_t size, const void *item);

/* Reads the hyperparameters (model/hparams.c). */
fd_code fd_rope_read(const fd_keys *keys, const fd_arch *arch, fd_hparams *out); /* model/rope_hparams.c */
fd_code fd_hparams_read(const fd_keys *keys, const fd_arch *arch, fd_hparams *out);

#endif
