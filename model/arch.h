/* An architecture: what it is called, what it reads, and the function that lists its nodes. One of model/arch/ each, looked up
 * by name in the table that archs.def makes. */
#ifndef FD_MODEL_ARCH_H
#define FD_MODEL_ARCH_H

#include "model/graph.h"

struct fd_builder;

/* Groups of keys that some architectures read. What an architecture does not read is refused where it could change the
 * arithmetic (model/keys.h). */
enum fd_reads {
    FD_READS_EXPERTS = 1,             /* expert_count, _used_count, _feed_forward_length, _gating_func, _group_* */
    FD_READS_EXPERT_SCALE = 2,        /* expert_weights_scale */
    FD_READS_SOFTCAPS = 4,            /* attn_logit_softcapping, final_logit_softcapping */
    FD_READS_SCALES = 8,              /* embedding_scale, residual_scale, logit_scale */
    FD_READS_EXPERT_NORM = 16,        /* expert_weights_norm */
    FD_READS_SHARED_EXPERTS = 32,     /* expert_shared_count, expert_shared_feed_forward_length */
    FD_READS_DENSE_LAYERS = 64,       /* leading_dense_block_count */
    FD_READS_CLAMP = 128,             /* attention.clamp_kqv */
    FD_READS_ALIBI = 256,             /* attention.max_alibi_bias */
    FD_READS_LOGIT_SCALE = 512,       /* logit_scale alone */
    FD_READS_PARALLEL = 1024,         /* use_parallel_residual */
    FD_READS_TEMPERATURE = 2048,      /* attention.temperature_scale, attention.temperature_length */
    FD_READS_NO_ATTENTION = 8192,     /* neither heads nor an FFN are required, nothing is rotated */
    FD_READS_HYBRID = 16384,          /* attention.head_count_kv and feed_forward_length are 0 in layers without them */
    FD_READS_LAYER_SIZES = 32768,     /* attention.head_count_kv and feed_forward_length by layer: fd_layer_number */
    FD_READS_ATTENTION_SCALE = 65536, /* attention.scale */
    FD_READS_ROPE_SWITCH = 131072,    /* rope.scaling.finetuned: false where nothing is rotated */
    FD_READS_YARN = 262144,           /* rope.scaling.yarn_beta_fast, _beta_slow */
    FD_READS_YARN_EXT = 1048576,      /* both, and rope.scaling.yarn_ext_factor */
    FD_READS_YARN_LOG = 524288,       /* rope.scaling.yarn_log_multiplier; _TENTH: files have a tenth of it */
    FD_READS_YARN_LOG_TENTH = 2097152,
    FD_READS_VALUE_LENGTH = 4096, /* attention.value_length other than key_length: the architecture reads it itself */
};

typedef struct fd_arch {
    const char *name; /* general.architecture */
    fd_rope_pairing rope_pairing;
    void (*list)(struct fd_builder *builder); /* appends the nodes in order of execution */
    int reads;                                /* fd_reads */
    fd_norm norm;
    /* What a small file of it has, for make-model: keys beyond those of every architecture, "NAME=VALUE …", and
     * optional weights as for fd_graph_weights. NULL: none. */
    const char *made_keys, *made_with;
    bool made_tied;      /* its files have no output.weight */
    bool made_untied;    /* they must have one: llama.cpp loads no other */
    bool kv_each;        /* each head has K and V of its own; other head_count_kv are refused, as llama.cpp does */
    bool rope_rows_kept; /* fd_hparams.rope_rows_kept */
    bool rope_whole;     /* heads are rotated whole: another rope.dimension_count is refused, as llama.cpp does */
} fd_arch;
/* For made_with: the biases of an architecture that has them everywhere. */
#define FD_EVERY_BIAS                                                                                                  \
    "attn_norm.bias attn_q.bias attn_k.bias attn_v.bias attn_qkv.bias attn_output.bias ffn_norm.bias ffn_gate.bias "   \
    "ffn_up.bias ffn_down.bias output_norm.bias token_embd_norm.bias"
#define FD_NORM_BIASES "attn_norm.bias ffn_norm.bias output_norm.bias"

#define FD_ARCH(name) extern const fd_arch fd_arch_##name;
#include "model/arch/archs.def"
#undef FD_ARCH

/* The row named `name`, NULL for an unknown one; `known` (may be NULL) receives all names, separated by ", ". */
const fd_arch *fd_arch_find(fd_string name, char *known, size_t known_size);

#endif
