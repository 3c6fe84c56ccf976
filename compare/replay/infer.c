#include "compare/replay/infer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/bounds/dot_inputs.h"
#include "compare/replay/evidence.h"
#include "compare/replay/in_order.h"
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

/* Unit roundoff of the type in which most of the trace's tensors are stored: an engine that keeps them in 16 bits
 * rounds every result to 16 bits. */
static double stored_roundoff(const fd_trace *trace) {
    int32_t n = 0, n_f16 = 0, n_bf16 = 0;
    for (int32_t i = 0; i < fd_trace_n_node(trace); i++) {
        const fd_trace_node *node = fd_trace_node_at(trace, i);
        n += node->has_data;
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
        if (storage.n_stored > 0 && storage.n_wide == 0) return class_->u_out;
    }
    return 0;
}

/* Scores or weights in the trace have left the kernel: attention is not fused. */
static bool shows_attention(const fd_attribution_options *options) {
    for (int32_t i = 0; i < options->graph->n_node; i++) {
        const fd_node *node = &options->graph->nodes[i];
        if (node->op != FD_OP_ATTN_SCORES && node->op != FD_OP_ATTN_SOFTMAX) continue;
        if (fd_trace_has_data(options->cand, node->name)) return true;
    }
    return false;
}

/* Fewer tensors say nothing of a class that has room for them. */
enum { MOST = 24, NODES_OF_A_BUG = 50, FEWEST_TOLD = 3, FEW_KINDS = 3 };

/* A stricter class stays where another leaves a little less by chance. */
#define MUCH_LESS 0.35

typedef struct cases {
    fd_class_case at[MOST]; /* the finest first */
    bool refuted[MOST];
    bool other_attention[MOST]; /* all of a kind of attention's tensors is as a class says that leaves fewer beyond */
    int32_t n;
    fd_storage storage; /* of the widest type that was refuted; digits 0: none */
    double stored;      /* unit roundoff of what most tensors are stored in, or of what all values have */
} cases;

/* A bug in a few tensors is no reason for a coarser class, a kernel that computes attention in its own way is one. */
static bool fits(const cases *c, int32_t i, int32_t least) {
    int32_t of_a_bug = c->other_attention[i] ? 0 : c->at[i].n_judged / NODES_OF_A_BUG;
    return c->at[i].n_beyond <= least + of_a_bug;
}

static int32_t n_unexplained(const fd_class_case *c) {
    return c->n_left + c->n_failed;
}

/* Of most tensors both leave nothing. */
static bool leaves_less(const fd_class_case *a, const fd_class_case *b) {
    int32_t more = n_unexplained(a) - n_unexplained(b);
    if (more != 0) return more < 0;
    if (a->remains < b->remains - MUCH_LESS || b->remains < a->remains - MUCH_LESS) return a->remains < b->remains;
    return a->n_rows_left < b->n_rows_left;
}

/* The class that leaves nothing of most tensors, of several the one that leaves least; -1: there is none. */
static int32_t leaves_least(const cases *c) {
    int32_t best = -1;
    for (int32_t i = 0; i < c->n; i++) {
        if (!fd_case_leaves_nothing(&c->at[i]) || (c->refuted[i] && n_unexplained(&c->at[i]) > 0)) continue;
        if (best < 0 || leaves_less(&c->at[i], &c->at[best])) best = i;
    }
    return best;
}

/* The strictest class that fits and is not refuted; of a trace in 16 bits one of as few, because finer classes fit
 * as well where those bits hide what they would have kept. */
static int32_t choose(const cases *c, int32_t *least) {
    int32_t leaves_nothing = leaves_least(c), chosen = 0, same_type = -1;
    bool another = false; /* shows itself, and fits where that one does not */
    *least = INT32_MAX;
    for (int32_t i = 0; i < c->n; i++)
        if (!c->refuted[i] && c->at[i].n_beyond < *least) *least = c->at[i].n_beyond;
    for (int32_t i = 1; i < c->n; i++) another |= !c->refuted[i] && fits(c, i, *least) && fd_case_shown(&c->at[i]);
    bool explains =
        leaves_nothing >= 0 && NODES_OF_A_BUG * n_unexplained(&c->at[leaves_nothing]) <= c->at[leaves_nothing].n_judged;
    if (leaves_nothing >= 0 && (explains || fits(c, leaves_nothing, *least) || !another)) {
        *least = c->at[leaves_nothing].n_beyond;
        return leaves_nothing;
    }
    for (int32_t i = c->n - 1; i >= 0; i--) {
        bool of_type = c->at[i].numerics->u_out >= c->stored;
        if (c->refuted[i]) continue;
        if (fits(c, i, *least)) chosen = i;
        /* wide bounds are no reason against the type that the values have */
        if (of_type && (fits(c, i, *least) || (c->stored > 0x1p-24 && c->at[i].n_outside == 0))) same_type = i;
    }
    return same_type >= 0 ? same_type : chosen;
}

/* The class itself is shown, or one that fits as well and says less: f16 where products round and attention does
 * not. */
static bool is_decided(const cases *c, int32_t chosen, int32_t least) {
    bool decided = chosen == 0 || fd_case_leaves_nothing(&c->at[chosen]) ||
                   c->stored > 0x1p-24; /* 16 bits in the trace show themselves */
    for (int32_t i = 1; i < c->n; i++) decided |= !c->refuted[i] && fits(c, i, least) && fd_case_shown(&c->at[i]);
    return decided;
}

/* The strictest class that fits best of all and was refuted: what a choice by fit would have been. -1: none fits
 * better. */
static int32_t best_refuted(const cases *c, int32_t least) {
    int32_t best = -1;
    for (int32_t i = 1; i < c->n; i++)
        if (c->refuted[i] && c->at[i].n_beyond < least && (best < 0 || c->at[i].n_beyond < c->at[best].n_beyond))
            best = i;
    return best;
}

/* The strictest class that gives everything where the chosen one does not. What departs from that one is then a bug, or the
 * other class. */
static int32_t rival_of(const cases *c, int32_t chosen) {
    for (int32_t i = 0; i < c->n && c->at[chosen].n_outside > 0; i++)
        if (i != chosen && !c->refuted[i] && c->at[i].n_outside == 0) return i;
    return -1;
}

/* What speaks for another class than the one chosen. */
static void describe(const fd_graph *graph, const cases *c, int32_t chosen, int32_t least, fd_class_evidence *out) {
    const fd_class_case *finest = &c->at[0];
    int32_t refuted = best_refuted(c, least);
    if (finest->first < 0) return;
    snprintf(out->other, sizeof out->other, "%s", c->at[chosen > 0 || refuted < 0 ? 0 : refuted].numerics->name);
    snprintf(out->node, sizeof out->node, "%s", graph->nodes[finest->first].name);
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
        out->n_of = c->storage.n_stored;
        out->digits = c->storage.digits;
    }
}

/* `tight` repeats the engine's roundings: nearly all products are what it says to the last bits, and `wide` has room for
 * them alone. In one layer, or in one kind of tensor, what is left is a bug; everywhere in attention it may be how the
 * engine's kernel computes that. */
static bool has_room_alone(const fd_class_need *need) {
    if (need->n_needed == 0 || need->n_rounded < FEWEST_TOLD) return false;
    bool one_layer = need->n_depart == 0;
    bool one_kind = need->n_products >= FEWEST_TOLD && FEW_KINDS * need->n_products_depart <= need->n_products;
    return one_layer || (one_kind && need->n_attention_depart == 0);
}

/* Classes with room for a bug, where a class that repeats the engine's roundings explains what is sound. */
static void refute_by_tighter(const fd_evidence *evidence, cases *c) {
    for (int32_t i = 1; i < c->n; i++)
        for (int32_t j = 1; j < c->n && !c->refuted[i]; j++) {
            if (c->at[i].numerics->replays_inputs || !c->at[j].numerics->replays_inputs || c->refuted[j]) continue;
            fd_class_need need = fd_evidence_need(evidence, &c->at[i], &c->at[j]);
            if (!has_room_alone(&need)) continue;
            c->refuted[i] = true;
            c->at[i].n_needed = need.n_needed;
            c->at[i].n_rounded = need.n_rounded;
        }
}

static void note_attention(const fd_evidence *evidence, cases *c) {
    int32_t best = -1;
    for (int32_t i = 0; i < c->n; i++)
        if (!c->refuted[i] && (best < 0 || c->at[i].n_beyond < c->at[best].n_beyond)) best = i;
    for (int32_t i = 0; best > 0 && i < c->n; i++)
        c->other_attention[i] = c->at[i].n_beyond > c->at[best].n_beyond &&
                                fd_evidence_need(evidence, &c->at[best], &c->at[i]).n_attention_depart > 0;
}

/* ---- trying them ---- */

typedef struct search {
    const fd_attribution_options *o;
    fd_evidence seen;
    const fd_numerics_class *class_[MOST]; /* that may be the engine's, the finest first */
    fd_class_case cases[MOST];             /* owned; those that are looked at are borrowed by `found` */
    int32_t n;
    bool explained; /* by a class that leaves nothing: the others have room alone */
    cases found;
} search;

/* Those that exist whatever the values are: the trace's form may exclude some. */
static void list_classes(search *s) {
    bool shown = shows_attention(s->o);
    for (int32_t i = 0; fd_numerics_class_at(i) && s->n < MOST; i++) {
        const fd_numerics_class *class_ = fd_numerics_class_at(i);
        if (class_->exact || class_->u_out < 0x1p-24) continue; /* claimed by a trace, never guessed */
        if (class_->fused_attention && shown) continue;
        if (!fd_class_is_another(class_, s->o->graph)) continue;
        s->class_[s->n++] = class_;
    }
}

/* The trace keeps more than such an engine has. */
static bool is_too_coarse(const search *s, int32_t i) {
    if (i > 0 && fd_evidence_refutes_table(&s->seen, s->class_[i])) return true;
    return s->found.stored > 0x1p-24 && s->class_[i]->u_out > s->found.stored;
}

static bool storage_refutes(const search *s, int32_t i) {
    fd_storage storage = fd_evidence_storage(&s->seen, s->class_[i]);
    return i > 0 && fd_storage_refutes(&storage);
}

/* fd_jobs.needless */
static bool is_needless(void *user, int32_t i) {
    const search *s = user;
    return is_too_coarse(s, i) || storage_refutes(s, i) || (s->explained && !fd_class_leaves_nothing(s->class_[i]));
}

/* fd_jobs.run */
static fd_code try_class(void *user, int32_t i, fd_error *err) {
    search *s = user;
    fd_attribution_options how = *s->o;
    fd_attribution found;
    FD_TRY(fd_class_case_open(&s->seen, s->class_[i], &s->cases[i], err));
    how.ref = NULL; /* what was inherited says nothing about the class */
    how.numerics = s->class_[i];
    how.sample = true;
    how.on_row = fd_evidence_add;
    how.progress = NULL;
    how.user = &s->cases[i];
    fd_code code = fd_attribute_errors(&how, &found, err);
    fd_attribution_free(&found);
    if (code == FD_OK) fd_evidence_weigh(&s->cases[i]);
    return code;
}

/* fd_jobs.take: false when no coarser class is worth trying. */
static bool take_case(void *user, int32_t i) {
    search *s = user;
    cases *c = &s->found;
    if (s->o->progress) s->o->progress(s->o->user, i + 1, s->n);
    if ((s->explained && !fd_class_leaves_nothing(s->class_[i])) || is_too_coarse(s, i)) return true;
    if (storage_refutes(s, i)) {
        fd_storage storage = fd_evidence_storage(&s->seen, s->class_[i]);
        if (storage.digits > c->storage.digits) c->storage = storage;
        return true;
    }
    const fd_class_case *own = &s->cases[i];
    c->at[c->n] = *own;
    bool refuted = c->refuted[c->n] = c->n > 0 && fd_case_refuted(own);
    c->n++;
    if (c->n == 1) c->stored = fmax(c->stored, shown_roundoff(&s->seen));
    bool sure = c->n == 1 || c->stored > 0x1p-24 || (!refuted && fd_case_shown(own));
    s->explained |= fd_case_leaves_nothing(own) && n_unexplained(own) == 0;
    bool left = fd_class_leaves_nothing(own->numerics) && (own->n_left > 0 || own->loses_to_steps);
    bool explains_all = own->n_beyond == 0 && !left && own->numerics->u_out >= c->stored && sure;
    return !explains_all && c->n < MOST;
}

/* The finest by itself: what it leaves, and what was seen of storage, says which others are worth it. */
static fd_code try_classes(search *s, fd_error *err) {
    list_classes(s);
    const fd_jobs others = {1, s->n, 0, s, is_needless, try_class, take_case};
    FD_TRY(try_class(s, 0, err));
    return !take_case(s, 0) ? FD_OK : fd_run_in_order(&others, err);
}

fd_code fd_infer_class(const fd_attribution_options *options, const fd_numerics_class **out,
                       fd_class_evidence *evidence, fd_error *err) {
    search s = {.o = options, .found = {.stored = stored_roundoff(options->cand)}};
    cases *c = &s.found;
    *evidence = (fd_class_evidence){0};
    fd_code code = fd_evidence_open(options->graph, options->cand, options->n_pos, &s.seen, err);
    if (code == FD_OK) code = try_classes(&s, err);
    if (code == FD_OK) refute_by_tighter(&s.seen, c);
    if (code == FD_OK) note_attention(&s.seen, c);
    bool doubtful[MOST] = {false};
    for (int32_t i = 0; i < c->n && code == FD_OK; i++)
        doubtful[i] = fd_evidence_cache_speaks_against(&s.seen, &c->at[i]);
    fd_evidence_close(&s.seen);
    for (int32_t i = 0; i < MOST; i++) fd_class_case_free(&s.cases[i]);
    if (code != FD_OK) return code;
    int32_t least, chosen = choose(c, &least), rival = rival_of(c, chosen);
    *out = c->at[chosen].numerics;
    evidence->undecided = !is_decided(c, chosen, least) || doubtful[chosen];
    describe(options->graph, c, chosen, least, evidence);
    if (rival >= 0) snprintf(evidence->rival, sizeof evidence->rival, "%s", c->at[rival].numerics->name);
    return FD_OK;
}
