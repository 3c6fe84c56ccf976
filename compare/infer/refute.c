#include "compare/infer/refute.h"

/* Fewer tensors say nothing of a class that has room for them. */
enum { FEWEST_TOLD = 3, FEW_KINDS = 3 };

static bool in_one_layer(const fd_class_need *need) {
    return need->n_depart == 0;
}

/* `tight` repeats the engine's roundings: nearly all products are what it says to the last bits, and `wide` has room for
 * them alone. In one layer, or in one kind of tensor, what is left is a bug; everywhere in attention it may be how the
 * engine's kernel computes that. */
static bool has_room_alone(const fd_class_need *need) {
    if (need->n_needed == 0 || need->n_rounded < FEWEST_TOLD) return false;
    bool one_kind = need->n_products >= FEWEST_TOLD && FEW_KINDS * need->n_products_depart <= need->n_products;
    return in_one_layer(need) || (one_kind && need->n_attention_depart == 0);
}

/* All products are what `tight` says to the last bits, and so are the weighted sums of V, where kernels differ most. Of the scores'
 * factors it says the roundings as well: no other kernel rounds scores, or one of the caches, and nothing else. */
static bool knows_attention(const fd_numerics_class *tight, const fd_class_need *need) {
    bool products = need->n_products_fit >= FEWEST_TOLD && need->n_products_fit == need->n_products;
    bool mix = need->n_mix_fit > 0 && need->n_mix_depart == 0;
    return !(tight->u_factor > 0) && products && mix && need->n_attention_depart == 1;
}

/* Sums in 16 bits leave something of every product: where `tight` explains a kind of them, the engine's are in binary32. */
static bool sums_as_tight(const fd_numerics_class *wide, const fd_class_need *need) {
    return wide->u_acc > 0x1p-24 && need->n_products_fit > 0;
}

/* Classes with room for a bug, where a class that repeats the engine's roundings explains what is sound. One that leaves nothing itself, as
 * binary32 with a cache of 16 bits, has no such room: what departs from both is a bug in either. */
static void refute_by_tighter(const fd_evidence *evidence, fd_class_cases *c) {
    for (int32_t i = 1; i < c->n; i++)
        for (int32_t j = 1; j < c->n && !c->refuted[i]; j++) {
            if (c->at[i].numerics->replays_inputs || c->at[i].numerics->either || !c->at[j].numerics->replays_inputs ||
                c->refuted[j] || fd_case_leaves_nothing(&c->at[i]))
                continue;
            fd_class_need need = fd_evidence_need(evidence, &c->at[i], &c->at[j]);
            bool other_sums = sums_as_tight(c->at[i].numerics, &need) ||
                              (need.n_products >= FEWEST_TOLD &&
                               fd_evidence_factors_are_others(evidence, &c->at[i], &c->at[j], &need));
            if (!other_sums && !has_room_alone(&need) && !knows_attention(c->at[j].numerics, &need)) continue;
            c->refuted[i] = true;
            c->by_tighter_alone[i] = !other_sums && !in_one_layer(&need);
            c->at[i].n_needed = need.n_needed;
            c->at[i].n_rounded = need.n_rounded;
        }
}

/* Sums of 16 bits have room for products that an engine of mixed precision shows to their last bits. Where one row of another
 * layer then departs by little, they were such sums all the same. */
static void refute_by_mixed(fd_class_cases *c) {
    bool mixed = false;
    for (int32_t i = 1; i < c->n; i++)
        mixed |= c->at[i].numerics->u_shown > 0 && !c->refuted[i] && c->at[i].n_outside == 0;
    for (int32_t i = 1; i < c->n && mixed; i++) {
        if (c->refuted[i] || !fd_class_sums_in_16_bits(c->at[i].numerics)) continue;
        c->refuted[i] = c->by_tighter_alone[i] = true;
    }
}

/* int8 blocks are in all products or in none: where binary32 explains several kinds of them, the others are a bug's as well. */
static void refute_by_kinds(const fd_evidence *evidence, fd_class_cases *c) {
    for (int32_t i = 1; i < c->n; i++) {
        const fd_numerics_class *wide = c->at[i].numerics;
        if (c->refuted[i] || !wide->q8_activations || wide->replays_inputs) continue;
        const fd_class_need need = fd_evidence_need(evidence, &c->at[i], &c->at[0]);
        if (need.n_products_depart > 0 && need.n_products_fit > 1) c->refuted[i] = c->by_tighter_alone[i] = true;
    }
}

/* Of products that were recorded with what they read it is known whether their factors were cut off. Where none were, in an engine that
 * multiplies with them, its bounds have room for something else. */
static void refute_cut_factors(const fd_evidence *evidence, fd_class_cases *c) {
    for (int32_t i = 1; i < c->n; i++) {
        const fd_numerics_class *wide = c->at[i].numerics;
        for (int32_t j = 1; j < c->n && wide->either && wide->in_truncates && !c->refuted[i]; j++) {
            const fd_numerics_class *rounds = c->at[j].numerics;
            if (rounds->either && !rounds->in_truncates && fd_evidence_same_products(evidence, &c->at[i], &c->at[j]))
                c->refuted[i] = c->by_tighter_alone[i] = true; /* of attention, which is not asked, it may be true */
        }
    }
}

bool fd_case_is_for_mix_alone(const fd_evidence *evidence, const fd_class_cases *c, int32_t wide) {
    bool yes = false;
    if (!c->at[wide].numerics->fast_math || fd_class_leaves_nothing(c->at[wide].numerics)) return false;
    for (int32_t j = 0; j < c->n && !yes; j++) {
        if (c->refuted[j] || !fd_class_leaves_nothing(c->at[j].numerics)) continue;
        const fd_class_need need = fd_evidence_need(evidence, &c->at[wide], &c->at[j]);
        const bool products = need.n_products_fit >= FEWEST_TOLD && need.n_products_fit == need.n_products;
        yes = products && need.n_mix_depart == 1 && need.n_depart == 1;
    }
    return yes;
}

void fd_refute_by_others(const fd_evidence *evidence, fd_class_cases *c) {
    refute_by_tighter(evidence, c);
    refute_by_mixed(c);
    refute_by_kinds(evidence, c);
    refute_cut_factors(evidence, c);
    if (fd_evidence_shows_f16_sums(evidence)) fd_refute_sums_in_binary32(c);
}
