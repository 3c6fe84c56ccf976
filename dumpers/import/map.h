/* Map files (docs/mapping.md): which foreign tensor is which node, and what to do with its elements. */
#ifndef FD_DUMPERS_IMPORT_MAP_H
#define FD_DUMPERS_IMPORT_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum fd_name_map_op_kind {
    FD_NAME_MAP_RESHAPE,
    FD_NAME_MAP_PERMUTE,
    FD_NAME_MAP_TRANSPOSE,
    FD_NAME_MAP_HEADS,
    FD_NAME_MAP_SLICE,
    FD_NAME_MAP_PART,
    FD_NAME_MAP_SCALE,
    FD_NAME_MAP_INTERLEAVE,
    FD_NAME_MAP_DEINTERLEAVE,
    FD_NAME_MAP_ROPE_HALVES,
    FD_NAME_MAP_OPERATION_COUNT
} fd_name_map_op_kind;

/* What a rule may ask of the model; FD_NAME_MAP_NUMBER stands for none of them. */
typedef enum fd_name_map_variable {
    FD_NAME_MAP_NUMBER,
    FD_NAME_MAP_HEAD_DIM,
    FD_NAME_MAP_N_HEAD,
    FD_NAME_MAP_N_HEAD_KV,
    FD_NAME_MAP_N_EMBD,
    FD_NAME_MAP_N_FF,
    FD_NAME_MAP_N_EXPERT_USED, /* of each token */
    FD_NAME_MAP_N_TOK,         /* the step's tokens; in shape= alone */
    FD_NAME_MAP_ATTN_SCALE,    /* of the scores; in scale= alone */
    FD_NAME_MAP_VARIABLE_COUNT
} fd_name_map_variable;

enum { FD_NAME_MAP_MAX_ARGS = 8, FD_NAME_MAP_MAX_OPS = 8, FD_NAME_MAP_MAX_ELEMENTS = INT32_MAX };

typedef struct fd_name_map_op {
    fd_name_map_op_kind kind;
    int64_t arg[FD_NAME_MAP_MAX_ARGS]; /* reshape, permute: the list; slice: from, to; part: index of fd_fused_parts */
    int n_arg;
    fd_name_map_variable variable; /* heads, scale: takes the place of the number; slice: of `to` */
    double number;                 /* scale: X, or N of 1/N … */
    bool root, inverse;            /* scale: sqrt(N), 1/… */
} fd_name_map_op;

typedef enum fd_name_map_rows { FD_NAME_MAP_ROWS_ALL, FD_NAME_MAP_ROWS_LAST, FD_NAME_MAP_ROWS_CACHE } fd_name_map_rows;
typedef enum fd_name_map_words {
    FD_NAME_MAP_WORDS_AS_FILE,
    FD_NAME_MAP_WORDS_F16,
    FD_NAME_MAP_WORDS_BF16
} fd_name_map_words;

typedef struct fd_name_map_dim { /* of shape= */
    fd_name_map_variable variable;
    int64_t number; /* without a variable; -1: what is left over */
} fd_name_map_dim;

typedef struct fd_name_map_source {
    char *pattern;
    int32_t occurrence; /* 0: the name must occur once; -1: the last */
} fd_name_map_source;

typedef struct fd_name_map_rule {
    int line;
    fd_name_map_source *sources; /* in order of preference */
    size_t n_source;
    char
        *node; /* with {layer}, {rank} or {last}, for which a number stands, or {name}, the rest of the tensor's name */
    fd_name_map_dim shape[FD_NAME_MAP_MAX_ARGS]; /* of the array, for dumps without dimensions */
    int n_shape;                                 /* 0: the file's */
    bool has_axis;
    int axis; /* from the end: -2; 0: the first after those of length 1 */
    fd_name_map_rows rows;
    fd_name_map_words words; /* what 16-bit integers hold */
    bool otherwise;          /* else: for tensors alone that no rule above takes */
    bool unscaled;           /* factor=no: for expert weights that the model does not scale */
    bool unbiased;           /* bias=no: for nodes that are the product alone, with no bias to come */
    char *archs; /* arch=: for models of these alone, "gemma2,gemma3", or of all others, "!gemma2"; NULL: all */
    fd_name_map_op ops[FD_NAME_MAP_MAX_OPS];
    int n_op;
} fd_name_map_rule;

/* The names that an undecided line is about: no rule below it takes them. */
typedef struct fd_name_map_asked {
    int line;
    char *pattern;
} fd_name_map_asked;

typedef struct fd_name_map_list {
    char **items;
    size_t n;
} fd_name_map_list;

typedef struct fd_name_map {
    char *name; /* file or built-in map, for messages */
    bool
        builtin; /* of all architectures, or found (FD_FOUND_MAP): lines may name nodes that a model, or a layer of it, has not */
    fd_name_map_rule *rules;
    size_t n_rule;
    fd_name_map_list skip, allow, absent;
    fd_name_map_list absent_with; /* [absent.n] only where a tensor has such a name; "": always */
    fd_name_map_list ask;         /* "FILE:LINE: text" of each undecided line */
    fd_name_map_asked *asked;     /* [ask.n] */
} fd_name_map;

/* Text [size], no NUL needed. FD_ERR_INPUT says FILE:LINE and what is wrong. */
fd_code fd_name_map_parse(const char *name, const char *text, size_t size, fd_name_map **out, fd_error *err);
void fd_name_map_free(fd_name_map *map);
/* A built-in map's text; NULL when there is none of that name. */
/* How the text of a map begins that a command found: it may hold all rules of a built-in one that values completed. */
#define FD_FOUND_MAP "# Found by firstdiff.\n"

const char *fd_name_map_builtin(const char *name, size_t *size);
/* The built-in map of that name, else the file. */
fd_code fd_name_map_open(const char *name, fd_name_map **out, fd_error *err);

typedef struct fd_name_map_capture {
    int32_t layer, rank; /* -1: the pattern has none */
    int32_t last;        /* the last layer, for {last}; set by the caller */
    const char *name;    /* in the name: what {name} stands for; NULL: the pattern has none */
} fd_name_map_capture;
/* Does a line above the rule say that the name is undecided? */
bool fd_name_map_is_asked(const fd_name_map *map, const fd_name_map_rule *rule, const char *name);

/* The whole name against * ? {layer} {layer+1} {rank} {name}. */
bool fd_name_map_matches(const char *pattern, const char *name, fd_name_map_capture *capture);
/* False where the rule's arch= does not name the architecture; NULL: not known, and no arch= names it. */
bool fd_name_map_is_for(const fd_name_map_rule *rule, const char *arch);
bool fd_name_map_listed(const fd_name_map_list *list, const char *name); /* any pattern matches */
/* The node's name with numbers in place of {layer}, {rank} and {last}; false when it does not fit `size`. */
bool fd_name_map_node(const fd_name_map_rule *rule, const fd_name_map_capture *capture, char *out, size_t size);

typedef struct fd_fused_place {
    int64_t first, n, width; /* of the last axis: where the part begins, its elements, and those of all parts */
} fd_fused_place;

typedef struct fd_name_map_values {
    int64_t of[FD_NAME_MAP_VARIABLE_COUNT]; /* 0: not known */
    double attn_scale;                      /* 0: not known */
    int rope_neighbours; /* 1: converters put rows of Q and K from halves into pairs (2i, 2i+1); 0: no; -1: not known */
    fd_fused_place
        rows; /* which rows of a matrix of the file the node's weight is, for part=rows; width 0: not known */
} fd_name_map_values;

/* What stands in one array with others: q, k and v, or gate and up, or whatever nodes the file has one matrix for. The counts say how
 * often the width of Q, of K or V, and of the FFN stand before it. */
typedef struct fd_fused_part {
    const char *name;
    int8_t q, kv, ff;
    char is; /* what it is itself: 'q', 'k' (K or V), 'f', or 'r': its weight's rows say */
} fd_fused_part;
enum { FD_FUSED_PART_COUNT = 6 };
extern const fd_fused_part fd_fused_parts[FD_FUSED_PART_COUNT];
/* False where the model's sizes are not known. */
bool fd_fused_part_place(const fd_fused_part *part, const fd_name_map_values *values, fd_fused_place *out);
/* The rule's `part=`; NULL: it has none. */
const fd_fused_part *fd_name_map_part(const fd_name_map_rule *rule);

/* Applies the rule's operations to one position's tensor. `rank` and `shape` (at most FD_ARRAY_MAX_RANK, array.h)
 * become the result's. `data` and `scratch` point to buffers of as many doubles as the tensor has before, and are
 * exchanged at will: the result is *data. data NULL: shapes only. FD_ERR_INPUT names map, line, operation, shape. */
fd_code fd_name_map_apply(const fd_name_map *map, const fd_name_map_rule *rule, const fd_name_map_values *values,
                          int *rank, int64_t *shape, double **data, double **scratch, fd_error *err);
/* The array's dimensions by shape=, in a step of n_tok tokens: rank and shape (at most FD_ARRAY_MAX_RANK) are the file's
 * before. FD_ERR_INPUT when they hold another number of elements. */
fd_code fd_name_map_reshape(const fd_name_map *map, const fd_name_map_rule *rule, const fd_name_map_values *values,
                            int64_t n_tok, int *rank, int64_t *shape, fd_error *err);
/* What the rule's slices leave of a last axis of `width`, where they come first; -1: they do not fit. */
int64_t fd_name_map_sliced(const fd_name_map_rule *rule, const fd_name_map_values *values, int64_t width);
/* True when an operation needs `values`. */
bool fd_name_map_needs_values(const fd_name_map_rule *rule);
/* True when an operation changes values (rounding then is the importer's). */
bool fd_name_map_computes(const fd_name_map_rule *rule);

#endif
