/* firstdiff import: foreign tensors to a trace with the GGUF's names (docs/mapping.md). A plan says what becomes of
 * every tensor before anything is written; writing then goes node by node, with memory for one tensor. */
#ifndef FD_DUMPERS_IMPORT_IMPORT_H
#define FD_DUMPERS_IMPORT_IMPORT_H

#include <hdf5.h>

#include "dumpers/import/map.h"
#include "dumpers/import/source.h"
#include "model/graph.h"

typedef struct fd_import_options {
    const fd_name_map *map;
    const fd_graph *graph; /* of the model, for names and shapes; NULL: not known */
    const int32_t *tokens; /* [n_token]; NULL: those of the source */
    int32_t n_token;
    const int32_t *step_sizes; /* [n_step_size] positions of each step; NULL: found from the shapes */
    int32_t n_step_size;
    const fd_name_map_list *allow; /* patterns besides the map's; NULL */
    bool rows_kept;                /* of Q and K, as the GGUF has them: rope=halves turns nothing */
    bool leave_misfits;       /* arrays of other sizes than a built-in map's nodes are no error: no line names them */
    const char *cache_type;   /* of the K/V cache, as fd_kv_types_parse reads it; NULL: the source does not say */
    const fd_source *weights; /* arrays that are weights; NULL: those of the source that have such names or rules */
} fd_import_options;

typedef struct fd_import_match { /* one tensor for one node and step */
    size_t tensor;
    size_t rule;
    size_t choice; /* which of the rule's sources: the first is the best */
    char node[64];
    int32_t step;
    int rank; /* and shape: of the array, as the rule reads it (shape=) */
    int64_t shape[FD_ARRAY_MAX_RANK];
    int axis; /* of the array, that runs over positions; -1: the whole is one position */
} fd_import_match;

typedef struct fd_import_weight {
    size_t tensor; /* of plan->weight_source */
    size_t rule;   /* SIZE_MAX: its name is the GGUF's */
    char name[128];
} fd_import_weight;

typedef struct fd_import_step {
    int32_t pos0, n_pos;
    fd_step_kind kind;
    bool recorded; /* it has tensors */
} fd_import_step;

typedef struct fd_import_plan {
    const fd_source *source; /* borrowed, as map and graph are */
    const fd_name_map *map;
    const fd_graph *graph;
    fd_name_map_values values;
    int32_t *tokens; /* [n_token] */
    int32_t n_token;
    fd_import_step *steps; /* [n_step]; of 0 positions: a number that no step has */
    int32_t n_step;
    bool guessed_steps;       /* nothing says how many tokens each has: a prefill and single tokens */
    fd_import_match *matches; /* by node, then step: the ones that are written */
    size_t n_match, n_node;
    size_t *unmatched; /* tensors that no line names */
    size_t n_unmatched;
    size_t *allowed; /* and those that are allowed to */
    size_t n_allowed;
    size_t n_skipped;               /* named by skip, or by a rule whose node another gives */
    const char *cache_type;         /* of the options; borrowed */
    const fd_source *weight_source; /* borrowed */
    fd_import_weight *weights;
    size_t n_weight;
    size_t *unmatched_weights; /* arrays of a source of weights that no line names */
    size_t n_unmatched_weight;
} fd_import_plan;

/* Arrays of all layers [n_layer, …] (or n_layer + 1 of them, from the embeddings on) under a name without a layer's number become one a layer:
 * "layers/q" is "layers/0/q" and so on, "q" is "q.0". n_token of the run; 0: not known. *n_name: how many were such. */
fd_code fd_source_unstack(fd_source *source, const fd_graph *graph, int32_t n_token, size_t *n_name, fd_error *err);

/* Arrays under the names of transformers' modules that are what these read (hooks that keep input[0], forward_pre_hooks), which the widths of
 * products say: "model.norm" becomes "model.norm:in". *n_name: how many names; 0: they are outputs, or nothing says it. */
fd_code fd_source_read_inputs(fd_source *source, const fd_graph *graph, size_t *n_name, fd_error *err);

/* FD_ERR_INPUT, with map line, tensor, shape found and expected, for what does not fit. Unmatched tensors and
 * undecided (`ask`) lines are no error here: the caller looks at n_unmatched and map->ask. */
fd_code fd_import_make_plan(const fd_source *source, const fd_import_options *options, fd_import_plan *out,
                            fd_error *err);
void fd_import_plan_free(fd_import_plan *plan);

/* Writes the trace under a temporary name and renames it when whole; what lay at `path` stays on failure. */
fd_code fd_import_write(const fd_import_plan *plan, const char *path, fd_error *err);

/* ---- shared by plan, writer and propose/ ---- */

/* How the match's rule reads the tensor in its step: rank, shape and axis are set. FD_ERR_INPUT, with what to write into
 * the map, where no axis or more than one can be the positions. */
fd_code fd_import_place(const fd_import_plan *plan, fd_import_match *match, fd_error *err);

/* One position's tensors of a match, after the map's operations. */
typedef struct fd_import_rows {
    const fd_import_plan *plan;
    const fd_import_match *match;
    fd_source_view view; /* of a file */
    int32_t first, n;    /* positions it holds: first … first + n - 1 */
    int32_t offset;      /* index along the axis of position `first` */
    double *data, *scratch;
} fd_import_rows;
fd_code fd_import_rows_open(const fd_import_plan *plan, const fd_import_match *match, fd_import_rows *out,
                            fd_error *err);
void fd_import_rows_close(fd_import_rows *rows);
/* A trace may lack rows between others. */
bool fd_import_rows_has(const fd_import_rows *rows, int32_t pos);
/* Position pos: *data [product of shape] is valid until the next call. rank and shape [FD_ARRAY_MAX_RANK] as the map
 * makes them. */
fd_code fd_import_rows_read(fd_import_rows *rows, int32_t pos, int *rank, int64_t *shape, const double **data,
                            fd_error *err);

/* Attention's scores or weights of a layer with a window, from an engine that keeps the window's keys alone: of n_kv columns
 * the last is the step's last key, and so many keys before the first were dropped, which no row of the step sees. 0: none,
 * or nothing says so. */
int64_t fd_import_keys_before(const fd_import_plan *plan, const fd_import_match *match, int64_t n_kv);

/* Rank and shape of one position of a placed match before the map's operations (leading axes of length 1, such as the
 * batch, dropped). */
void fd_import_row_shape(const fd_import_match *match, int *rank, int64_t *shape);

/* The match's rule, as fd_name_map_apply; and logits of a padded vocabulary lose the padding. */
fd_code fd_import_apply(const fd_import_plan *plan, const fd_import_match *match, int *rank, int64_t *shape,
                        double **data, double **scratch, fd_error *err);
/* Which rows of a matrix of the file the node's weight is (rows.c); width 0: it is all of one, or graph is NULL. */
fd_fused_place fd_import_rows_of_weight(const fd_graph *graph, const char *node);
/* The plan's values, with those rows where the rule asks for them (part=rows). */
fd_name_map_values fd_import_values_for(const fd_import_plan *plan, const fd_name_map_rule *rule, const char *node);
/* Has the node, the model's logits, more columns than the vocabulary, as engines pad it? graph NULL: not known. */
bool fd_import_is_padded(const fd_graph *graph, const char *node, int64_t width);
/* Has some node so many elements a position? Not those whose last axis runs over the keys. graph NULL: yes, as nothing is known. */
bool fd_import_is_row(const fd_graph *graph, int64_t n);
/* What the trace says of itself, as attributes of its root; false: they could not be written (write_info.c). */
bool fd_import_put_info(const fd_import_plan *plan, hid_t file);
/* The weights' row hashes into the group /weights of a file that is written. */
fd_code fd_import_write_weights(const fd_import_plan *plan, hid_t file, fd_error *err);
/* What 16-bit integers hold: `as=`, or a name with bf16 in it. */
fd_array_type fd_import_words(fd_name_map_words words, const char *name, fd_array_type type);
/* What those of a match hold: as its rule says. A built-in map does not know the file: NumPy has binary16, and no bfloat16, which people
 * save as words. */
fd_name_map_words fd_import_match_words(const fd_import_plan *plan, const fd_import_match *match);
/* True for nodes whose last axis runs over the keys. */
bool fd_import_over_kv(const char *node);

#endif
