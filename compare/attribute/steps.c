#include "compare/attribute/steps.h"

#include <math.h>
#include <stdlib.h>

#include "compare/bounds/dot_inputs.h"

/* Relative error of a factor in an engine of binary32 when it is rounded: with it llama.cpp's layers of 2048 wide rows
 * show a value on the other side in every third row of int8 blocks, and five a row of binary16. */
#define ERROR_BEFORE 0x1p-22
/* The same of GELU by tanh.approx (bounds/gated.c). */
#define ERROR_OF_FAST_GELU 0x1p-17

/* A step's size, relative to a usual factor: the ulp of binary16 and bfloat16; of an int8 block, whose largest is three
 * times its usual element, 3/127. And how many values a row may lose to the other side before most rows show one: an int8
 * step is so large that a few rows spoil the rest through the K/V cache. */
typedef struct step {
    double size, few;
} step;

static step step_of(fd_dot_type type) {
    switch (type) {
    case FD_DOT_F16: return (step){0x1p-11, 1};
    case FD_DOT_BF16: return (step){0x1p-8, 0.5};
    case FD_DOT_Q8_0:
    case FD_DOT_Q8_K:
    case FD_DOT_INT8_ROW:
    case FD_DOT_INT8_OF_BF16:
    case FD_DOT_INT8_64:
    case FD_DOT_INT8_128:
    case FD_DOT_INT8: return (step){0x1p-7, 0.25};
    default: return (step){0, 0};
    }
}

#define FEW_OF_A_TABLE 0x1p-6

typedef struct search {
    const fd_graph *graph;
    const bool *whole;
    const fd_numerics_class *numerics;
    bool *seen;       /* [n_node] nodes, and inputs of products, that were counted */
    double n[2];      /* values on the other side in a row: of 16-bit factors, of blocks */
    double widest[2]; /* of steps */
    double few[2];
    double cache; /* the widest step of a K/V cache in blocks that was not recorded */
    uint32_t k_type, v_type;
    bool table; /* so often an element of GELU's table is on the other side that most rows may have one */
} search;

static void count_product(search *s, const fd_node *node) {
    if (node->weight[0] < 0) return;
    fd_dot_type type = fd_dot_type_of(s->numerics, node, &s->graph->weights[node->weight[0]], 0);
    step to = step_of(type);
    int32_t in = node->input[0], kind = fd_dot_is_blocks(type);
    if (type == FD_DOT_AS_IS || s->seen[s->graph->n_node + in]) return;
    s->seen[s->graph->n_node + in] = true;
    const fd_op before = s->graph->nodes[in].op;
    const bool fast = s->numerics->fast_math && (before == FD_OP_GELU || before == FD_OP_GELU_MUL);
    const bool seen = s->whole[in];
    const double error = fast && !seen ? ERROR_OF_FAST_GELU : ERROR_BEFORE;
    s->n[kind] += (double)fd_node_elements(&s->graph->nodes[in], 1) * error / to.size;
    s->few[kind] = to.few;
    if (to.size > s->widest[kind]) s->widest[kind] = to.size;
}

/* GELU from a table: its argument is rounded to binary16, and a large element that goes to the other side is seen by itself.
 * One in four rows of 512 has one, where most tensors have none. */
static void count_table(search *s, const fd_node *node) {
    if (!fd_gelu_is_table(s->numerics, node)) return;
    int32_t in = node->input[0];
    if (s->whole[in]) return;
    s->n[0] += (double)fd_node_elements(node, 1) * ERROR_BEFORE / step_of(FD_DOT_F16).size;
    s->few[0] = FEW_OF_A_TABLE;
    s->table = s->n[0] > s->few[0];
    s->widest[0] = fmax(s->widest[0], step_of(FD_DOT_F16).size);
}

/* Blocks of 4 and 5 bits: what an earlier value on the other side leaves of K or V takes some of theirs over, in most rows that see many
 * keys. Those of 8 bits have steps as int8 activations do. */
static void count_cache(search *s, const fd_node *reader) {
    if (reader->op != FD_OP_ATTN_SCORES && reader->op != FD_OP_ATTN_MIX) return;
    if (s->whole[reader->input[1]]) return;
    const uint32_t type = reader->op == FD_OP_ATTN_SCORES ? s->k_type : s->v_type;
    const bool four = type == FD_Q4_0 || type == FD_Q4_1 || type == FD_IQ4_NL;
    const bool five = type == FD_Q5_0 || type == FD_Q5_1;
    s->cache = fmax(s->cache, four ? 0x1p-3 : five ? 0x1p-4 : 0);
}

/* Inputs that were not recorded are computed on the way, and their inputs. */
static void walk(search *s, int32_t id) {
    const fd_node *node = &s->graph->nodes[id];
    s->seen[id] = true;
    count_product(s, node);
    count_table(s, node);
    count_cache(s, node);
    for (int k = 0; k < FD_MAX_INPUTS; k++) {
        int32_t in = node->input[k];
        if (in >= 0 && !s->seen[in] && !s->whole[in]) walk(s, in);
    }
}

/* Layers that some unrecorded product is of. */
static int32_t n_layer_passed(const search *s) {
    int32_t n = 0, last = -1;
    for (int32_t i = 0; i < s->graph->n_node; i++) {
        const fd_node *node = &s->graph->nodes[i];
        if (!s->seen[i] || node->op != FD_OP_MATMUL || node->layer < 0 || node->layer == last) continue;
        last = node->layer;
        n++;
    }
    return n;
}

static bool reads_sum(const fd_graph *graph, const bool *whole, int32_t node, bool *seen) {
    bool reads = graph->nodes[node].op == FD_OP_ATTN_MIX;
    seen[node] = true;
    for (int k = 0; k < FD_MAX_INPUTS && !reads; k++) {
        int32_t in = graph->nodes[node].input[k];
        if (in < 0 || seen[in] || whole[in]) continue;
        reads = reads_sum(graph, whole, in, seen);
    }
    return reads;
}

/* Where they are repeated, key after key: of 8192 additions one goes to the other side of a step of binary16, in a narrow row one in itself. */
#define ADDITIONS_A_FLIP   8192.0
#define ADDITIONS_OF_WIDTH 16.0

static double sums_leave(const fd_graph *graph, const fd_numerics_class *numerics, const bool *whole, int32_t node) {
    if (!(numerics->u_mix > 0x1p-24)) return 0;
    bool *seen = calloc((size_t)graph->n_node, sizeof *seen);
    bool reads = seen && reads_sum(graph, whole, node, seen);
    free(seen);
    if (!reads || !numerics->sums_in_turn) return reads ? 2 * numerics->u_mix : 0;
    const double width = (double)fd_node_width(&graph->nodes[node]);
    return 2 * numerics->u_mix / sqrt(fmin(ADDITIONS_A_FLIP, ADDITIONS_OF_WIDTH * width));
}

double fd_steps_leave(const fd_attribution_options *options, const bool *whole, int32_t node, double *sums) {
    const fd_graph *graph = options->graph;
    const fd_numerics_class *numerics = options->numerics;
    search s = {.graph = graph, .whole = whole, .numerics = numerics};
    fd_error none;
    const char *said = options->kv_type ? options->kv_type : fd_trace_get_info(options->cand)->kv_type;
    if (fd_kv_types_parse(said, &s.k_type, &s.v_type, &none) != FD_OK) s.k_type = s.v_type = FD_F32;
    double leave = 0;
    *sums = sums_leave(graph, numerics, whole, node);
    if (!numerics->replays_inputs) return 0;
    s.seen = calloc(2 * (size_t)graph->n_node, sizeof *s.seen);
    if (!s.seen) return 0; /* as if few had one: a suspect more */
    walk(&s, node);
    /* what blocks of one layer leave and what those of the next do are independent */
    s.widest[1] *= sqrt(fmax(1, n_layer_passed(&s)));
    for (int kind = 0; kind < 2; kind++)
        if (s.n[kind] > s.few[kind]) leave = fmax(leave, 2 * fmax(s.widest[kind], s.cache));
    /* and an element of the table that is the largest of its block takes the whole block over */
    if (s.table && 2 * s.widest[1] > leave) leave = 2 * s.widest[1];
    free(s.seen);
    return leave;
}
