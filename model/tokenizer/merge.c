#include "model/tokenizer/merge.h"

#include <stdlib.h>

void fd_merge_clear(fd_merge *merge) {
    merge->n_symbol = 0;
}

void fd_merge_free(fd_merge *merge) {
    free(merge->symbols);
    free(merge->heap);
    *merge = (fd_merge){0};
}

fd_code fd_merge_push(fd_merge *merge, size_t start, size_t size, int32_t piece, fd_error *err) {
    if (merge->n_symbol == merge->symbol_capacity) {
        if (merge->n_symbol > INT32_MAX / 2 - 64)
            return fd_fail(err, FD_ERR_INPUT, "text: more than %d characters in one piece", merge->n_symbol);
        int32_t capacity = 2 * merge->symbol_capacity + 64;
        fd_merge_symbol *symbols = realloc(merge->symbols, (size_t)capacity * sizeof *symbols);
        if (!symbols) return fd_fail(err, FD_ERR_MEMORY, "tokenizer: no memory for %d symbols", capacity);
        merge->symbols = symbols;
        merge->symbol_capacity = capacity;
    }
    int32_t at = merge->n_symbol++;
    if (at > 0) merge->symbols[at - 1].right = at;
    merge->symbols[at] = (fd_merge_symbol){.start = start, .size = size, .piece = piece, .left = at - 1, .right = -1};
    return FD_OK;
}

static bool is_before(const fd_merge_candidate *a, const fd_merge_candidate *b) {
    return a->key < b->key || (a->key == b->key && a->left < b->left);
}

static fd_code heap_push(fd_merge *merge, fd_merge_candidate candidate, fd_error *err) {
    if (merge->n_heap == merge->heap_capacity) {
        size_t capacity = 2 * merge->heap_capacity + 64;
        fd_merge_candidate *heap = realloc(merge->heap, capacity * sizeof *heap);
        if (!heap) return fd_fail(err, FD_ERR_MEMORY, "tokenizer: no memory for %zu pairs", capacity);
        merge->heap = heap;
        merge->heap_capacity = capacity;
    }
    size_t at = merge->n_heap++;
    for (; at > 0 && is_before(&candidate, &merge->heap[(at - 1) / 2]); at = (at - 1) / 2)
        merge->heap[at] = merge->heap[(at - 1) / 2];
    merge->heap[at] = candidate;
    return FD_OK;
}

static fd_merge_candidate heap_pop(fd_merge *merge) {
    fd_merge_candidate first = merge->heap[0], last = merge->heap[--merge->n_heap];
    size_t at = 0;
    for (size_t child = 1; child < merge->n_heap; child = 2 * at + 1) {
        if (child + 1 < merge->n_heap && is_before(&merge->heap[child + 1], &merge->heap[child])) child++;
        if (!is_before(&merge->heap[child], &last)) break;
        merge->heap[at] = merge->heap[child];
        at = child;
    }
    merge->heap[at] = last;
    return first;
}

static fd_code consider(fd_merge *merge, int32_t left, int32_t right, fd_merge_pair_fn pair, const void *user,
                        fd_error *err) {
    if (left < 0 || right < 0) return FD_OK;
    const fd_merge_symbol *a = &merge->symbols[left], *b = &merge->symbols[right];
    fd_merge_candidate candidate = {.left = left, .right = right, .size = a->size + b->size};
    if (!pair(user, a, b, &candidate.key, &candidate.piece)) return FD_OK;
    return heap_push(merge, candidate, err);
}

fd_code fd_merge_run(fd_merge *merge, fd_merge_pair_fn pair, const void *user, fd_error *err) {
    merge->n_heap = 0;
    for (int32_t i = 1; i < merge->n_symbol; i++) FD_TRY(consider(merge, i - 1, i, pair, user, err));
    while (merge->n_heap > 0) {
        fd_merge_candidate best = heap_pop(merge);
        fd_merge_symbol *left = &merge->symbols[best.left], *right = &merge->symbols[best.right];
        if (left->size == 0 || right->size == 0 || left->size + right->size != best.size) continue;
        left->size = best.size;
        left->piece = best.piece;
        left->right = right->right;
        right->size = 0;
        if (left->right >= 0) merge->symbols[left->right].left = best.left;
        FD_TRY(consider(merge, left->left, best.left, pair, user, err));
        FD_TRY(consider(merge, best.left, left->right, pair, user, err));
    }
    return FD_OK;
}
