#include "compare/class/own_cache.h"

#include "base/order.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "compare/class/later_cache.h"
#include "compare/class/mixed.h"
#include "compare/class/undirected.h"
#include "compare/dump/narrow.h"
#include "compare/explain/trial_rows.h"
#include "compare/hypothesis/round_scaled.h"
#include "compare/hypothesis/round_type.h"
#include "compare/replay/replay.h"

/* Of the size of the result: four bits leave an eighth of a value. */
#define MOST_ERROR 0.2
/* Between the middle half of the rows: how much larger the errors are than those of a rounding that is known; and between any row and the
 * middle one (the first row of a later step reads hardly more than other steps' rows, which the known rounding leaves alone). A bug that
 * spares the first position, as all of keys do, or grows with it is far outside. */
#define MOST_APART       4.0
#define MOST_FROM_MIDDLE 8.0
/* And of the middle row: two bits of mantissa (E5M2) leave 1.5 to 2.5 times what three of E4M3 leave of the logits of both bundled models. Four
 * bits leave 3 to 11 times as much, which bugs of one layer do as well: who keeps K and V so knows it. */
#define MOST_OF_KNOWN 3.0
enum { FEWEST_ROWS = 3, AN_OUTSIDER = 16 };

/* Of what begins after the first step: more is as likely a bug of what comes with it, rows of another sequence for one. */
#define MOST_OF_LATER 0.125

/* Of the roundoff of the type that attention's result has: of q, K, V, weights and the result, each half of it or so. */
#define MOST_ROUNDOFFS 4.0

typedef struct own_cache {
    bool is;
    bool narrow;  /* not by the cache: attention is computed in 16 bits, beside binary32 */
    double error; /* relative, the largest so far */
} own_cache;

/* What rounding leaves of a value goes with it, or with the largest of its row or step; in the cache, or in what products read: an engine of
 * binary32 tensors shows more of how it multiplies where it records any of them. Where no cache is on the way, as from the last layer to the
 * logits, products alone have roundings: no more than the layers before have shown (ONNX Runtime's quantize_dynamic left 0.036 of a
 * layer, 0.007 of the logits). */
static const struct {
    int32_t type;
    fd_scale_of scale;
    int32_t which;
    fd_op op;
} known[] = {{FD_ROUND_E4M3, FD_SCALE_NONE, FD_ROUNDED_RESULT, FD_OP_KV_WRITE},
             {FD_ROUND_INT8, FD_SCALE_ROW, FD_ROUNDED_RESULT, FD_OP_KV_WRITE},
             {FD_ROUND_INT8, FD_SCALE_STEP, FD_ROUNDED_RESULT, FD_OP_KV_WRITE},
             {FD_ROUND_E4M3, FD_SCALE_ROW, FD_ROUNDED_INPUT, FD_OP_MATMUL}};

/* Sorts them. */
static bool are_together(double *times, int32_t n) {
    qsort(times, (size_t)n, sizeof *times, fd_order_doubles);
    const double middle = times[n / 2];
    const int32_t last = n - 1 - n / AN_OUTSIDER; /* a row that chose another expert */
    return middle <= MOST_OF_KNOWN && times[n - 1 - n / 4] <= MOST_APART * times[n / 4] &&
           times[last] <= MOST_FROM_MIDDLE * middle && middle <= MOST_FROM_MIDDLE * times[0];
}

/* The errors in each row are so many times the change by a rounding that is known. *changes: there is something to round. */
static fd_code goes_with(const fd_trial_rows *rows, int which, bool *yes, bool *changes, fd_error *err) {
    const fd_explain_request *r = rows->request;
    const fd_hypothesis h = {.guess = FD_GUESS_ROUNDED,
                             .node = -1,
                             .layer = FD_ANY_LAYER,
                             .which = known[which].which,
                             .ops = (int32_t)known[which].op + 1,
                             .other = known[which].type,
                             .n = known[which].scale};
    const int32_t n = r->args.n_pos - r->n_unjudged;
    fd_variant v;
    double *times = malloc(sizeof *times * (size_t)(n > 0 ? n : 1));
    *yes = false;
    if (!times) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    fd_code code = fd_evaluate(rows->bench, &h, r->args.node->id, false, &v, err);
    *changes = code == FD_OK && v.state == FD_VARIANT_COMPUTED;
    bool known_all = *changes && n >= FEWEST_ROWS;
    for (int32_t i = 0; i < n && known_all; i++) {
        const int32_t p = r->n_unjudged + i;
        times[i] = fd_trial_change_of_row(rows, r->output, p) / fd_trial_change_of_row(rows, v.rows, p);
        known_all = times[i] > 0 && isfinite(times[i]);
    }
    if (known_all) *yes = are_together(times, n);
    if (code == FD_OK) fd_variant_free(&v);
    free(times);
    return code;
}

/* A fused kernel of 16 bits amid tensors of binary32: it takes q, K and V in its type, and hands its result out so. */
static bool is_attention_in_16_bits(const fd_explain_request *r, double error) {
    const int64_t stride = fd_node_row_stride(r->args.node, r->args.n_kv);
    if (r->args.node->op != FD_OP_ATTN_MIX || r->numerics->u_out > 0x1p-24) return false;
    const uint32_t type = fd_narrow_type(r->output + r->n_unjudged * stride, (r->args.n_pos - r->n_unjudged) * stride);
    return type != FD_F32 && error <= MOST_ROUNDOFFS * fd_dtype_roundoff(type);
}

/* Layers say together what one of them, or the logits alone, cannot: a bug in one layer leaves logits as far off. */
static bool shows_layers_without_products(const fd_diagnose_options *ask) {
    bool any = false;
    for (int32_t i = 0; i < ask->graph->n_node; i++) {
        const fd_node *node = &ask->graph->nodes[i];
        if (node->layer < 0 || !fd_trace_has_data(ask->trace, node->name)) continue;
        if (node->op == FD_OP_MATMUL) return false;
        any = true;
    }
    return any;
}

/* fd_diagnose_look_fn */
static fd_code look(void *user, const fd_diagnose_options *options, const fd_explain_request *request, fd_error *err) {
    own_cache *out = user;
    fd_trial_rows rows;
    fd_undirected errors = {0};
    out->is = false;
    fd_code code = fd_trial_rows_open(request, &rows, err);
    if (code == FD_OK && rows.plain.state == FD_VARIANT_COMPUTED) errors = fd_weigh_undirected(&rows);
    const bool recorded = fd_reads_earlier_steps(options->graph, options->finding);
    if (fd_is_undirected(&errors) && errors.error <= (options->finding->step > 0 ? MOST_OF_LATER : MOST_ERROR)) {
        const bool outside = request->args.node->layer < 0, no_more = errors.error <= out->error; /* than the layers */
        bool of_cache = false, changes = false;
        out->error = fmax(out->error, errors.error);
        const bool narrow = !recorded && is_attention_in_16_bits(request, errors.error);
        out->narrow &= narrow;
        out->is = recorded || narrow;
        for (int i = 0; i < (int)(sizeof known / sizeof *known) && code == FD_OK && !out->is; i++) {
            const bool cache = known[i].op == FD_OP_KV_WRITE;
            if (cache || request->numerics->u_out > 0x1p-24 || shows_layers_without_products(options))
                code = goes_with(&rows, i, &out->is, &changes, err);
            of_cache |= cache && changes;
        }
        out->is |= outside && no_more && !of_cache && fd_is_undirected_in_rows(&errors);
    }
    fd_trial_rows_close(&rows);
    return code;
}

/* A cache that is kept so is from its first row on, or from the first step on that reads other steps' rows, where a step has its own as they
 * are: rows after that, past position 0, were seen to be right. */
static fd_code begins_later(const fd_diagnose_options *ask, const fd_node_finding *f, bool *yes, fd_error *err) {
    const fd_node *node = &ask->graph->nodes[f->node];
    const int32_t in_trace = fd_trace_find(ask->trace, node->name), n_kv = f->pos + 1;
    *yes = false;
    if (f->z <= FD_LITTLE_BEYOND) return FD_OK; /* rows within the bounds were not seen to be right then */
    double *row = in_trace < 0 ? NULL : malloc(2 * sizeof *row * (size_t)fd_node_row_stride(node, n_kv));
    if (in_trace >= 0 && !row) return fd_fail(err, FD_ERR_MEMORY, "%s: explanation: out of memory", node->name);
    fd_code code = FD_OK;
    for (int32_t p = 1; p < f->pos && row && code == FD_OK && !*yes; p++)
        if (f->step == 0 || fd_trace_step_of(ask->trace, p) > 0)
            code = fd_replay_read_row(ask->trace, in_trace, node, p, n_kv, row + fd_node_row_stride(node, n_kv), row,
                                      yes, err);
    free(row);
    return code;
}

static fd_code find_own_cache(const fd_diagnose_options *ask, const fd_attribution *of, own_cache *out, fd_error *err) {
    own_cache own = {.is = of->found, .narrow = of->found};
    for (int32_t i = 0; i < ask->graph->n_node && own.is; i++) {
        fd_diagnose_options there = *ask;
        there.finding = &of->introduced[i];
        there.whole_run =
            fd_trace_step_of(ask->trace, there.finding->pos) > 0; /* earlier steps' rows are kept so, too */
        if (there.finding->finding == FD_FOUND_NOTHING) continue;
        const bool unrecorded = there.finding->span_first != there.finding->node;
        /* as much may be within elsewhere; what is within the bounds itself is seen by what the other layers do not leave */
        const double z = there.finding->z;
        const bool little = unrecorded && z > 1 && z <= FD_LITTLE_BEYOND;
        own.is = (unrecorded || fd_reads_earlier_steps(ask->graph, there.finding)) && isfinite(there.finding->z) &&
                 (little || fd_departs_in_most_layers(ask->graph, of, i));
        bool later = false;
        if (own.is) FD_TRY(begins_later(&there, there.finding, &later, err));
        own.is &= !later;
        if (own.is) FD_TRY(fd_diagnose_look(&there, look, &own, err));
    }
    *out = own;
    return FD_OK;
}

fd_code fd_is_own_cache(const fd_diagnose_options *ask, const fd_attribution *of, double *error, bool *yes,
                        fd_error *err) {
    own_cache own;
    FD_TRY(find_own_cache(ask, of, &own, err));
    *error = own.error;
    *yes = own.is;
    return FD_OK;
}

fd_code fd_find_beside_attention(const fd_diagnose_options *ask, const fd_attribution *of, int32_t *other,
                                 fd_error *err) {
    int32_t n_narrow = 0, first = -1;
    *other = -1;
    for (int32_t i = 0; i < ask->graph->n_node; i++) {
        fd_diagnose_options there = *ask;
        own_cache own = {.narrow = true};
        there.finding = &of->introduced[i];
        if (there.finding->finding == FD_FOUND_NOTHING) continue;
        if (ask->graph->nodes[i].op == FD_OP_ATTN_MIX) FD_TRY(fd_diagnose_look(&there, look, &own, err));
        const bool narrow = own.is && own.narrow;
        n_narrow += narrow;
        if (!narrow && (first < 0 || there.finding->step < of->introduced[first].step)) first = i;
    }
    if (n_narrow > 1 && fd_departs_in_most_layers(ask->graph, of, of->first.node)) *other = first;
    return FD_OK;
}

/* The trace says that K and V have 16 bits or more. */
static bool has_no_blocks(const fd_trace *trace) {
    const char *said = fd_trace_get_info(trace)->kv_type;
    uint32_t k, v;
    fd_error none;
    return said[0] && fd_kv_types_parse(said, &k, &v, &none) == FD_OK && !fd_kv_is_quantised(k) &&
           !fd_kv_is_quantised(v);
}

fd_code fd_say_own_way(const fd_diagnose_options *ask, const fd_attribution *of, bool cache_alone, char *to,
                       size_t size, bool *yes, fd_error *err) {
    double error;
    *yes = false;
    FD_TRY(fd_find_later_cache(ask, of, to, size, yes, err));
    if (*yes || (cache_alone && has_no_blocks(ask->trace))) return FD_OK;
    if (!cache_alone) FD_TRY(fd_is_own_way(ask, of, &error, yes, err));
    if (*yes) {
        snprintf(to, size, "off by %.1g of it in no direction, as sums of rounded parts or int8 inputs are", error);
        return FD_OK;
    }
    own_cache own;
    FD_TRY(find_own_cache(ask, of, &own, err));
    *yes = own.is;
    snprintf(to, size, "off by %.1g of it in no direction, as where %s", own.error,
             own.narrow ? "attention alone is computed in 16 bits, as its values are"
                        : "K and V, or what products read, are kept in 8 bits or fewer, or K and V rotated before");
    return FD_OK;
}

/* *rest: `of` without them; its first is the first of what is left. */
static fd_code leave_out_apart(const fd_diagnose_options *ask, const fd_attribution *of, double *errors,
                               fd_attribution *rest, int32_t *other, fd_error *err) {
    const fd_graph *graph = ask->graph;
    bool any = false;
    FD_TRY(fd_ask_all_undirected(ask, of, errors, err));
    for (int32_t i = 0; i < graph->n_node; i++) {
        rest->introduced[i] = of->introduced[i];
        if (of->introduced[i].finding == FD_FOUND_NOTHING) continue;
        if (fd_is_apart(graph, errors, i)) {
            rest->introduced[i].finding = FD_FOUND_NOTHING;
            if (*other < 0 || of->introduced[i].step < of->introduced[*other].step) *other = i;
        } else if (!any || of->introduced[i].step < rest->first.step) {
            rest->first = of->introduced[i];
            any = true;
        }
    }
    rest->found = any;
    return FD_OK;
}

fd_code fd_find_apart_of_own_way(const fd_diagnose_options *ask, const fd_attribution *of, int32_t *other,
                                 fd_error *err) {
    const size_t n = (size_t)ask->graph->n_node + 1;
    fd_attribution rest = *of;
    fd_diagnose_options there = *ask;
    char words[192];
    bool own = false;
    double *errors = calloc(n, sizeof *errors);
    rest.introduced = malloc(n * sizeof *rest.introduced);
    *other = -1;
    fd_code code = errors && rest.introduced ? leave_out_apart(ask, of, errors, &rest, other, err)
                                             : fd_fail(err, FD_ERR_MEMORY, "class: out of memory");
    there.finding = &rest.first;
    if (code == FD_OK && *other >= 0 && rest.found)
        code = fd_say_own_way(&there, &rest, false, words, sizeof words, &own, err);
    if (!own) *other = -1;
    free(errors);
    free(rest.introduced);
    return code;
}
