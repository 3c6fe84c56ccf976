/* What attention does with its keys and its cache, in one line. */
#include <stdio.h>
#include <string.h>

#include "compare/hypothesis/internal.h"
#include "faults/tiles.h"

#define SAY(...) snprintf(to, size, __VA_ARGS__)

/* " 4, 9"; returns its length. */
static size_t list_keys(const fd_hypothesis *h, char *to, size_t size) {
    size_t at = 0;
    for (int t = 0, n = 0; t < 64 && at + 8 < size; t++)
        if (h->keys >> t & 1) at += (size_t)snprintf(to + at, size - at, "%s %d", n++ ? "," : "", t);
    return at;
}

static void keys_text(const fd_hypothesis *h, char *to, size_t size) {
    switch ((fd_key_rule)h->which) {
    case FD_KEYS_LAST_N: SAY("the mask hides all but the last %d position%s", h->n, h->n == 1 ? "" : "s"); break;
    case FD_KEYS_SINKS: SAY("the mask hides all but the first %d and the last %d positions", h->other, h->n); break;
    case FD_KEYS_NOT_FIRST_N:
        if (h->n == 1)
            SAY("the mask hides position 0 from all others");
        else
            SAY("the mask hides the first %d positions, except each from itself", h->n);
        break;
    case FD_KEYS_FIRST_N:
        SAY("the mask hides positions from %d on%s", h->n, h->other ? "" : ", except each from itself");
        break;
    case FD_KEYS_NOT_OWN: SAY("the mask hides each token from itself"); break;
    case FD_KEYS_NOT_LAST: SAY("the mask hides the last token of a step from itself"); break;
    case FD_KEYS_CHUNK:
        SAY("the step that begins at position %d sees as many keys as if it were the first", h->n);
        break;
    case FD_KEYS_TILE: SAY("keys after the last whole tile of %d are not seen", h->n); break;
    case FD_KEYS_OF_TILE: SAY("a tile of %d rows has the mask of its first one", h->n); break;
    case FD_KEYS_FAR:
        SAY("of keys more than %d positions before its own a row sees every %s", h->other,
            h->n == 2 ? "second" : "third");
        break;
    case FD_KEYS_SET: {
        bool one = (h->keys & (h->keys - 1)) == 0;
        size_t at = (size_t)SAY("the mask hides position%s", one ? "" : "s");
        at += list_keys(h, to + at, size - at);
        if (h->n && at < size) snprintf(to + at, size - at, " from every other token");
        break;
    }
    }
}

static void tiles_text(const fd_hypothesis *h, char *to, size_t size) {
    static const char *const words[FD_TILE_RULE_COUNT] = {
        [FD_TILES_OUTPUT_STALE] = "when the running maximum grows, the output of earlier tiles is not rescaled",
        [FD_TILES_SUM_STALE] = "when the running maximum grows, the sum of earlier tiles is not rescaled",
        [FD_TILES_BOTH_STALE] = "when the running maximum grows, neither output nor sum of earlier tiles are rescaled",
        [FD_TILES_BOTH_BY_TWO] = "when the running maximum grows by x, earlier tiles are rescaled by 2^-x for e^-x",
        [FD_TILES_EDGE_TWICE] = "the first key of a tile is mixed in with the tile before it, too",
        [FD_TILES_OWN_TWICE] = "a token's own key is mixed in twice",
        [FD_TILES_FIRST_TWICE] = "the first key, with which the running state begins, is mixed in again",
        [FD_TILES_OWN_UNMIXED] = "the sum over V leaves out a token's own row, or reads it as zeros",
        [FD_TILES_LAST_UNCOUNTED] = "the last tile, which is not whole, is left out of the sum",
        [FD_TILES_AVERAGED] = "the outputs of parts of the keys are averaged, not weighed by their sums",
        [FD_TILES_UNSCALED] = "the outputs and sums of parts of the keys are added, each off its own maximum",
        [FD_TILES_FIRST_ALONE] = "the first part of the keys alone is attended to",
        [FD_TILES_FIRST_SUM] = "the outputs of parts of the keys are divided by the sum of the first",
        [FD_TILES_ADDED] = "the outputs of parts of the keys are added, not weighed by their sums",
    };
    const char *kernel = h->which < FD_TILES_AVERAGED ? "flash attention" : "split K/V";
    if (h->which == FD_TILES_OWN_UNMIXED)
        SAY("%s", words[h->which]);
    else if (h->which == FD_TILES_OWN_TWICE || h->which == FD_TILES_FIRST_TWICE)
        SAY("%s: %s", kernel, words[h->which]);
    else if (h->n < 0)
        SAY("%s: %s (%d parts)", kernel, words[h->which], -h->n % FD_PARTS_ROUNDED_UP);
    else if (h->n == 1)
        SAY("%s: %s (key by key)", kernel, words[h->which]);
    else
        SAY("%s: %s (tiles of %d keys)", kernel, words[h->which], h->n);
}

static const char *cache_text(const fd_hypothesis *h, const fd_graph *graph) {
    const fd_op reader = h->node >= 0 ? graph->nodes[h->node].op : h->ops > 0 ? (fd_op)(h->ops - 1) : FD_OP_COUNT;
    return reader == FD_OP_COUNT ? "K and V" : reader == FD_OP_ATTN_MIX ? "V" : "K";
}

/* "row of position 3", "rows of positions 4…7", "rows from position 8 on". */
static void rows_text(int32_t first, int32_t end, char *to, size_t size) {
    if (end == first + 1)
        SAY("row of position %d", first);
    else if (end > 0)
        SAY("rows of positions %d…%d", first, end - 1);
    else
        SAY("rows from position %d on", first);
}

static void cache_rows_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size) {
    const char *cache = cache_text(h, graph), *are = h->end == h->first + 1 ? "is" : "are";
    const int32_t first = h->first + h->n, end = h->end ? h->end + h->n : 0;
    char rows[64];
    rows_text(h->first, h->end, rows, sizeof rows);
    if (h->which == FD_CACHE_ZEROS && h->keys) {
        list_keys(h, rows, sizeof rows);
        SAY("the %s rows of positions%s are read as zeros", cache, rows);
        return;
    }
    switch ((fd_cache_rule)h->which) {
    case FD_CACHE_ZEROS: SAY("the %s %s %s read as zeros", cache, rows, are); break;
    case FD_CACHE_MOVED:
        if (end == first + 1)
            SAY("the %s %s %s read from that of %d", cache, rows, are, first);
        else if (end > 0)
            SAY("the %s %s %s read from those of %d…%d", cache, rows, are, first, end - 1);
        else
            SAY("the %s %s %s read from those of %d position%s %s", cache, rows, are, h->n < 0 ? -h->n : h->n,
                h->n * h->n == 1 ? "" : "s", h->n < 0 ? "before" : "after");
        break;
    case FD_CACHE_SHIFTED:
        SAY("the %s rows are read %d elements too %s in memory", cache, h->n < 0 ? -h->n : h->n,
            h->n < 0 ? "early" : "far on");
        break;
    case FD_CACHE_EXCHANGED:
        if (end == first + 1)
            SAY("the %s rows of positions %d and %d are read from each other's place", cache, h->first, first);
        else
            SAY("the %s %s and %d…%d are read from each other's place", cache, rows, first, end - 1);
        break;
    case FD_CACHE_RING:
        SAY("the cache of %s is a ring of %d rows: position %d is written over position 0", cache, h->n, h->n);
        break;
    case FD_CACHE_OF: SAY("the %s %s %s read from %s", cache, rows, are, graph->nodes[h->other].name); break;
    case FD_CACHE_PAST:
        SAY("earlier steps' rows of the cache are read from %s", h->other > 0   ? "the next layer's"
                                                                 : h->other < 0 ? "that of the layer before"
                                                                                : "V for K, and from K for V");
        break;
    case FD_CACHE_UNKNOWN: SAY("the %s %s that attention reads %s not what was written", cache, rows, are); break;
    case FD_CACHE_LATE:
        SAY("the %s %s are written %d place%s too far: attention reads what stood at %d before, and at %d the row of "
            "%d",
            cache, rows, h->n, h->n == 1 ? "" : "s", h->first, h->first + h->n, h->first);
        break;
    case FD_CACHE_OWN:
        SAY("attention reads each position's own row of %s before it is written: what stood there is another", cache);
        break;
    case FD_CACHE_OUTSIDE:
        SAY("attention sees keys that are not in the trace, of %d different value%s: of padding, of another sequence, "
            "or "
            "that stood there",
            h->n, h->n == 1 ? "" : "s");
        break;
    case FD_CACHE_BLOCKS:
        SAY("of the blocks in which %s %s kept %s", cache, h->node < 0 ? "are" : "is", fd_cache_blocks_text(h->n));
        break;
    }
}

static void experts_text(const fd_hypothesis *h, char *to, size_t size) {
    if (h->which == FD_EXPERTS_LEFT_OUT && h->before_bias)
        SAY("expert %d gives its bias alone: its matrix is not read, or not multiplied", h->n);
    else if (h->which == FD_EXPERTS_LEFT_OUT)
        SAY("expert %d gives zeros: it is left out, or a matrix of its own is not read", h->n);
    else
        SAY("the chosen experts' weights are applied to what they read, not to what they give");
}

static const char *numbers_text(const fd_hypothesis *h, const fd_graph *graph) {
    return h->node >= 0 && graph->nodes[h->node].op == FD_OP_ATTN_SOFTMAX ? "sink" : "slope of ALiBi";
}

static void head_numbers_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size) {
    if (h->which == FD_HEAD_NUMBERS_ARE)
        SAY("the %s of every head is %.6g", numbers_text(h, graph), h->value);
    else
        SAY("the %s of every head is %.6g times the file's", numbers_text(h, graph), h->value);
}

/* "K/V heads 0, 1 are read from 1, 0". */
static void mapped_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size) {
    const bool experts = h->which == FD_MAPPED_EXPERTS;
    const char *cache = cache_text(h, graph);
    char are[64] = "", from[64] = "";
    int n = 0;
    size_t at = 0, to_at = 0;
    const uint64_t right = fd_hypothesis_right_map(h);
    for (int i = 0; i < h->n; i++) {
        const int other = (int)(h->keys >> 4 * i & 15);
        if (other == (int)(right >> 4 * i & 15)) continue;
        const char *comma = n++ ? ", " : "";
        at += (size_t)snprintf(are + at, sizeof are - at, "%s%d", comma, i);
        to_at += (size_t)snprintf(from + to_at, sizeof from - to_at, "%s%d", comma, other);
    }
    if (experts)
        SAY("expert%s %s %s computed with the matrices of %s", n == 1 ? "" : "s", are, n == 1 ? "is" : "are", from);
    else if (h->which == FD_MAPPED_OUTPUTS)
        SAY("of the chosen experts' outputs number%s %s %s added as number%s %s", n == 1 ? "" : "s", from,
            n == 1 ? "is" : "are", n == 1 ? "" : "s", are);
    else if (h->which == FD_MAPPED_NUMBERS)
        SAY("head%s %s ha%s the %s of head%s %s", n == 1 ? "" : "s", are, n == 1 ? "s" : "ve", numbers_text(h, graph),
            n == 1 ? "" : "s", from);
    else if (h->which == FD_MAPPED_QUERIES)
        SAY("query head%s %s read%s the %s head%s %s", n == 1 ? "" : "s", are, n == 1 ? "s" : "", cache,
            n == 1 ? "" : "s", from);
    else
        SAY("the %s head%s %s %s read from %s", cache, n == 1 ? "" : "s", are, n == 1 ? "is" : "are", from);
}

static void strides_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size) {
    const fd_node *node = &graph->nodes[h->node < 0 ? 0 : h->node];
    const bool rows_first = h->other == FD_STRIDES_ROWS_FIRST;
    if (h->which < 0) {
        SAY("%s stand in memory with %s first, and are read as if %s came first",
            h->which == -1 ? "Q, K and V" : "K and V", rows_first ? "positions" : "heads",
            rows_first ? "heads" : "positions");
        return;
    }
    const char *read = node->input[h->which] < 0 ? "what it reads" : graph->nodes[node->input[h->which]].name;
    const char *cache = node->op == FD_OP_ATTN_SCORES ? "K" : "V";
    const char *what = h->n == 1 || !fd_reads_kv_cache(node) ? read : h->which == 0 ? "Q" : cache;
    switch ((fd_stride_rule)h->other) {
    case FD_STRIDES_HEADS_FIRST:
        SAY("%s stands in memory with heads first, and is read as if positions came first", what);
        break;
    case FD_STRIDES_ROWS_FIRST:
        SAY("%s stands in memory with positions first, and is read as if heads came first", what);
        break;
    case FD_STRIDES_FIRST_ROW: SAY("%s of the step's first position is read for all of them", what); break;
    }
}

void fd_hypothesis_attention_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size) {
    if (h->guess == FD_GUESS_KEYS) keys_text(h, to, size);
    if (h->guess == FD_GUESS_KEYS && h->first)
        snprintf(to + strlen(to), size - strlen(to), ", and makes their scores %.6g, not -Inf", h->value);
    if (h->guess == FD_GUESS_SLOTS)
        SAY("attention goes over every slot of a cache of %d positions%s; those nobody wrote have a score of 0", h->n,
            h->which ? ", no mask hides a step's later tokens" : "");
    if (h->guess == FD_GUESS_STRIDES) strides_text(h, graph, to, size);
    if (h->guess == FD_GUESS_TILES) tiles_text(h, to, size);
    if (h->guess == FD_GUESS_CACHE) cache_rows_text(h, graph, to, size);
    if (h->guess == FD_GUESS_MAPPED) mapped_text(h, graph, to, size);
    if (h->guess == FD_GUESS_HEAD_NUMBERS) head_numbers_text(h, graph, to, size);
    if (h->guess == FD_GUESS_EXPERTS) experts_text(h, to, size);
    if (h->guess == FD_GUESS_UNWRITTEN && h->end > 0)
        SAY("the %s rows of positions %d…%d are read as zeros: they are not written", cache_text(h, graph), h->n,
            h->end - 1);
    else if (h->guess == FD_GUESS_UNWRITTEN)
        SAY("the %s rows from position %d on are read as zeros: they are not written", cache_text(h, graph), h->n);
}
