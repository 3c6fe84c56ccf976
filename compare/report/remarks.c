#include "compare/report/remarks.h"

#include <stdio.h>

#define SAY(...) snprintf(to, FD_REMARK_SIZE, __VA_ARGS__)

static const char *stated(const fd_verdict_side *side) {
    return side->numerics[0] ? side->numerics : "not stated";
}

const char *fd_remark_text(const fd_verdict *v, const fd_remark *r, char to[FD_REMARK_SIZE]) {
    const fd_verdict_side *side = r->side ? &v->cand : &v->ref;
    const char *role = r->side ? "candidate" : "reference";
    const long long a = r->n[0], b = r->n[1], c = r->n[2];
    to[0] = '\0';
    switch (r->kind) {
    case FD_REASON_NOT_SEEN: SAY("%lld tensor%s could not be looked at", a, a == 1 ? "" : "s"); break;
    case FD_REASON_UNMATCHED:
        SAY("%lld of the candidate's names %s no node's by the map, and %s not looked at: %.127s", a,
            a == 1 ? "is" : "are", a == 1 ? "was" : "were", r->text);
        break;
    case FD_REASON_NOTHING_COMPARED: SAY("nothing to compare"); break;
    case FD_REASON_RUN_STOPPED:
        SAY("the %s %.160s is incomplete: its run stopped after %lld positions", role, side->label, a);
        break;
    case FD_REASON_POSITIONS_DIFFER: SAY("the reference has %lld positions, the candidate %lld", a, b); break;
    case FD_REASON_TOKENS_UNRECORDED: SAY("the tokens are not recorded on both sides"); break;
    case FD_REASON_TRACE_TOKENS_UNRECORDED: SAY("the trace's tokens are not recorded"); break;
    case FD_REASON_TRACE_SHORT: SAY("%lld tokens to run, the trace has %lld positions", a, b); break;
    case FD_REASON_OTHER_ARCH: SAY("different models: architecture %s against %s", v->ref.arch, v->cand.arch); break;
    case FD_REASON_OTHER_MODEL:
        SAY("different models: %.60s (%s) against %.60s (%s)", v->ref.model_name, v->ref.model_hash, v->cand.model_name,
            v->cand.model_hash);
        break;
    case FD_REASON_PROMPTS_DIFFER:
        SAY("cannot tell: the prompts differ from position %lld on (token %lld against %lld)%s", a, b, c,
            r->flag ? "" : ", and their texts are not recorded on both sides");
        break;
    case FD_REASON_TENSORS_SHOWN:
        SAY("the executors showed %lld tensors, the graph has %lld in each of %lld steps", a, b, c);
        break;
    case FD_REASON_SPAN_INCONCLUSIVE:
        SAY("cannot tell at %s: rounding from %s on, which was not recorded, may hide an error there; record '%s'",
            r->node, r->other, r->text);
        break;
    case FD_REASON_CHOICE_UNRECORDED:
        SAY("cannot tell: the tokens part at position %lld, and what either side chose is not recorded", a);
        break;
    case FD_REASON_ONE_POSITION:
        SAY("cannot tell from one position: RoPE is the identity at position 0 and attention has one weight");
        break;
    case FD_REASON_MIXED_CLASS:
        SAY("cannot tell whether the engine is meant so or has a bug: %s: %s, and so in every layer, while nothing "
            "else "
            "departs",
            r->node, r->text);
        break;
    case FD_REASON_CLASS_UNDECIDED:
        if (v->replay.evidence.yielded) {
            SAY("cannot tell whether the engine rounds as %s, or as %s and has a bug at %s; record more of the ops, or "
                "give --candidate",
                v->replay.numerics, v->replay.evidence.other, v->replay.evidence.node);
            break;
        }
        if (v->replay.evidence.few_rows) {
            SAY("cannot tell: some rows are to their last bits what %s gives, and most are off by as much as one value "
                "on the other side of a step leaves, or a bug; record more of the ops",
                v->replay.numerics);
            break;
        }
        SAY("cannot tell whether the engine rounds as %s or has a bug: no tensor shows that class but by having room "
            "for the "
            "errors; record more of the ops, or give --candidate",
            v->replay.numerics);
        break;
    case FD_REASON_PRINTED:
        SAY("cannot tell: %s was printed with %lld %s and read back, and so were %lld of %lld tensors looked at: no "
            "bound knows "
            "that; write nine significant digits (%%.9g) or binary values",
            r->node, a, r->flag ? "decimals" : "significant digits", b, c);
        break;
    case FD_REASON_NARROW:
        SAY("cannot tell: all values of %s, and of %lld tensors like it, are %s, where %s keeps binary32: the engine "
            "rounds them, "
            "or they were saved so; write them as the engine has them",
            r->node, a, r->other, v->replay.numerics);
        break;
    case FD_REASON_RESIDUAL:
        SAY("cannot tell at %s: %.16s of it is left in %lld rows, where %s leaves a millionth: a bug within the "
            "bounds, or "
            "a value rounded to the other side that stayed in the K/V cache; record '%s'",
            r->node, r->other, a, v->replay.numerics, r->text);
        break;
    case FD_REASON_ONE_STEP:
        SAY("cannot tell at %s: position %lld alone is beyond, by less than twice: a bug, or a value that %s rounds to "
            "the other side of a "
            "step; record '%s'",
            r->node, a, v->replay.numerics, r->text);
        break;
    case FD_REASON_LARGE_ERRORS:
        SAY("cannot tell at %s: %.16s of it is left, and too much in %lld rows, where %s leaves %.1e as a rule: a bug "
            "within "
            "the bounds, or another class; record '%s', or give --candidate",
            r->node, r->other, a, v->replay.numerics, (double)r->n[1] * 1e-12, r->text);
        break;
    case FD_REASON_WHOLE_ERROR:
        SAY("cannot tell: within the bounds of every op, but the logits have an NMSE of %s over %lld rows%.30s, and "
            "an engine "
            "that rounds as %s of %s: a bug that adds up, or another class; record more of the ops, or give "
            "--candidate",
            r->node, a, r->text, v->replay.numerics, r->other);
        break;
    case FD_REASON_LOCAL_ERROR:
        SAY("cannot tell: %s is within its bounds, but from its recorded inputs it has an NMSE of %.9s over %lld rows "
            "from "
            "position %lld on, and an engine that rounds as %s of %.9s: a small bug there, or another class; give "
            "--candidate",
            r->node, r->text, a, b, v->replay.numerics, r->other);
        break;
    case FD_REMARK_RANKS_DISAGREE:
        SAY("ranks disagree at %s, step %lld, position %lld: %s%s", r->node, a, b, r->text,
            c > 0 ? "; at more places after that (firstdiff import --ranks lists them)" : "");
        break;
    case FD_NOTE_MODEL_UNRECORDED: SAY("which model ran is not recorded on both sides: not checked"); break;
    case FD_NOTE_CONTRACTS_DIFFER:
        SAY("numerics contract %d against %d: rounding alone can make them differ", v->ref.contract, v->cand.contract);
        break;
    case FD_NOTE_NUMERICS_DIFFER:
        SAY("numerics %s against %s: compared bit for bit, rounding alone can make them differ%s", stated(&v->ref),
            stated(&v->cand),
            v->replay.done || v->divergence.kind == FD_NO_DIVERGENCE ? "" : "; --model MODEL.gguf tells it from a bug");
        break;
    case FD_NOTE_TOKENIZERS_DIFFER:
        SAY("one prompt, but other tokens from position %lld on: the tokenizers differ", a);
        break;
    case FD_NOTE_BOS_MISSING: SAY("the %s lacks the BOS, token %lld; all else in the prompts is equal", role, a); break;
    case FD_NOTE_BOS_TWICE:
        SAY("the %s has the BOS, token %lld, twice; all else in the prompts is equal", role, a);
        break;
    case FD_NOTE_BOS_TWICE_IN_BOTH:
        SAY("both prompts begin with the BOS, token %lld, twice: a template may have one, and the tokenizer add "
            "another",
            a);
        break;
    case FD_NOTE_SPECIAL_SPLIT:
        SAY("the %s has the special token %lld (%s) of position %lld split into %lld pieces of text", role, a, r->text,
            b, c);
        break;
    case FD_NOTE_TRACE_LONGER: SAY("the first %lld of the trace's %lld positions were run", b, a); break;
    case FD_NOTE_HIGHEST_OF_TIE:
        SAY("the %s went on with token %lld, whose logit equals that of token %lld: the lowest id of a tie is the best "
            "token",
            role, a, b);
        break;
    case FD_NOTE_FAR_OFF:
        SAY("the logits of %lld of %lld rows are off by a quarter of their size or more, and those of an engine that "
            "rounds as %s by less than a "
            "seventh of that; which op it was, bounds from logits alone do not tell: record '%s'",
            a, b, v->replay.numerics, r->text);
        break;
    case FD_NOTE_FIRST_BITS: SAY("the first bits differ at %s, step %lld, position %lld", r->node, a, b); break;
    case FD_NOTE_NO_ELEMENTS:
        SAY("replay needs the candidate's elements, and %.150s holds none (record it with --level full)", r->text);
        break;
    case FD_NOTE_TENSORS_OF_16_BITS:
        SAY("all values have 16 bits, where %s has tensors in binary32: if your engine keeps its tensors so, give "
            "--candidate %s",
            r->node, r->other);
        break;
    case FD_NOTE_READS_UNROUNDED:
        SAY("%s and its like follow from their inputs as these were before they were rounded to what is recorded: "
            "kernels "
            "are fused, or compute in more bits",
            r->node);
        break;
    case FD_NOTE_NAME_ENDS:
        SAY("the name does not give %s at position %lld, step %lld: there is a second bug, or the first does more than "
            "its "
            "name says",
            r->node, b, a);
        break;
    case FD_NOTE_REFERENCE_DEPARTS:
        SAY("the candidate follows from its own inputs everywhere: it is the reference that departs here");
        break;
    case FD_NOTE_BASELINE_NOT_SEEN:
        SAY("before it diverged at %s: not seen again, but not everything could be looked at", r->text);
        break;
    case FD_NOTE_RERUN_AGREES:
        SAY("run again and recorded, the two agree: a side does not compute the same in every run");
        break;
    case FD_NOTE_RERUN_TOO_LARGE:
        SAY("not replayed: traces of both runs would take %.1f GiB, more than %.0f GiB; use fewer tokens",
            (double)a / 1024, (double)b / 1024);
        break;
    }
    return to;
}

static const char *text_at(const fd_verdict *v, const fd_remarks *of, int32_t i, char to[FD_REMARK_SIZE]) {
    to[0] = '\0';
    return i >= 0 && i < of->n && i < FD_MAX_REMARKS ? fd_remark_text(v, &of->items[i], to) : to;
}

const char *fd_class_evidence_text(const fd_class_evidence *e, char to[FD_REMARK_SIZE]) {
    to[0] = '\0';
    switch (e->kind) {
    case FD_EVIDENCE_NONE: break;
    case FD_EVIDENCE_STRICTER:
        SAY("%s would not do: first at %s, %d of %d tensors looked at; if your engine is %s, give --candidate %s",
            e->other, e->node, e->n, e->n_of, e->other, e->other);
        break;
    case FD_EVIDENCE_FEW:
        SAY("not %s, though it has room for these errors: %d of %d tensors that it rounds show any; if your engine is "
            "%s, "
            "give --candidate %s",
            e->other, e->n, e->n_of, e->other, e->other);
        break;
    case FD_EVIDENCE_STORAGE:
        SAY("no class of 16-bit tensors: %d of %d have values that %d bits of mantissa cannot hold", e->n, e->n_of,
            e->digits);
        break;
    case FD_EVIDENCE_BUG:
        SAY("not %s, though it has room for these errors: with the bug below a stricter class gives %s; if your "
            "engine is %s, give --candidate %s",
            e->other, e->node, e->other, e->other);
        break;
    }
    return to;
}

const char *fd_reason_text(const fd_verdict *verdict, int32_t i, char to[FD_REMARK_SIZE]) {
    return text_at(verdict, &verdict->reasons, i, to);
}

const char *fd_note_text(const fd_verdict *verdict, int32_t i, char to[FD_REMARK_SIZE]) {
    return text_at(verdict, &verdict->notes, i, to);
}
