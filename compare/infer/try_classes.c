#include "compare/infer/try_classes.h"

#include <math.h>

#include "compare/bounds/dot_inputs.h"
#include "compare/products/products.h"
#include "compare/replay/in_order.h"

/* Unit roundoff of the type in which most of the trace's tensors are stored: an engine that keeps them in 16 bits
 * rounds every result to 16 bits, but logits as a rule. */
static double stored_roundoff(const fd_graph *graph, const fd_trace *trace) {
    const int32_t logits = fd_first_of_logits(graph);
    int32_t n = 0, n_f16 = 0, n_bf16 = 0;
    for (int32_t i = 0; i < fd_trace_n_node(trace); i++) {
        const fd_trace_node *node = fd_trace_node_at(trace, i);
        const bool widened = node->dtype == FD_F32 && fd_graph_find(graph, node->name) >= logits;
        n += node->has_data && !widened;
        n_f16 += node->has_data && node->dtype == FD_F16;
        n_bf16 += node->has_data && node->dtype == FD_BF16;
    }
    uint32_t most = 2 * n_bf16 > n ? FD_BF16 : 2 * n_f16 > n ? FD_F16 : FD_F32;
    return fd_dtype_roundoff(most);
}

/* The same of values that all have a 16-bit form, whatever they are stored in: files of binary32 may come from an engine of
 * 16 bits. */
static double shown_roundoff(const fd_evidence *evidence) {
    static const char *const classes[] = {"hf-bf16", "hf-f16"};
    for (int i = 0; i < 2; i++) {
        const fd_numerics_class *class_ = fd_numerics_class_find(classes[i]);
        fd_storage storage = fd_evidence_storage(evidence, class_);
        if (storage.n_seen > 0 && storage.n_wide == 0) return class_->u_out;
    }
    return 0;
}

static bool has_any(const fd_attribution_options *options, fd_op op) {
    for (int32_t i = 0; i < options->graph->n_node; i++)
        if (options->graph->nodes[i].op == op && fd_trace_has_data(options->cand, options->graph->nodes[i].name))
            return true;
    return false;
}

bool fd_shows_attention(const fd_attribution_options *options) {
    return has_any(options, FD_OP_ATTN_SCORES) || has_any(options, FD_OP_ATTN_SOFTMAX);
}

typedef struct search {
    const fd_attribution_options *o;
    fd_evidence *seen;
    const fd_numerics_class *class_[FD_MOST_CLASSES]; /* that may be the engine's, the finest first */
    fd_class_case cases[FD_MOST_CLASSES];             /* owned, until they are taken */
    int32_t n;
    int32_t last;   /* that was looked at */
    bool mixed;     /* attention's result was recorded */
    bool explained; /* by a class that leaves nothing: the others have room alone */
    fd_class_cases *found;
} search;

/* Those that exist whatever the values are: the trace's form may exclude some. */
static void list_classes(search *s) {
    const bool shown = fd_shows_attention(s->o);
    s->mixed = has_any(s->o, FD_OP_ATTN_MIX);
    for (int32_t i = 0; fd_numerics_class_at(i) && s->n < FD_MOST_CLASSES; i++) {
        const fd_numerics_class *class_ = fd_numerics_class_at(i);
        if (class_->exact || class_->u_out < 0x1p-24) continue; /* claimed by a trace, never guessed */
        const bool flash = class_->fused_attention || (class_->replays_inputs && class_->u_mix > 0);
        if (flash && shown) continue;
        /* sums of V in 16 bits are flash attention's, which hands out neither; or cuBLAS's */
        if (shown && class_->u_mix > 0 && (!class_->fast_math || class_->cuda_kernels)) continue;
        if (!fd_class_is_another(class_, s->o->graph)) continue;
        s->class_[s->n++] = class_;
    }
}

/* The trace keeps more than such an engine has, or values of 16 bits that its tensors would not have: those of the sums of
 * another type, or beside factors of a coarser one. */
static bool is_too_coarse(const search *s, int32_t i) {
    const fd_numerics_class *c = s->class_[i];
    double stored = s->found->stored;
    if (i > 0 && fd_evidence_refutes_table(s->seen, c)) return true;
    const bool coarse_factors = c->u_in > stored || (c->u_factor > stored && c->u_shown <= 0);
    bool keeps_more = c->u_out <= 0x1p-24 && (fd_class_sums_in_16_bits(c) || coarse_factors);
    return stored > 0x1p-24 && (c->u_out > stored || keeps_more);
}

static bool storage_refutes(const search *s, int32_t i) {
    fd_storage storage = fd_evidence_storage(s->seen, s->class_[i]);
    return i > 0 && fd_storage_refutes(&storage);
}

/* fd_jobs.needless */
static bool is_needless(void *user, int32_t i) {
    const search *s = user;
    return is_too_coarse(s, i) || storage_refutes(s, i) || (s->explained && !fd_class_leaves_nothing(s->class_[i]));
}

static fd_code judge_sample(const fd_attribution_options *options, const fd_numerics_class *numerics, fd_class_case *c,
                            void (*add)(void *, const fd_attribution_row *), fd_error *err) {
    fd_attribution_options how = *options;
    fd_attribution found;
    how.ref = NULL; /* what was inherited says nothing about the class */
    how.numerics = numerics;
    how.sample = how.rows_alone = true;
    how.values_alone = c->values_alone;
    how.on_row = add;
    how.progress = NULL;
    how.user = c;
    fd_code code = fd_attribute_errors(&how, &found, err);
    fd_attribution_free(&found);
    return code;
}

/* What a class that repeats roundings leaves of each row shows most of them to be another engine's: bounds, which take most of the
 * time, say nothing more. */
static bool is_told_by_values(const fd_numerics_class *c) {
    return c->replays_inputs && fd_class_leaves_nothing(c);
}

/* The trace refutes it whatever else is computed of it. */
static bool is_refuted(const search *s, const fd_class_case *own) {
    const fd_numerics_class *c = own->numerics;
    bool of_the_type = s->found->stored > 0x1p-24 && c->u_out >= s->found->stored; /* 16 bits hide what it would need */
    /* it takes 16-bit values as they come */
    const bool mixed = c->u_shown > 0;
    bool room_alone = mixed && (!fd_case_shown(own) || fd_evidence_nothing_is_narrow(s->seen, c));
    room_alone |= fd_evidence_shapes_disagree(s->seen, own) || fd_case_rounds_less(own);
    return !of_the_type && (fd_case_refuted(own) || room_alone || fd_case_rows_refute(own));
}

static fd_code judge_typical(const fd_attribution_options *options, fd_class_case *c, fd_error *err) {
    const fd_numerics_class typical = fd_numerics_class_typical(c->numerics);
    FD_TRY(judge_sample(options, &typical, c, fd_evidence_add_typical, err));
    fd_evidence_weigh(c);
    return FD_OK;
}

/* fd_jobs.run */
static fd_code try_class(void *user, int32_t i, fd_error *err) {
    search *s = user;
    fd_class_case *c = &s->cases[i];
    FD_TRY(fd_class_case_open(s->seen, s->class_[i], c, err));
    c->values_alone = i > 0 && is_told_by_values(c->numerics);
    if (c->values_alone) {
        FD_TRY(judge_sample(s->o, c->numerics, c, fd_evidence_add, err));
        fd_evidence_weigh(c);
        c->part = is_refuted(s, c) && !fd_case_leaves_nothing(c);
        if (c->part) return FD_OK;
        fd_class_case_again(c);
    }
    FD_TRY(judge_sample(s->o, c->numerics, c, fd_evidence_add, err));
    fd_evidence_weigh(c);
    if (fd_class_leaves_nothing(c->numerics)) return FD_OK;
    c->part = i > 0 && is_refuted(s, c);
    return c->part ? FD_OK : judge_typical(s->o, c, err);
}

fd_code fd_class_case_complete(const fd_attribution_options *options, fd_class_case *c, fd_error *err) {
    if (!c->part) return FD_OK;
    c->part = false;
    if (!c->values_alone) return judge_typical(options, c, err);
    fd_class_case_again(c);
    FD_TRY(judge_sample(options, c->numerics, c, fd_evidence_add, err));
    fd_evidence_weigh(c);
    return FD_OK;
}

/* Such a class, where products of another engine leave hardly more: what its sums have room for may be that one's bug. */
static bool has_room_alone(const search *s, const fd_class_case *own) {
    bool other = false;
    if (s->mixed || !own->numerics->cuda_kernels || !(own->numerics->u_mix > 0x1p-24)) return false;
    for (int32_t i = 0; i < s->found->n; i++) {
        const fd_class_case *c = &s->found->at[i];
        const bool repeats = !c->numerics->cuda_kernels && c->numerics->replays_inputs;
        other |= repeats && fd_class_leaves_nothing(c->numerics) && c->remains < own->remains + FD_TWICE_LEFT;
    }
    return other;
}

/* A prompt shows CUDA's classes by what an engine of 16-bit factors leaves as well, and such kernels multiply single rows otherwise: where
 * two tensors' are outside, these may be that engine's. */
static bool has_rows_of_another(const fd_class_case *c) {
    return c->numerics->cuda_kernels && c->n_outside > 1 && c->n_alone_left > 0;
}

/* fd_jobs.take: false when no coarser class is worth trying. */
static bool take_case(void *user, int32_t i) {
    search *s = user;
    fd_class_cases *c = s->found;
    s->last = i;
    if (s->o->progress) s->o->progress(s->o->user, i + 1, s->n);
    if ((s->explained && !fd_class_leaves_nothing(s->class_[i])) || is_too_coarse(s, i)) return true;
    if (storage_refutes(s, i)) {
        fd_storage storage = fd_evidence_storage(s->seen, s->class_[i]);
        if (storage.digits > c->storage.digits) c->storage = storage;
        return true;
    }
    if (has_room_alone(s, &s->cases[i])) return true;
    const fd_class_case *own = &c->at[c->n];
    c->at[c->n] = s->cases[i];
    s->cases[i].rows = NULL;
    bool refuted = c->refuted[c->n] = c->n > 0 && is_refuted(s, own);
    c->n++;
    if (c->n == 1) c->stored = fmax(c->stored, shown_roundoff(s->seen));
    bool sure = c->n == 1 || c->stored > 0x1p-24 || (!refuted && fd_case_shown(own));
    s->explained |= fd_case_leaves_nothing(own) && fd_case_unexplained(own) == 0 && !has_rows_of_another(own);
    /* of a few rows: single ones, which another class's kernels multiply otherwise */
    bool left = fd_class_leaves_nothing(own->numerics) && (own->n_rows_left > 0 || own->loses_to_steps);
    bool explains_all = own->n_beyond == 0 && own->n_outside == 0 && !left && own->numerics->u_out >= c->stored && sure;
    return !explains_all && c->n < FD_MOST_CLASSES;
}

fd_code fd_try_classes(const fd_attribution_options *options, fd_evidence *evidence, fd_class_cases *out,
                       fd_error *err) {
    search s = {.o = options, .seen = evidence, .found = out};
    *out = (fd_class_cases){.stored = stored_roundoff(options->graph, options->cand)};
    list_classes(&s);
    const fd_jobs others = {1, s.n, fd_products_callers(options->device), &s, is_needless, try_class, take_case};
    /* the finest by itself: what it leaves, and what was seen of storage, says which others are worth it */
    fd_code code = try_class(&s, 0, err);
    if (code == FD_OK && take_case(&s, 0)) code = fd_run_in_order(&others, err);
    for (int32_t i = out->n > 0 ? s.last + 1 : s.n; i < s.n; i++)
        if (!is_too_coarse(&s, i) && !storage_refutes(&s, i)) out->untried[out->n_untried++] = s.class_[i];
    for (int32_t i = 0; i < s.n; i++) fd_class_case_free(&s.cases[i]);
    return code;
}

bool fd_case_is_for_sums_alone(const fd_class_case *c) {
    return c->numerics->replays_inputs && fd_class_has_room_in_mix(c->numerics) && !c->rounds_products;
}

static bool keeps_sums_in_16_bits(const fd_numerics_class *c) {
    return c->u_mix > 0x1p-24 || fd_class_sums_in_16_bits(c) || c->u_out > 0x1p-24;
}

void fd_refute_sums_in_binary32(fd_class_cases *c) {
    bool any = false;
    for (int32_t i = 0; i < c->n; i++) any |= !c->refuted[i] && keeps_sums_in_16_bits(c->at[i].numerics);
    for (int32_t i = 0; i < c->n && any; i++) c->refuted[i] |= !keeps_sums_in_16_bits(c->at[i].numerics);
}

int32_t fd_case_with_sums_in_16_bits(const fd_class_cases *c, int32_t chosen) {
    for (int32_t i = 0; i < c->n && fd_case_unexplained(&c->at[chosen]) > 0; i++) {
        const bool all_explained = c->at[i].n_beyond + fd_case_unexplained(&c->at[i]) == 0;
        if (fd_case_is_for_sums_alone(&c->at[i]) && !c->refuted[i] && all_explained) return i;
    }
    return chosen;
}

bool fd_case_hides_its_steps(const fd_class_cases *c, int32_t i) {
    const fd_numerics_class *numerics = c->at[i].numerics;
    const bool blocks = numerics->own_block > 0;
    return c->stored > 0x1p-24 && fd_class_rounds_to_steps(numerics) && (blocks || numerics->u_shown <= 0);
}
