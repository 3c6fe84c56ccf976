#include "cli/compare/whole_error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/order.h"
#include "cli/ranks.h"
#include "cli/record.h"
#include "compare/attribute/local_errors.h"
#include "compare/bounds/bounds.h"
#include "reference_cpu/reference.h"

/* Of 45 sound engines that rounded as their class, the candidate's NMSE over the emulated one's was 0.1 to 3.1. Where a class rounds to
 * no more than binary32, engines differ by more than roundings: angles of RoPE, approximations of exp; llama.cpp's had up to 230. But not
 * in every row: at position 0 all angles are exact. Of 16 sound engines in binary32 the row with the least had 0.06 to 1.5 times as much, of
 * eps in the wrong place, or ten times as large, 94 and 166. */
#define MOST             10.0
#define MOST_F32         1000.0
#define MOST_IN_ALL_ROWS 30.0
#define COARSE           1e-9 /* NMSE that roundings to 16 bits leave at least */

/* The middle row says more than the sum: a row with another choice of experts, or one that small differences grow in, has as much as it
 * likes. Of transformers in bfloat16 and binary16, 12 models, the middle row had 0.65 to 1.13 times as much, of four decode steps 0.66 to 1.21;
 * attention's branch times 1.05 in one layer of two, 4.9. */
#define MOST_IN_MIDDLE 3.0

/* Errors of a quarter of a row and more, seven times what three of four rows of an emulated engine have, in three of four rows: no choice of
 * experts is another in so many, and caches and products of 4 bits leave less. Fewer rows may all have other experts. */
#define FAR_OFF      0.0625
#define FAR_MORE     50.0
#define MOST_OF_ROWS 0.75
enum { FEWEST_FAR_OFF = 12 };

/* Of fewer rows one may have a large error by chance. Multiply-adds: a few seconds. */
enum { FEWEST_ROWS = 4 };
#define MOST_WORK 2e10

typedef struct sums {
    double of_candidate, of_emulated; /* Σ of squares of errors */
    double size;                      /* Σ of squares of the reference's */
    int32_t pos;
} sums;

typedef struct rows {
    int32_t in_reference, in_candidate, in_emulated; /* ids of the logits */
    float *reference, *candidate, *emulated;         /* [n_vocab] each: of one position; one owned block */
    sums *row;                                       /* those that the candidate recorded [n] */
    double *ratio;                                   /* room for as many */
    int32_t n, n_first;                              /* in all, in its first step */
} rows;

static bool is_mixed(const fd_numerics_class *class_) {
    return class_->u_shown > 0 && !class_->own_block;
}

/* All tensors, or as many as show it. */
static bool rounds_to_16_bits(const fd_numerics_class *class_) {
    return class_->u_out > 0x1p-20 || is_mixed(class_);
}

static bool chooses_experts(const fd_graph *graph) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_TOP_K) return true;
    return false;
}

/* An emulated cache has no blocks, nor a type that is not its class's. */
static bool has_another_cache(const fd_trace *trace, const fd_numerics_class *class_) {
    uint32_t k = FD_F32, v = FD_F32;
    fd_error none;
    if (fd_kv_types_parse(fd_trace_get_info(trace)->kv_type, &k, &v, &none) != FD_OK) return false;
    const bool of_bf16 = class_ && class_->u_out > 0x1p-11; /* all its tensors are */
    return fd_kv_is_quantised(k) || fd_kv_is_quantised(v) || (!of_bf16 && (k == FD_BF16 || v == FD_BF16));
}

/* The class to emulate. What kernels keep to themselves is not recorded in either; and an engine of mixed precision leaves no more than one
 * that rounds every tensor. */
static const char *to_emulate(const fd_numerics_class *class_) {
    if (is_mixed(class_)) return class_->u_shown > 0x1p-11 ? "hf-bf16" : "hf-f16";
    return fd_class_unfused(class_)->name;
}

static fd_code open_emulated(const fd_cli_pair *pair, const char *class_name, fd_cli_exec *out, bool *known,
                             fd_error *err) {
    char spec[48];
    fd_error unknown;
    const fd_numerics_class *class_ = fd_numerics_class_find(class_name);
    snprintf(spec, sizeof spec, "cpu:emulate-%s", class_ ? to_emulate(class_) : class_name);
    const fd_code code = fd_cli_exec_open(spec, pair->model->graph, fd_trace_n_pos(pair->cand), 0, out, &unknown);
    *known = code == FD_OK;
    if (code == FD_OK || code == FD_ERR_INPUT || code == FD_ERR_UNSUPPORTED) return FD_OK;
    *err = unknown;
    return code;
}

/* Adds nothing where a side has no such row, or a number is none. */
static void add_row(const fd_cli_pair *pair, const fd_trace *emulated, int32_t pos, rows *r) {
    const int32_t n = pair->model->graph->hparams.n_vocab;
    sums row = {.pos = pos};
    fd_error missing;
    if (fd_trace_read(pair->ref, r->in_reference, pos, r->reference, NULL, &missing) != FD_OK ||
        fd_trace_read(pair->cand, r->in_candidate, pos, r->candidate, NULL, &missing) != FD_OK ||
        fd_trace_read(emulated, r->in_emulated, pos, r->emulated, NULL, &missing) != FD_OK)
        return;
    for (int32_t i = 0; i < n; i++) {
        const double c = (double)r->candidate[i] - (double)r->reference[i],
                     e = (double)r->emulated[i] - (double)r->reference[i];
        row.of_candidate += c * c;
        row.of_emulated += e * e;
        row.size += (double)r->reference[i] * (double)r->reference[i];
    }
    if (isfinite(row.of_candidate) && isfinite(row.of_emulated)) r->row[r->n++] = row;
}

/* Step by step, as the candidate was fed. */
static fd_code record_emulated(const fd_cli_pair *pair, const fd_cli_exec *exec, bool logits_alone, fd_trace **out,
                               fd_error *err) {
    fd_trace_options how = fd_trace_defaults(NULL);
    if (logits_alone) how.tensors = "logits";
    const int32_t n_pos = fd_trace_n_pos(pair->cand);
    int32_t *tokens = malloc(sizeof *tokens * (size_t)n_pos);
    if (!tokens) return fd_fail(err, FD_ERR_MEMORY, "%d tokens: out of memory", n_pos);
    memcpy(tokens, fd_trace_tokens(pair->cand), sizeof *tokens * (size_t)n_pos);
    fd_recording run = {.tokens = tokens,
                        .n_token = n_pos,
                        .n_pos = n_pos,
                        .steps = fd_trace_steps(pair->cand),
                        .n_step = fd_trace_n_step(pair->cand)};
    const fd_code code = fd_cli_record_temporary(pair->model, exec, how, &run, out, err);
    free(tokens);
    return code;
}

/* Rows from `first` on: their sums; of their ratios, the candidate's over the emulated, the middle one, of two the smaller, and the least. */
static sums look(const rows *r, int32_t first, double *middle, double *least) {
    sums all = {0};
    const int32_t n = r->n - first;
    for (int32_t i = 0; i < n; i++) {
        const sums *row = &r->row[first + i];
        all.of_candidate += row->of_candidate;
        all.of_emulated += row->of_emulated;
        all.size += row->size;
        r->ratio[i] = row->of_emulated > 0    ? row->of_candidate / row->of_emulated
                      : row->of_candidate > 0 ? INFINITY
                                              : 0;
    }
    qsort(r->ratio, (size_t)n, sizeof *r->ratio, fd_order_doubles);
    *middle = n < FEWEST_ROWS ? 0 : r->ratio[(n - 1) / 2];
    *least = n < FEWEST_ROWS ? 0 : r->ratio[0];
    return all;
}

/* Experts: one other choice is worth more than all rounding, in the rows that have it. */
static void judge(const rows *r, bool experts, fd_verdict *verdict) {
    double middle, least, later_middle, later_least;
    if (r->n < FEWEST_ROWS) return;
    const sums later = look(r, r->n_first, &later_middle, &later_least), all = look(r, 0, &middle, &least);
    if (!(all.size > 0) || !(all.of_emulated > 0)) return;
    const fd_numerics_class *class_ = fd_numerics_class_find(verdict->replay.numerics);
    const bool coarse = all.of_emulated > COARSE * all.size, in_16_bits = class_ && rounds_to_16_bits(class_);
    const double most_in_middle = in_16_bits ? MOST_IN_MIDDLE : MOST;
    bool adds_up = !experts && all.of_candidate > (coarse ? MOST : MOST_F32) * all.of_emulated;
    adds_up |= coarse ? middle > most_in_middle : !experts && least > MOST_IN_ALL_ROWS;
    const bool in_later = !adds_up && coarse && later_middle > most_in_middle;
    if (!adds_up && !in_later) return;
    const sums *shown = in_later ? &later : &all;
    fd_remark reason = {FD_REASON_WHOLE_ERROR, .n = {in_later ? r->n - r->n_first : r->n}};
    snprintf(reason.node, sizeof reason.node, "%.2g", shown->of_candidate / shown->size);
    snprintf(reason.other, sizeof reason.other, "%.2g", shown->of_emulated / shown->size);
    if (in_later) snprintf(reason.text, sizeof reason.text, " after the first step");
    fd_verdict_late_reason(verdict, reason);
}

/* Of rows from `first` on; the first such row's position, -1: there are fewer. *n: how many. */
static int32_t first_far_off(const rows *r, int32_t first, int32_t *n) {
    const int32_t n_row = r->n - first;
    int32_t found = -1;
    *n = 0;
    if (n_row < FEWEST_FAR_OFF) return -1;
    for (int32_t i = 0; i < n_row; i++) r->ratio[i] = r->row[first + i].of_emulated / r->row[first + i].size;
    qsort(r->ratio, (size_t)n_row, sizeof *r->ratio, fd_order_doubles);
    const double usual = r->ratio[(int32_t)(MOST_OF_ROWS * n_row)];
    for (int32_t i = first; i < r->n; i++) {
        const double own = r->row[i].of_candidate / r->row[i].size;
        if (!(own >= FAR_OFF) || !(own >= FAR_MORE * usual)) continue;
        if ((*n)++ == 0) found = r->row[i].pos;
    }
    return *n >= MOST_OF_ROWS * n_row ? found : -1;
}

/* Nothing before the logits was recorded, and all that stands against a verdict is that bounds have room for anything. */
static bool is_of_logits_alone(const fd_verdict *verdict) {
    bool yes = verdict->status == FD_INCOMPLETE && strcmp(verdict->first_bits.node, "logits") == 0;
    for (int32_t i = 0; i < verdict->reasons.n && i < FD_MAX_REMARKS; i++) {
        const fd_remark_kind kind = verdict->reasons.items[i].kind;
        yes &= kind == FD_REASON_SPAN_INCONCLUSIVE || kind == FD_REASON_LARGE_ERRORS;
    }
    return yes;
}

static void judge_far_off(const fd_trace *cand, const rows *r, fd_verdict *verdict) {
    int32_t n, n_row = r->n, pos = first_far_off(r, 0, &n);
    if (pos < 0) n_row -= r->n_first, pos = first_far_off(r, r->n_first, &n);
    if (pos < 0) return;
    fd_remark note = {FD_NOTE_FAR_OFF, .n = {n, n_row}};
    snprintf(note.text, sizeof note.text, "%s", verdict->reasons.items[0].text);
    verdict->divergence = verdict->first_bits;
    if (pos != verdict->divergence.pos) {
        const int32_t step = fd_trace_step_of(cand, pos);
        verdict->divergence.pos = pos;
        verdict->divergence.step = step;
        verdict->divergence.step_kind = fd_trace_steps(cand)[step].kind;
        verdict->divergence.has_values = false; /* they are those of the first bits */
    }
    verdict->reasons.n = 0;
    verdict->status = FD_DIVERGED;
    fd_verdict_note(verdict, note);
}

static fd_code check_logits(const fd_cli_pair *pair, const fd_trace *emulated, fd_verdict *verdict, fd_error *err) {
    const int32_t n_pos = fd_trace_n_pos(pair->cand), n_vocab = pair->model->graph->hparams.n_vocab,
                  n_first = fd_trace_steps(pair->cand)[0].n_pos;
    rows r = {.in_reference = fd_trace_find(pair->ref, "logits"),
              .in_candidate = fd_trace_find(pair->cand, "logits"),
              .in_emulated = fd_trace_find(emulated, "logits"),
              .reference = malloc(3 * sizeof(float) * (size_t)n_vocab),
              .row = malloc(sizeof(sums) * (size_t)n_pos),
              .ratio = malloc(sizeof(double) * (size_t)n_pos)};
    const bool room = r.reference && r.row && r.ratio;
    if (room) r.candidate = r.reference + n_vocab, r.emulated = r.candidate + n_vocab;
    for (int32_t p = 0; p < n_pos && room; p++) {
        add_row(pair, emulated, p, &r);
        if (p + 1 == n_first) r.n_first = r.n;
    }
    if (room && verdict->status == FD_NOISE) judge(&r, chooses_experts(pair->model->graph), verdict);
    if (room && is_of_logits_alone(verdict)) judge_far_off(pair->cand, &r, verdict);
    free(r.row);
    free(r.ratio);
    free(r.reference);
    return room ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "logits: out of memory");
}

static fd_code check_ops(const fd_cli_pair *pair, const fd_trace *emulated, fd_verdict *verdict, fd_error *err) {
    const fd_numerics_class *class_ = fd_numerics_class_find(verdict->replay.numerics);
    const fd_attribution_options how = {.graph = pair->model->graph,
                                        .cand = pair->cand,
                                        .n_pos = fd_trace_n_pos(pair->cand),
                                        .op = fd_reference_op,
                                        .numerics = class_};
    fd_local_excess excess;
    if (verdict->status != FD_NOISE || !class_ || !rounds_to_16_bits(class_)) return FD_OK;
    FD_TRY(fd_find_local_excess(&how, emulated, &excess, err));
    if (excess.unrounded >= 0) {
        fd_remark note = {FD_NOTE_READS_UNROUNDED};
        snprintf(note.node, sizeof note.node, "%s", pair->model->graph->nodes[excess.unrounded].name);
        fd_verdict_note(verdict, note);
    }
    if (excess.node < 0) return FD_OK;
    fd_remark reason = {FD_REASON_LOCAL_ERROR, .n = {excess.n, excess.first}};
    snprintf(reason.node, sizeof reason.node, "%s", pair->model->graph->nodes[excess.node].name);
    snprintf(reason.text, sizeof reason.text, "%.2g", excess.here);
    snprintf(reason.other, sizeof reason.other, "%.2g", excess.there);
    fd_verdict_late_reason(verdict, reason);
    return FD_OK;
}

fd_code fd_cli_check_whole_error(const fd_cli_pair *pair, fd_verdict *verdict, fd_error *err) {
    const int32_t n_pos = fd_trace_n_pos(pair->cand);
    const fd_numerics_class *class_ = fd_numerics_class_find(verdict->replay.numerics);
    fd_cli_exec exec;
    fd_trace *emulated = NULL;
    bool known;
    if ((verdict->status != FD_NOISE && !is_of_logits_alone(verdict)) || verdict->replay.of_reference ||
        fd_cli_peers() || has_another_cache(pair->cand, class_) ||
        !(fd_graph_n_parameter(pair->model->graph) * n_pos <= MOST_WORK) ||
        strcmp(fd_trace_get_info(pair->ref)->numerics, "exact") != 0 || fd_trace_n_pos(pair->ref) < n_pos)
        return FD_OK;
    const bool in_16_bits = class_ && rounds_to_16_bits(class_),
               has_logits = fd_trace_has_data(pair->ref, "logits") && fd_trace_has_data(pair->cand, "logits");
    if (!has_logits && !in_16_bits) return FD_OK; /* of what is not rounded to 16 bits the logits alone are asked */
    FD_TRY(open_emulated(pair, verdict->replay.numerics, &exec, &known, err));
    if (!known) return FD_OK;
    fd_code code = record_emulated(pair, &exec, !in_16_bits, &emulated, err);
    if (code == FD_OK && has_logits) code = check_logits(pair, emulated, verdict, err);
    if (code == FD_OK) code = check_ops(pair, emulated, verdict, err);
    if (emulated) fd_trace_close(emulated);
    fd_cli_exec_close(&exec);
    return code;
}
