/* Questions go into the page and answers come out of it. The child may have been taken over by the file: every length is
 * checked and every text ended here, and offsets are not read back; numbers mean what they would mean in a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "dumpers/hdf5/reader_internal.h"

static size_t put_text(fd_h5_exchange *x, size_t at, const char *text) {
    size_t n = strlen(text) + 1;
    memcpy(x->data + at, text, n);
    return at + n;
}

/* Where the bytes of the answer begin, of a question whose names begin at `at`. */
static size_t bytes_at(const fd_h5_question *q, size_t at) {
    return (at + strlen(q->object) + strlen(q->name) + 2 + 7) / 8 * 8;
}

/* Puts as many questions into the page as there is room for, and says how many. */
static size_t put_questions(fd_h5_exchange *x, const fd_h5_question *q, size_t n) {
    size_t at = 0, i = 0;
    for (; i < n && i < FD_H5_QUESTIONS; i++) {
        fd_h5_asked *asked = &x->questions[i];
        size_t bytes = bytes_at(&q[i], at);
        if (bytes > FD_H5_DATA || q[i].room > FD_H5_DATA - bytes) break;
        asked->kind = q[i].kind;
        asked->object = (uint32_t)at;
        asked->name = (uint32_t)put_text(x, at, q[i].object);
        put_text(x, asked->name, q[i].name);
        asked->bytes = (uint32_t)bytes;
        asked->room = q[i].room;
        at = bytes + q[i].room;
    }
    x->n_question = (uint32_t)i;
    return i;
}

/* Asks the first of n questions, as many as one call takes; 0 when none was answered. */
static size_t ask(fd_h5_reader *reader, const fd_h5_question *q, size_t n) {
    if (!fd_h5_reader_library(reader)) return 0;
    size_t asked = put_questions(reader->owner->x, q, n);
    reader->owner->x->at = 0;
    if (asked > 0 && fd_h5_reader_call(reader, FD_H5_ASK, "")) return asked;
    uint32_t at = reader->owner->x->at;
    if (asked > 0) snprintf(reader->at, sizeof reader->at, "%s", q[at < asked ? at : 0].object);
    return 0;
}

/* Bytes that come with the answer. */
static size_t length(const fd_h5_question *q, const fd_h5_answer *a) {
    uint64_t n = a->value < 0 || a->found != FD_H5_FOUND ? 0 : (uint64_t)a->value;
    if (q->kind == FD_H5_HASHES) n = n <= q->room / 8 ? n * 8 : 0;
    if (q->kind == FD_H5_TEXT) n++;
    return n < q->room ? (size_t)n : q->room;
}

/* What of an answer is believed: a type that there is, a shape that can be. */
static fd_h5_answer checked(const fd_h5_asked *asked) {
    fd_h5_answer a = asked->answer;
    fd_h5_dataset *d = &a.dataset;
    uint32_t e = d->element;
    if (a.found != FD_H5_FOUND && a.found != FD_H5_WRONG) a.found = FD_H5_ABSENT;
    d->simple = d->simple && d->shape.rank >= 1 && d->shape.rank <= FD_H5_MAX_RANK;
    if (e != FD_F32 && e != FD_F64 && e != FD_F16 && e != FD_BF16 && e != FD_H5_WORD16) d->element = FD_DTYPE_LIMIT;
    return a;
}

/* ---- prefetched answers ---- */

void fd_h5_reader_forget(fd_h5_reader *reader) {
    free(reader->known);
    free(reader->bytes);
    reader->known = NULL;
    reader->bytes = NULL;
    reader->n_known = reader->next = 0;
}

/* A question with its names, and room for its answer's bytes, in reader->bytes from `to` on; where the next begins. */
static char *keep(fd_h5_known *k, const fd_h5_question *q, char *to) {
    size_t object = strlen(q->object) + 1, name = strlen(q->name) + 1;
    k->question = (fd_h5_question){q->kind, memcpy(to, q->object, object), memcpy(to + object, q->name, name), q->room};
    k->bytes = to + object + name;
    return k->bytes + q->room;
}

/* Takes the answers of n questions out of the page. */
static void take_answers(const fd_h5_exchange *x, const fd_h5_question *q, size_t n, fd_h5_known *const *known) {
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        size_t bytes = bytes_at(&q[i], at);
        known[i]->answer = checked(&x->questions[i]);
        known[i]->there = true;
        memcpy(known[i]->bytes, x->data + bytes, length(&q[i], &known[i]->answer));
        at = bytes + q[i].room;
    }
}

void fd_h5_reader_prefetch(fd_h5_reader *reader, const fd_h5_question *q, size_t n) {
    size_t bytes = 1, n_left = 0;
    for (size_t i = 0; i < n; i++) bytes += strlen(q[i].object) + strlen(q[i].name) + 2 + q[i].room;
    fd_h5_reader_forget(reader);
    char *to = reader->bytes = malloc(bytes);
    reader->known = calloc(n + 1, sizeof *reader->known);
    fd_h5_known **left = malloc((n + 1) * sizeof *left); /* those that only the library knows */
    fd_h5_question *ask_for = malloc((n + 1) * sizeof *ask_for);
    if (to && reader->known && left && ask_for) reader->n_known = n;
    for (size_t i = 0; i < reader->n_known; i++) {
        fd_h5_known *k = &reader->known[i];
        to = keep(k, &q[i], to);
        k->there = fd_h5_plain_ask(&reader->plain, &q[i], k->bytes, &k->answer);
        if (k->there) continue;
        ask_for[n_left] = q[i];
        left[n_left++] = k;
    }
    for (size_t done = 0, asked; done < n_left; done += asked) {
        asked = ask(reader, ask_for + done, n_left - done);
        if (asked == 0) break;
        take_answers(reader->owner->x, ask_for + done, asked, left + done);
    }
    free(left);
    free(ask_for);
}

/* NULL also when more bytes are wanted than were fetched. */
static const fd_h5_known *find_known(fd_h5_reader *reader, const fd_h5_question *q) {
    for (size_t i = 0; i < reader->n_known; i++) {
        const fd_h5_known *k = &reader->known[(reader->next + i) % reader->n_known];
        if (k->question.kind != q->kind || strcmp(k->question.object, q->object) != 0 ||
            strcmp(k->question.name, q->name) != 0)
            continue;
        reader->next = (size_t)(k - reader->known) + 1;
        return k->there && q->room <= k->question.room ? k : NULL;
    }
    return NULL;
}

fd_h5_answer fd_h5_reader_ask(fd_h5_reader *reader, const fd_h5_question *q, void *bytes) {
    const fd_h5_known *k = find_known(reader, q);
    fd_h5_answer answer = {.found = FD_H5_ABSENT, .dataset = {.shape.rank = -1, .element = FD_DTYPE_LIMIT}};
    const char *from = NULL;
    if (k) {
        answer = k->answer;
        from = k->bytes;
    } else if (!fd_h5_plain_ask(&reader->plain, q, bytes, &answer) && ask(reader, q, 1) == 1) {
        answer = checked(&reader->owner->x->questions[0]);
        from = reader->owner->x->data + bytes_at(q, 0);
    }
    if (bytes && from) memcpy(bytes, from, length(q, &answer));
    return answer;
}

/* ---- one at a time ---- */

fd_h5_found fd_h5_reader_string(fd_h5_reader *reader, const char *object, const char *name, char *out, size_t size,
                                size_t *length) {
    fd_h5_question question = {FD_H5_TEXT, object, name, out ? (uint32_t)size : 0};
    fd_h5_answer answer = fd_h5_reader_ask(reader, &question, out);
    if (out) out[answer.found == FD_H5_FOUND ? size - 1 : 0] = '\0';
    if (length) *length = answer.value > 0 ? (size_t)answer.value : 0;
    return answer.found;
}

fd_h5_found fd_h5_reader_int(fd_h5_reader *reader, const char *object, const char *name, int64_t *out) {
    fd_h5_answer answer = fd_h5_reader_ask(reader, &(fd_h5_question){FD_H5_INTEGER, object, name, 0}, NULL);
    *out = answer.value;
    return answer.found;
}

bool fd_h5_reader_has(fd_h5_reader *reader, const char *object) {
    return fd_h5_reader_ask(reader, &(fd_h5_question){FD_H5_HAS, object, "", 0}, NULL).found == FD_H5_FOUND;
}

bool fd_h5_reader_dataset(fd_h5_reader *reader, const char *object, fd_h5_dataset *out) {
    fd_h5_answer answer = fd_h5_reader_ask(reader, &(fd_h5_question){FD_H5_DATASET, object, "", 0}, NULL);
    *out = answer.dataset;
    return answer.found == FD_H5_FOUND;
}

uint64_t fd_h5_reader_stored(fd_h5_reader *reader, const char *object) {
    return (uint64_t)fd_h5_reader_ask(reader, &(fd_h5_question){FD_H5_STORED, object, "", 0}, NULL).value;
}
