/* Shared by propose.c (names), layouts.c, score.c and turned.c (values), rule.c (what a name's values say), layers.c (whether the
 * layers say the same), exchanged.c (names with each other's values), caches.c (names of what is written to a cache, and of the cache), before_bias.c, visit_rows.c, orders.c (Q and K in different orders), by_name.c, by_size.c and by_length.c (what no values decide) and lines.c (the map that follows). */
#ifndef FD_DUMPERS_IMPORT_PROPOSE_INTERNAL_H
#define FD_DUMPERS_IMPORT_PROPOSE_INTERNAL_H

#include "dumpers/import/propose/propose.h"

enum {
    FD_PROPOSE_POSITIONS = 6,
    FD_PROPOSE_PARTS = 2 * FD_PROPOSE_POSITIONS - 1,
    FD_PROPOSE_KEEP = 4,
    FD_PROPOSE_MAX_OPS = 96
};

typedef struct fd_candidate {
    int32_t node;                 /* of the reference; -1: none */
    double away;                  /* 1 - |cosine|; 0: the same direction */
    double factor;                /* reference ≈ factor · candidate */
    char ops[FD_PROPOSE_MAX_OPS]; /* "axis=-2 heads=4 interleave" */
} fd_candidate;

/* The nearest nodes, best first, each node once; node -1: no more. By all sampled positions, and by parts of them: where a
 * bug begins in decode, or at a chunk, the rows before it still say what the tensor is. */
typedef struct fd_ranking {
    fd_candidate best[FD_PROPOSE_PARTS][FD_PROPOSE_KEEP];
    fd_candidate turned; /* what RoPE gives, of all positions' heads the same lengths; node -1: nothing */
} fd_ranking;

/* Part 0 of n sampled positions is all of them; then come the first n - 1, the last n - 1, the first n - 2, …
 * False: n positions have no such part. */
static inline bool fd_propose_part(int part, int n, int *from, int *to) {
    const int left_out = (part + 1) / 2;
    *from = part > 0 && part % 2 == 0 ? left_out : 0;
    *to = part % 2 == 1 ? n - left_out : n;
    return *from < *to;
}

typedef struct fd_scorer fd_scorer;
/* Reads the reference's rows at the sampled positions. */
fd_code fd_scorer_new(const fd_import_plan *plan, const fd_trace *ref, fd_scorer **out, fd_error *err);
void fd_scorer_free(fd_scorer *scorer);
/* How many positions are sampled, and the k-th of them. */
int fd_scorer_positions(const fd_scorer *scorer);
int32_t fd_scorer_position(const fd_scorer *scorer, int k);
/* The nearest nodes of the tensor; `slice` "" or an operation that takes a part of the tensor. `tensors` [n]: its
 * occurrences over the steps. */
fd_code fd_scorer_rank(const fd_scorer *scorer, const size_t *tensors, size_t n, const char *slice, fd_ranking *out,
                       fd_error *err);

/* Whole numbers, and no 16-bit words that may be halves. */
static inline bool fd_propose_is_ids(const fd_import_plan *plan, size_t tensor) {
    const fd_array_type type = fd_source_at(plan->source, tensor)->type;
    return !fd_array_is_float(type) && type != FD_ARRAY_U16;
}

/* A name fits when the angle to its node is below acos(1 - FD_PROPOSE_FAR), and is clear when the next node is
 * FD_PROPOSE_CLEAR times as far away. Where only a part of the positions decides, it has to be nearer and clearer: there are
 * many parts, and a tie among all positions must not be broken by the luck of some. */
#define FD_PROPOSE_FAR        0.1
#define FD_PROPOSE_CLEAR      10
#define FD_PROPOSE_PART_FAR   1e-3
#define FD_PROPOSE_PART_CLEAR 100

typedef struct fd_proposed { /* one name (over all steps), or a part of one */
    size_t *tensors;
    size_t n;
    char name[256]; /* with #occurrence where it repeats */
    char slice[24]; /* "" or "slice=0:64" */
    fd_candidate best[FD_PROPOSE_KEEP];
    bool matched, clear;
    int32_t part_first, part_last; /* clear by sampled positions between these alone; -1: by all */
    bool written;
    bool differs;    /* its values are clear, but fit another rule than those of most other layers: no longer `clear` */
    char other[300]; /* "NODE OPERATION…": clear values, but what the layers say leaves this rule open, too; "" */
    bool
        exchanged; /* it is the node that its name says, whose sibling's values it has (of node `values_of`) and the other way about */
    int32_t values_of;
    fd_candidate turned_as; /* node -1: its heads have no node's lengths */
    bool turned;            /* its heads have the lengths of node best[0], and other directions */
    bool left_out;          /* its values are another name's too, and no name is the node `other`, which reads them */
    size_t n_same, n_layer; /* then: of n_layer layers n_same say the same */
    const char *on_the_way_to,
        *on_the_way; /* it is no node, but has what an op of that node computes on its way; which, in words */
} fd_proposed;

typedef struct fd_proposer {
    const fd_source *source;
    const fd_trace *ref;
    const fd_name_map *own; /* NULL: ref is the right run */
    fd_import_plan plan;
    fd_proposed *items;
    size_t n, room;
    bool *known;        /* nodes that the options' map names */
    bool *known_turned; /* those that it takes from a checkpoint's order of RoPE's pairs */
    bool *covered;      /* [n_layer] the layers that most names are of; all false: of all */
    int32_t n_covered;  /* how many they are */
    FILE *out;
    fd_proposal *total;
    fd_error *err;
} fd_proposer;

/* What would be written for a name, by its values alone. */
typedef struct fd_proposed_rule {
    char source[300], node[96], ops[FD_PROPOSE_MAX_OPS + 40];
    bool factor_known; /* false: ops has no scale= for item.best[0].factor */
} fd_proposed_rule;

/* With the name's number-th number (from 0) as {layer}, or {layer+1} when it is one more than the node's layer; as it is
 * with number -1, or when it is neither. */
fd_proposed_rule fd_propose_rule(const fd_proposer *p, const fd_proposed *item, int number);
/* "NODE OPERATION…" of the rule, with the scale= that values alone would say for the item. */
void fd_propose_rule_text(const fd_proposed_rule *rule, const fd_proposed *item, const char *node, char *out,
                          size_t size);
bool fd_propose_has_layer(const fd_proposed_rule *rule);
/* Names of a residual stream are near to one another whatever they are: the third digit of their directions is the first that
 * says something. */
double fd_propose_agreement(const fd_proposed *item);
/* The name with its number-th number as {layer}, and that number; -1 when it is no layer of the model. `after`: as {layer+1}, and
 * the layer that ends there. */
int32_t fd_propose_layer_of(const fd_proposer *p, const char *name, int number, bool after, char *pattern, size_t size);
/* Sets p->covered and n_covered, by the names alone. */
fd_code fd_propose_cover(fd_proposer *p);
/* Has every layer a name that fits the pattern, or every one that is recorded? */
bool fd_propose_covers(const fd_proposer *p, const char *pattern);
/* Of operations, the words that say how the array is read. */
void fd_propose_reading(const char *ops, char *out, size_t size);
bool fd_propose_same_rule(const fd_proposed_rule *a, const fd_proposed_rule *b);

/* Names of the last rows, a call each, of which the first is another position's are none: which rows they are is not known. */
fd_code fd_propose_drop_other_rows(fd_proposer *p);

/* Shows every row of the name, as its rule reads it, beside the row of its node best[0]. */
typedef void (*fd_propose_row_fn)(void *user, const double *x, const float *ref, int64_t n);
fd_code fd_propose_visit_rows(const fd_proposer *p, const fd_proposed *item, fd_propose_row_fn visit_row, void *user);

/* Names of products before their bias, where another name is the node, and of activations before they are multiplied are no nodes:
 * `on_the_way_to`, or unmatched where the graph adds no bias. */
void fd_propose_drop_on_the_way(fd_proposer *p);

/* Of two names that have the values of what a cache is written, and differ, one is the cache. */
void fd_propose_name_caches(fd_proposer *p);

/* Names of no clear direction, whose heads have the lengths of what RoPE gives: that node, if no other name is. */
void fd_propose_take_turned(fd_proposer *p);

/* Q or K alone in the other order of RoPE's pairs is no layout. */
void fd_propose_keep_orders(fd_proposer *p);

/* Gives names that have each other's values the nodes that they say: `exchanged`. */
void fd_propose_undo_exchanges(fd_proposer *p);

/* A bug of one layer must not become that layer's rule. Of names that differ in the layer alone, those whose values fit
 * another rule than most of the others' are marked as `differs`; without most, all get an `other`. */
void fd_propose_compare_layers(fd_proposer *p);
/* For a name that `differs`: a comment that asks whether that is the engine's own layout or its bug. By the `rule` of the
 * other n_layer layers, `of` among them, it is `node`. */
void fd_propose_ask_layer(fd_proposer *p, const fd_proposed *item, const fd_proposed_rule *rule, const fd_proposed *of,
                          int32_t node, size_t n_layer);

/* Of names numbered from the embeddings on, as transformers' hidden_states, the last may be what comes behind the last norm, which no
 * other name is. Asks, instead of taking it by `rule` for node `last`, unless its values are nearest to that layer's; false: no. */
bool fd_propose_ask_last(fd_proposer *p, const fd_proposed_rule *rule, fd_proposed *item, int32_t last);

/* Is one of the name's numbers a layer of the model? */
bool fd_propose_name_has_layer(const fd_proposer *p, const char *name);

/* Logits or what they were before a softcap or a factor: what a ranked name says of the two, where its values do not, or say otherwise. */
void fd_propose_logits(const fd_proposer *p, fd_proposed *item);
/* All names are ranked. Of one that is what the head gave, and may be the logits of an engine that leaves the op out, both are said. */
void fd_propose_doubt_logits(fd_proposer *p);

/* Is it clear that the name, not a part of it, has the values of the node called `node`? */
bool fd_propose_has_values_of(const fd_proposer *p, const fd_proposed *item, const char *node);

/* Do the reference's values follow from the name's, taken for that node as they are? */
bool fd_propose_is_taken_for(const fd_proposer *p, const fd_proposed *item, const char *node);
/* Is some name that node, by its values or by what was written? `but` is not asked; NULL. */
bool fd_propose_is_named(const fd_proposer *p, int32_t node, const fd_proposed *but);
/* Is another name less than half as far from the same node? */
bool fd_propose_is_further(const fd_proposer *p, const fd_proposed *item);
/* " as=bf16", " as=f16" or "": what 16-bit words hold. What they are in a name that values decide, else bfloat16, as NumPy has binary16. */
const char *fd_propose_words(const fd_proposer *p, const fd_proposed *item);
/* May the tensor be the node, by its number of elements? */
bool fd_propose_size_fits(const fd_proposer *p, const fd_source_tensor *t, const fd_trace_node *node);

/* For names that are a node's own and that no values decide: a rule each, which says that it goes by the name. */
void fd_propose_by_name(fd_proposer *p);
/* For "embd" and "final_norm", names of no layer: what goes into the first and the norm behind the last, where their values decide
 * nothing, or are nearer to another name's. */
void fd_propose_ends(fd_proposer *p);
/* For names of the stream between the layers, one more than there are layers, whose values decide nothing: what goes into the first is the
 * embeddings. */
void fd_propose_streams(fd_proposer *p);
/* For names of all layers that nothing was written for: one line each, with the nodes of their size that no name is. */
void fd_propose_ask_by_size(fd_proposer *p);

/* How far the lengths of the names that fit the pattern are from those of the node that ends in `tail`, in every layer: the mean of the
 * logarithms. INFINITY: not known. */
double fd_propose_length_off(const fd_proposer *p, const char *pattern, const char *tail);

/* Writes the map: a rule for every clear name, `ask` for the others that fit some node, comments for the rest. `items`
 * are in the order of their nodes. */
void fd_propose_lines(fd_proposer *p, const fd_import_options *options);

#endif
