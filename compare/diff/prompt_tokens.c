#include "compare/diff/prompt_tokens.h"

#include <stdio.h>
#include <string.h>

/* `a` without its first token is `b`. */
static bool is_tail(fd_prompt_ids a, fd_prompt_ids b) {
    return a.n == b.n + 1 && b.n > 0 && memcmp(a.ids + 1, b.ids, sizeof *b.ids * (size_t)b.n) == 0;
}

static bool bos_missing(int32_t bos, fd_prompt_ids right, fd_prompt_ids asked) {
    return is_tail(right, asked) && right.ids[0] == bos && asked.ids[0] != bos;
}

/* What was meant is one BOS followed by something else; three in a row are not this bug. */
static bool bos_twice(int32_t bos, fd_prompt_ids right, fd_prompt_ids asked) {
    return is_tail(asked, right) && asked.ids[0] == bos && asked.ids[1] == bos && right.n > 1 && right.ids[1] != bos;
}

/* A template has it, and the tokenizer adds it: where the reference is run with the candidate's tokens no other prompt shows it. */
static bool bos_twice_in_both(int32_t bos, fd_prompt_ids a, fd_prompt_ids b) {
    if (a.n != b.n || a.n < 3 || memcmp(a.ids, b.ids, sizeof *a.ids * (size_t)a.n) != 0) return false;
    return a.ids[0] == bos && a.ids[1] == bos && a.ids[2] != bos;
}

enum { MAX_TEXT = 256 };

/* A control token's text; 0: not a control token, or too long. */
static int32_t special_text(const fd_tokenizer *tokenizer, int32_t id, char text[MAX_TEXT]) {
    char plain[MAX_TEXT];
    if (fd_token_bytes(tokenizer, id, false, plain, MAX_TEXT) != 0) return 0;
    int32_t n = fd_token_bytes(tokenizer, id, true, text, MAX_TEXT);
    return n > 0 && n <= MAX_TEXT ? n : 0;
}

/* How many of the ids spell `text`, in at least two ordinary pieces; 0: they do not. The last may go on after it, and a
 * SentencePiece vocabulary puts a blank before the first. */
static int32_t pieces_of(const fd_tokenizer *tokenizer, fd_prompt_ids from, const char *text, int32_t n_text) {
    char spelt[2 * MAX_TEXT];
    int32_t n = 0;
    for (int32_t i = 0; i < from.n; i++) {
        int32_t size = fd_token_bytes(tokenizer, from.ids[i], false, spelt + n, (int32_t)sizeof spelt - n);
        if (size <= 0 || size > (int32_t)sizeof spelt - n) return 0;
        n += size;
        int32_t blank = spelt[0] == ' ' && text[0] != ' ', known = n - blank < n_text ? n - blank : n_text;
        if (memcmp(spelt + blank, text, (size_t)known) != 0) return 0;
        if (known == n_text) return i > 0 ? i + 1 : 0;
    }
    return 0;
}

static bool find_split_token(const fd_tokenizer *tokenizer, fd_prompt_ids whole, fd_prompt_ids asked, fd_remark *out) {
    int32_t n = whole.n < asked.n ? whole.n : asked.n, p = 0;
    char text[MAX_TEXT];
    while (p < n && whole.ids[p] == asked.ids[p]) p++;
    if (p == n) return false;
    int32_t n_text = special_text(tokenizer, whole.ids[p], text);
    int32_t n_piece = n_text ? pieces_of(tokenizer, (fd_prompt_ids){asked.ids + p, asked.n - p}, text, n_text) : 0;
    if (!n_piece) return false;
    *out = (fd_remark){FD_NOTE_SPECIAL_SPLIT, .n = {whole.ids[p], p, n_piece}};
    snprintf(out->text, sizeof out->text, "%.*s", n_text > 64 ? 64 : n_text, text);
    return true;
}

bool fd_prompt_tokens_find(const fd_tokenizer *tokenizer, const fd_prompt_ids sides[2], fd_remark *out) {
    int32_t bos = fd_tokenizer_bos(tokenizer);
    if (bos >= 0 && bos_twice_in_both(bos, sides[0], sides[1])) {
        *out = (fd_remark){FD_NOTE_BOS_TWICE_IN_BOTH, .n = {bos}};
        return true;
    }
    for (int k = 1; k >= 0; k--) { /* the candidate is asked first */
        bool missing = bos >= 0 && bos_missing(bos, sides[!k], sides[k]);
        bool twice = bos >= 0 && bos_twice(bos, sides[!k], sides[k]);
        if (missing || twice)
            *out = (fd_remark){missing ? FD_NOTE_BOS_MISSING : FD_NOTE_BOS_TWICE, .n = {bos}};
        else if (!find_split_token(tokenizer, sides[!k], sides[k], out))
            continue;
        out->side = k;
        return true;
    }
    return false;
}

static fd_prompt_ids prompt_of(const fd_trace *trace) {
    const fd_trace_step *steps = fd_trace_steps(trace);
    int32_t n = 0;
    for (int32_t i = 0; i < fd_trace_n_step(trace) && steps[i].kind == FD_STEP_PREFILL; i++)
        n = steps[i].pos0 + steps[i].n_pos;
    return (fd_prompt_ids){fd_trace_tokens(trace), n < fd_trace_n_pos(trace) ? n : fd_trace_n_pos(trace)};
}

void fd_prompt_tokens_note(const fd_tokenizer *tokenizer, const fd_trace *ref, const fd_trace *cand,
                           fd_verdict *verdict) {
    fd_remark found;
    if (!tokenizer) return;
    fd_prompt_ids sides[2] = {prompt_of(ref), prompt_of(cand)};
    if (fd_prompt_tokens_find(tokenizer, sides, &found)) fd_verdict_note(verdict, found);
}
