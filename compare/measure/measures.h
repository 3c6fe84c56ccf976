/* How far apart two runs are in the numbers that people know: NMSE and cosine of a tensor, KL divergence and best tokens
 * of the logits, entropy of attention; and values side by side. They describe; z (attribute/attribution.h) decides. */
#ifndef FD_COMPARE_MEASURE_MEASURES_H
#define FD_COMPARE_MEASURE_MEASURES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { FD_MEASURE_VALUES = 8, FD_MEASURE_BINS = 26, FD_MEASURE_TOP = 5, FD_MEASURE_MAP_POS = 64 };

/* Elements around a node's worst one, by z. */
typedef struct fd_measured_values {
    int32_t pos, n; /* n 0: none was judged */
    int64_t first,
        worst; /* element numbers in the position's row, without padding; values are of first, first + 1, … */
    double reference[FD_MEASURE_VALUES], candidate[FD_MEASURE_VALUES]; /* reference NaN: not recorded */
    double replayed[FD_MEASURE_VALUES], tau[FD_MEASURE_VALUES];        /* of the side that was judged */
} fd_measured_values;

typedef struct fd_node_measure {
    int32_t n_pos;                                  /* positions recorded on both sides; 0: NMSE and cosine are NaN */
    double error2, reference2, candidate2, product; /* Σ(c − r)², Σr², Σc², Σc·r over them */
    double z;
    fd_measured_values values;
    /* Elements by |c − ŷ| in units in the last place of ŷ as binary32: 0, then up to 1, 2, 4, …; and by τ, likewise. */
    uint32_t ulp[FD_MEASURE_BINS], tau_ulp[FD_MEASURE_BINS];
    float *by_pos_head; /* z [n_pos, n_head]; NULL: within everywhere, or the node has no heads. Owned */
} fd_node_measure;

typedef struct fd_token_share {
    int32_t token;
    double probability;
} fd_token_share;

typedef struct fd_logits_measure {         /* of one position */
    bool known;                            /* both sides recorded it, without NaN */
    double kl;                             /* Σ p log(p / q) in nats, p the reference's, q the candidate's */
    double candidate_share;                /* the candidate's probability of the reference's best token */
    int32_t candidate_rank;                /* and that token's rank there, from 1 */
    fd_token_share top[2][FD_MEASURE_TOP]; /* reference's, candidate's, best first; token -1: none */
} fd_logits_measure;

/* Attention weights of one layer, [2 sides, n_head, n_pos, n_pos] from 0 to 255 of 255; above the diagonal 0. */
typedef struct fd_attention_maps {
    int32_t layer, n_head, n_pos; /* layer -1: none was recorded; at most FD_MEASURE_MAP_POS positions */
    bool has_reference, beyond;   /* beyond: a node of this layer, up to the weights, is */
    uint8_t *weights;             /* owned */
} fd_attention_maps;

typedef struct fd_position_health { /* as fd_trace_health has it */
    bool known;
    int32_t n_kv, loop_length;
    float logit_range, top1_probability;
} fd_position_health;

typedef struct fd_token_text {
    int32_t token;
    char text[40]; /* UTF-8; control characters and stray bytes as in C: "\\n", "\\xe2" */
} fd_token_text;

typedef struct fd_measures {
    int32_t n_node, n_pos, n_layer, n_head;
    fd_node_measure *nodes;    /* [n_node] owned */
    float *relative;           /* √(Σ(c − r)² / Σr²) [n_node, n_pos], −1: not known; owned */
    fd_logits_measure *logits; /* [n_pos] owned */
    double *entropy;           /* mean over positions, nats, [2 sides, n_layer, n_head]; owned */
    int32_t *n_entropy;        /* positions in that mean [2 sides, n_layer]; owned */
    fd_attention_maps maps;    /* of the first layer in which a node is beyond, else of the first */
    int32_t *tokens;           /* [n_pos] owned; NULL: not recorded */
    fd_token_text *texts;      /* [n_text] by id: of those tokens and of the best ones; owned */
    int32_t n_text;
    fd_position_health *health; /* [2 sides, n_pos] owned; NULL: not taken */
} fd_measures;

/* What the logits' positions say together. */
typedef struct fd_logits_summary {
    int32_t n_pos, n_same_best; /* n_pos 0: nothing is known */
    double mean_kl, largest_kl; /* nats */
    int32_t largest_kl_pos;
    double rms_share;                        /* of the change of the probability of the reference's best token */
    double reference_share, candidate_share; /* mean probability of that token */
} fd_logits_summary;

double fd_measure_nmse(const fd_node_measure *node);   /* Σ(c − r)² / Σr²; NaN: not known */
double fd_measure_cosine(const fd_node_measure *node); /* NaN: not known */
fd_logits_summary fd_measure_logits(const fd_measures *measures);

/* The text of a token that occurs in the measures; "" not known. */
const char *fd_measure_token_text(const fd_measures *measures, int32_t token);

void fd_measures_free(fd_measures *measures); /* frees what it owns, not the struct */

#endif
