/* One pass over a plan: where its tensors are, and the walk that launches its items. */
#ifndef FD_ENGINE_PASS_H
#define FD_ENGINE_PASS_H

#include "engine/internal.h"
#include "kernels/elementwise/rope.h"
#include "kernels/matmul/matmul.h"

typedef struct fd_pass {
    fd_engine *engine;
    const fd_plan *plan;
    const fd_slots *slots;
    float *const *tensors; /* [n_node]: instead of slots, and every tensor is kept; NULL: as the plan says */
    fd_launch_context ctx;
    const int32_t *tokens; /* host, [n_tok]; for overrides */
    int32_t pos0, n_tok;   /* pos0: for overrides and observers; kernels read positions from inputs */
    int32_t n_kv;          /* room of over_kv rows: pos0 + n_tok; n_ctx in a step, whatever the position */
    int32_t n_kv_end;      /* n_kv of the prompt's last pass: room is made once for all of them */
    int32_t sequence;      /* whose caches a captured pass has in its kernels; 0 where the device knows it */
    const int32_t *inputs; /* device: FD_INPUT_… */
    const int32_t *positions, *sequences; /* device, [n_tok]: each row is of another sequence; NULL: all are of one */
    fd_rows tail;
    bool short_context;        /* every position of the pass is below FD_ATTENTION_SHORT_CONTEXT */
    bool kernels_only;         /* kernels alone read what nodes leave */
    bool uploads;              /* a step's token and position come from inputs_host */
    bool samples;              /* the next tokens are sampled at the end */
    void *q8_rows;             /* q8act, several rows: fd_q8_scratch_bytes for a product's activations */
    int32_t q8_node, q8_n_tok; /* whose rows lie there; n_tok 0: none's */
    void *halves;              /* fast, a token of each of many sequences: fd_few_f16_scratch_bytes; else NULL */
    fd_sync_observe *observe;  /* NULL: no one looks */
    uint32_t n_gather, sent;   /* launched so far (engine/ranks.h); the one whose elements are sent before it */
    bool is_captured;          /* into a CUDA graph: nothing runs yet */
} fd_pass;

/* walk.c: all items in order; shows nodes to the observer. */
fd_code fd_pass_run(fd_pass *pass, fd_error *err);

/* ---- pass.c ---- */
fd_rows fd_pass_rows(const fd_pass *pass, int32_t node);
int64_t fd_pass_row_bytes(const fd_pass *pass, const fd_node *node);
/* Where the node's rows are in binary32, NULL where they are not kept; a KV_WRITE's cache of the selected sequence from
 * position 0. */
float *fd_pass_tensor(const fd_pass *pass, int32_t node);
/* And in binary16; NULL likewise. */
uint16_t *fd_pass_half(const fd_pass *pass, int32_t node);
/* Where reader `node` finds row 0 of `input`, when it computes the last row alone too. */
const float *fd_pass_input(const fd_pass *pass, int32_t node, int32_t input);
/* The tensor inside a kernel, in a step that keeps every tensor; else NULL. */
float *fd_pass_inner(const fd_pass *pass, int32_t node);

/* What a node's kernel is given: its matrix, a vector by its weight index (NULL for -1), a ROPE's heads and tables (no
 * rotation for -1). */
const fd_node *fd_pass_node(const fd_pass *pass, int32_t node);
const fd_device_matrix *fd_pass_matrix(const fd_pass *pass, const fd_node *node);
const float *fd_pass_vector(const fd_pass *pass, int32_t weight);
fd_rope_shape fd_pass_rope(const fd_pass *pass, int32_t node);

/* fast.c: room for what an observer wants and the pass keeps nowhere in binary32. */
fd_code fd_fast_reserve_inner(const fd_pass *pass, fd_error *err);

/* ---- launchers: the item's kernels, results in the pass's memory ---- */
typedef fd_code fd_launcher(fd_pass *pass, const fd_item *item, fd_error *err);

/* launch_op.c */
fd_launcher fd_run_op;
/* A node by its op's kernel, or on the host where a fault replaces it. */
fd_code fd_run_node(fd_pass *pass, int32_t node, bool int8, fd_error *err);
/* launch_fused.c */
fd_launcher fd_run_matvec, fd_run_attn_decode, fd_run_matmuls, fd_run_add_norm, fd_run_rope_kv_write, fd_run_gather_add;
/* launch_f16.c: these show an observer what it wants of their insides */
fd_launcher fd_run_attn_decode_f16, fd_run_attention_f16, fd_run_gemm_f16, fd_run_gemm_add_f16;
/* Rounds a result in binary32 where a product reads it in binary16. */
fd_code fd_round_to_half(fd_pass *pass, int32_t node, fd_error *err);
/* launch_products.c: products of one input and type, the first of which is node `id`. */
fd_code fd_launch_products(fd_pass *pass, int32_t id, bool int8, const fd_matmul *in, fd_error *err);
/* int8.c: products of node `input`'s rows, whose int8 blocks stay in the pass for the next ones of the same input. */
fd_code fd_launch_int8_products(fd_pass *pass, int32_t input, const fd_matmul *in, fd_error *err);
/* override.c */
fd_code fd_run_override(const fd_pass *pass, int32_t node, fd_error *err);

#endif
