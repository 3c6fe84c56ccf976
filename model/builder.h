/* How an architecture lists its nodes. Used by model/arch/ only.
 *
 * The first failure sticks: later calls do nothing and return 0, and fd_graph_build reports it. Missing weights do not
 * stop the listing, so that all of them can be named at once. */
#ifndef FD_MODEL_BUILDER_H
#define FD_MODEL_BUILDER_H

#include "model/graph.h"

typedef struct fd_builder {
    const fd_gguf *gguf;
    fd_graph *graph;
    const fd_hparams *h;
    fd_weight_report *report;
    bool *used;          /* [fd_gguf_n_tensor] */
    fd_code code;        /* of the first failure */
    fd_error *err;
} fd_builder;

typedef enum fd_need { FD_REQUIRED, FD_OPTIONAL } fd_need;

typedef struct fd_arch {
    const char *name;              /* general.architecture */
    fd_rope_pairing rope_pairing;
    void (*list)(fd_builder *builder); /* appends the nodes in order of execution */
} fd_arch;

extern const fd_arch fd_arch_llama, fd_arch_qwen2;

/* A weight of the file by name ("blk.3.attn_q.weight"), its shape checked against n_row × n_col (1 × n for a vector).
 * Returns its index in the graph, -1 when it is absent; absent and FD_REQUIRED is noted as missing. */
int32_t fd_build_weight(fd_builder *builder, const char *name, int64_t n_row, int64_t n_col, fd_need need);

/* Nodes; each returns its id. `layer` -1: outside the layers; the name is then not prefixed with "blk.N.". Weight names
 * get the same prefix and ".weight" / ".bias". */
int32_t fd_build_embed(fd_builder *builder, const char *name);
int32_t fd_build_rms_norm(fd_builder *builder, int32_t layer, const char *name, int32_t x);
int32_t fd_build_matmul(fd_builder *builder, int32_t layer, const char *name, const char *weight, int32_t x,
                        int32_t n_out, fd_need bias);
int32_t fd_build_rope(fd_builder *builder, int32_t layer, const char *name, int32_t x, int32_t freqs);
int32_t fd_build_kv_write(fd_builder *builder, int32_t layer, const char *name, int32_t x);
int32_t fd_build_attn_scores(fd_builder *builder, int32_t layer, int32_t q, int32_t cache_k);
int32_t fd_build_attn_softmax(fd_builder *builder, int32_t layer, int32_t scores);
int32_t fd_build_attn_mix(fd_builder *builder, int32_t layer, int32_t weights, int32_t cache_v);
int32_t fd_build_silu_mul(fd_builder *builder, int32_t layer, const char *name, int32_t gate, int32_t up);
int32_t fd_build_add(fd_builder *builder, int32_t layer, const char *name, int32_t a, int32_t b);

/* Says that the node's n elements are n_head heads of n/n_head; returns the node. */
int32_t fd_build_heads(fd_builder *builder, int32_t node, int32_t n_head);

/* Blocks that architectures share (model/arch/blocks.c). */
int32_t fd_build_self_attention(fd_builder *builder, int32_t layer, int32_t x, fd_need qkv_bias, int32_t rope_freqs);
int32_t fd_build_swiglu(fd_builder *builder, int32_t layer, int32_t x);
void fd_build_logits(fd_builder *builder, int32_t x);

/* Reads the hyperparameters (model/hparams.c). */
fd_code fd_hparams_read(const fd_gguf *gguf, const fd_arch *arch, fd_hparams *out, fd_error *err);

/* The row named `name`, NULL for an unknown one; `known` (may be NULL) receives all names, separated by ", ". */
const fd_arch *fd_arch_find(fd_string name, char *known, size_t known_size);

#endif
