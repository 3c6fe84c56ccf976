#include "compare/infer/infer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/infer/refute.h"
#include "numerics/contract.h"

const char *fd_class_source_name(fd_class_source source) {
    return source == FD_CLASS_GIVEN ? "given" : source == FD_CLASS_RECORDED ? "recorded" : "inferred";
}

const fd_numerics_class *fd_class_of_trace(const fd_trace *trace) {
    const fd_trace_info *info = fd_trace_get_info(trace);
    const fd_numerics_class *found = fd_numerics_class_find(info->numerics);
    /* another version of the contract is another order of the same binary32 sums */
    if (found && found->exact && info->contract != FD_CONTRACT_VERSION) found = fd_numerics_class_find("f32");
    /* nor has a run whose K and V are rounded the contract's bits */
    if (found && found->exact && info->kv_type[0] && strcmp(info->kv_type, "f32") != 0)
        found = fd_numerics_class_find("f32");
    if (found && strcmp(found->name, "f32") == 0 && strcmp(info->kv_type, "f16") == 0)
        found = fd_numerics_class_find("f16kv");
    return found;
}

/* Fewer tensors say nothing of a class that has room for them. */
enum { NODES_OF_A_BUG = 50 };

/* Of whole layers of a sound engine binary32 leaves a tenth of this, of a deep model's logits half. */
#define MUCH_OF_A_SPAN 0x1p-19

/* A stricter class stays where another leaves a little less by chance. */
#define MUCH_LESS 0.35

/* A bug in a few tensors is no reason for a coarser class, a kernel that computes an op in its own way is one. */
static bool fits(const fd_class_cases *c, int32_t i, int32_t least) {
    int32_t of_a_bug = c->other_kernel[i] ? 0 : c->at[i].n_judged / NODES_OF_A_BUG;
    return c->at[i].n_beyond <= least + of_a_bug;
}

/* Of most tensors both leave nothing. Of single rows one that has room for sums of 16 bits always leaves less. */
static bool leaves_less(const fd_class_case *a, const fd_class_case *b) {
    const bool by_room = fd_class_has_room_in_mix(a->numerics) && !fd_class_has_room_in_mix(b->numerics);
    int32_t more = fd_case_unexplained(a) - fd_case_unexplained(b);
    if (more != 0) return more < 0;
    if (a->remains < b->remains - MUCH_LESS || b->remains < a->remains - MUCH_LESS) return a->remains < b->remains;
    return !by_room && a->n_rows_left < b->n_rows_left;
}

/* The class that leaves nothing of most tensors, of several the one that leaves least; -1: there is none. Where all values have
 * 16 bits, what a class of binary32 tensors repeats may be what one of 16-bit tensors does anyway. */
static int32_t leaves_least(const fd_class_cases *c) {
    int32_t best = -1;
    for (int32_t i = 0; i < c->n; i++) {
        bool some_left = c->at[i].n_left > 0; /* of tensors of 16 bits binary32 leaves as much as these round */
        if (c->stored > 0x1p-24 && (some_left || fd_class_rounds_to_steps(c->at[i].numerics))) continue;
        if (!fd_case_leaves_nothing(&c->at[i]) || (c->refuted[i] && fd_case_unexplained(&c->at[i]) > 0)) continue;
        if (best < 0 || leaves_less(&c->at[i], &c->at[best])) best = i;
    }
    return best;
}

/* The strictest class that fits and is not refuted; of a trace in 16 bits one of as few, because finer classes fit
 * as well where those bits hide what they would have kept. */
static int32_t choose(const fd_class_cases *c, int32_t *least) {
    int32_t leaves_nothing = leaves_least(c), chosen = -1, same_type = -1, of_least_room = 0;
    bool another = false; /* shows itself, and fits where that one does not */
    *least = INT32_MAX;
    for (int32_t i = 0; i < c->n; i++)
        if (!c->refuted[i] && c->at[i].n_beyond < *least) *least = c->at[i].n_beyond;
    for (int32_t i = 1; i < c->n; i++) another |= !c->refuted[i] && fits(c, i, *least) && fd_case_shown(&c->at[i]);
    bool explains = leaves_nothing >= 0 &&
                    NODES_OF_A_BUG * fd_case_unexplained(&c->at[leaves_nothing]) <= c->at[leaves_nothing].n_judged;
    if (leaves_nothing >= 0 && (explains || fits(c, leaves_nothing, *least) || !another)) {
        *least = c->at[leaves_nothing].n_beyond;
        return leaves_nothing;
    }
    for (int32_t i = c->n - 1; i >= 0; i--) {
        bool of_type = c->at[i].numerics->u_out >= c->stored;
        if (c->refuted[i] || fd_case_hides_its_steps(c, i)) continue;
        if (fits(c, i, *least)) chosen = i;
        if (of_type) of_least_room = i;
        /* wide bounds are no reason against the type that the values have */
        if (of_type && (fits(c, i, *least) || (c->stored > 0x1p-24 && c->at[i].n_outside == 0))) same_type = i;
    }
    return same_type >= 0 ? same_type : chosen >= 0 ? chosen : of_least_room;
}

/* The class itself is shown, or one that fits as well and says less: f16 where products round and attention does
 * not. */
static bool is_decided(const fd_class_cases *c, int32_t chosen, int32_t least) {
    bool decided = chosen == 0 || fd_case_leaves_nothing(&c->at[chosen]) ||
                   c->stored > 0x1p-24; /* 16 bits in the trace show themselves */
    /* int8 blocks say nothing of a class that rounds factors of some products: one kind of FFN looks like either */
    const bool some = c->at[chosen].numerics->either;
    for (int32_t i = 1; i < c->n; i++) {
        if (some && c->at[i].numerics->q8_activations) continue;
        decided |= !c->refuted[i] && fits(c, i, least) && fd_case_shown(&c->at[i]);
    }
    return decided;
}

/* The strictest class that fits best of all and was refuted: what a choice by fit would have been. *best -1: none fits
 * better. */
static fd_code best_refuted(const fd_attribution_options *options, fd_class_cases *c, int32_t least, int32_t *best,
                            fd_error *err) {
    *best = -1;
    for (int32_t i = 1; i < c->n && least > 0; i++) {
        if (!c->refuted[i] || c->at[i].n_beyond >= least) continue;
        FD_TRY(fd_class_case_complete(options, &c->at[i], err));
        if (c->at[i].n_beyond >= least) continue;
        *best = i;
        least = c->at[i].n_beyond;
    }
    return FD_OK;
}

/* Another class that gives all of the sample. What departs from the chosen one is then a bug, or the other class: of one that
 * rounds every product's factors, the router's alone may be the ones that show it. */
static bool is_rival(const fd_class_cases *c, int32_t i) {
    /* it repeats the engine's roundings, and leaves more than binary32 does */
    bool room_alone = fd_class_leaves_nothing(c->at[i].numerics) && c->at[i].n_left > 0;
    return !room_alone && (!c->refuted[i] || c->by_tighter_alone[i]) && c->at[i].n_outside == 0;
}

static void add_rival(fd_class_evidence *to, const fd_numerics_class *rival) {
    to->rivals[to->n_rival < FD_MOST_RIVALS ? to->n_rival++ : FD_MOST_RIVALS - 1] = rival;
}

static void note_rivals(const fd_class_cases *c, int32_t chosen, fd_class_evidence *out) {
    out->outside = c->at[chosen].n_outside > 0;
    bool wide = !fd_class_leaves_nothing(c->at[chosen].numerics);
    for (int32_t i = 0; i < c->n; i++) {
        if (i == chosen || !is_rival(c, i)) continue;
        add_rival(out, c->at[i].numerics);
        wide |= !fd_class_leaves_nothing(c->at[i].numerics);
    }
    /* beside a tight class a coarser one would have been refuted, as would those that were tried */
    for (int32_t i = 0; i < c->n_untried && wide; i++) add_rival(out, c->untried[i]);
}

/* What speaks for another class than the one chosen. */
static fd_code describe(const fd_attribution_options *options, fd_class_cases *c, int32_t chosen, int32_t least,
                        fd_class_evidence *out, fd_error *err) {
    const fd_class_case *finest = &c->at[0];
    int32_t refuted = -1;
    if (finest->first < 0) return FD_OK;
    if (chosen == 0) FD_TRY(best_refuted(options, c, least, &refuted, err));
    snprintf(out->other, sizeof out->other, "%s", c->at[refuted < 0 ? 0 : refuted].numerics->name);
    snprintf(out->node, sizeof out->node, "%s", options->graph->nodes[finest->first].name);
    if (chosen > 0) {
        out->kind = FD_EVIDENCE_STRICTER;
        out->n = finest->n_beyond;
        out->n_of = finest->n_judged;
    } else if (refuted > 0) {
        out->kind = FD_EVIDENCE_FEW;
        out->n = c->at[refuted].n_needed;
        out->n_of = c->at[refuted].n_rounded;
    } else if (c->storage.digits) {
        out->kind = FD_EVIDENCE_STORAGE;
        out->n = c->storage.n_wide;
        out->n_of = c->storage.n_seen;
        out->digits = c->storage.digits;
    }
    return FD_OK;
}

static void note_other_kernels(const fd_evidence *evidence, fd_class_cases *c) {
    int32_t best = -1;
    for (int32_t i = 0; i < c->n; i++)
        if (!c->refuted[i] && (best < 0 || c->at[i].n_beyond < c->at[best].n_beyond)) best = i;
    for (int32_t i = 0; best > 0 && i < c->n; i++)
        c->other_kernel[i] = c->at[i].n_beyond > c->at[best].n_beyond &&
                             (fd_evidence_need(evidence, &c->at[best], &c->at[i]).n_attention_depart > 0 ||
                              fd_evidence_other_kernel(evidence, &c->at[i], &c->at[best]));
}

/* Layers that round nothing but what they hand on are no engine's that rounds more than binary32. */
static void refute_all_but_finest(fd_class_cases *c) {
    for (int32_t i = 1; i < c->n; i++) {
        c->refuted[i] = true;
        c->by_tighter_alone[i] = false;
    }
    c->n_untried = 0;
}

fd_code fd_infer_class(const fd_attribution_options *options, const fd_numerics_class **out,
                       fd_class_evidence *evidence, fd_error *err) {
    fd_evidence seen;
    fd_class_cases c = {0};
    bool doubtful[FD_MOST_CLASSES] = {false};
    *evidence = (fd_class_evidence){0};
    fd_code code = fd_evidence_open(options->graph, options->cand, options->n_pos, &seen, err);
    if (code == FD_OK) code = fd_try_classes(options, &seen, &c, err);
    if (code == FD_OK) fd_refute_by_others(&seen, &c);
    if (code == FD_OK) note_other_kernels(&seen, &c);
    const bool f16_sums = code == FD_OK && fd_evidence_shows_f16_sums(&seen);
    const int32_t n_one_rounding = code == FD_OK ? fd_evidence_n_one_rounding(&seen) : 0;
    if (n_one_rounding > 1) refute_all_but_finest(&c);
    for (int32_t i = 0; i < c.n && code == FD_OK; i++)
        doubtful[i] = fd_evidence_cache_speaks_against(&seen, &c.at[i]) || fd_case_is_for_mix_alone(&seen, &c, i) ||
                      (fd_case_is_for_sums_alone(&c.at[i]) && !f16_sums);
    if (code == FD_OK) {
        int32_t least, chosen = choose(&c, &least);
        if (fd_evidence_shows_f16_cache(&seen) || f16_sums) chosen = fd_case_with_sums_in_16_bits(&c, chosen);
        *out = c.at[chosen].numerics;
        const fd_numerics_class *cached =
            fd_evidence_stores_f16_cache(&seen) ? fd_class_with_f16_cache(c.at[chosen].numerics) : NULL;
        if (cached) *out = cached;
        bool too_large =
            fd_class_leaves_nothing(*out) && c.at[chosen].n_outside > 0 && c.at[chosen].remains > log(MUCH_OF_A_SPAN);
        evidence->few_rows = fd_case_shown_by_few_rows(&c.at[chosen]);
        evidence->undecided =
            !(is_decided(&c, chosen, least) || (f16_sums && fd_case_is_for_sums_alone(&c.at[chosen]))) ||
            doubtful[chosen] || too_large || evidence->few_rows || (n_one_rounding > 0 && chosen > 0);
        evidence->one_tensor = c.at[chosen].n_judged <= 1;
        note_rivals(&c, chosen, evidence);
        code = describe(options, &c, chosen, least, evidence, err);
    }
    fd_evidence_close(&seen);
    for (int32_t i = 0; i < c.n; i++) fd_class_case_free(&c.at[i]);
    return code;
}

fd_code fd_class_of_16_bit_values(const fd_attribution_options *options, const fd_numerics_class *given,
                                  const fd_numerics_class **out, fd_error *err) {
    fd_attribution_options how = *options;
    const fd_numerics_class *shown;
    fd_class_evidence unused;
    bool factors_alone = given->u_in > 0x1p-24 && given->u_out <= 0x1p-24 && !given->q8_activations;
    *out = given;
    if (!factors_alone || fd_class_sums_in_16_bits(given) || given->fast_math) return FD_OK;
    FD_TRY(fd_infer_class(&how, &shown, &unused, err));
    bool same_type = shown->u_out >= given->u_in && shown->u_out <= given->u_in;
    if (same_type) *out = shown;
    return FD_OK;
}
