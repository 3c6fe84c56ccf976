/* What attention does with its keys and its cache, in one line. */
#include <stdio.h>

#include "compare/diagnose/hypothesis_internal.h"
#include "faults/tiles.h"

#define SAY(...) snprintf(to, size, __VA_ARGS__)

static void keys_text(const fd_hypothesis *h, char *to, size_t size) {
    switch ((fd_key_rule)h->which) {
    case FD_KEYS_LAST_N: SAY("the mask hides all but the last %d position%s", h->n, h->n == 1 ? "" : "s"); break;
    case FD_KEYS_NOT_FIRST_N:
        if (h->n == 1)
            SAY("the mask hides position 0 from all others");
        else
            SAY("the mask hides the first %d positions, except each from itself", h->n);
        break;
    case FD_KEYS_FIRST_N: SAY("the mask hides positions from %d on, except each from itself", h->n); break;
    case FD_KEYS_NOT_OWN: SAY("the mask hides each token from itself"); break;
    case FD_KEYS_CHUNK:
        SAY("the step that begins at position %d sees as many keys as if it were the first", h->n);
        break;
    case FD_KEYS_TILE: SAY("keys after the last whole tile of %d are not seen", h->n); break;
    case FD_KEYS_FAR:
        SAY("of keys more than %d positions before its own a row sees every %s", h->other,
            h->n == 2 ? "second" : "third");
        break;
    case FD_KEYS_SET: {
        bool one = (h->keys & (h->keys - 1)) == 0;
        size_t at = (size_t)SAY("the mask hides position%s", one ? "" : "s");
        for (int t = 0, n = 0; t < 64 && at + 8 < size; t++)
            if (h->keys >> t & 1) at += (size_t)snprintf(to + at, size - at, "%s %d", n++ ? "," : "", t);
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
        [FD_TILES_AVERAGED] = "the outputs of parts of the keys are averaged, not weighed by their sums",
        [FD_TILES_UNSCALED] = "the outputs and sums of parts of the keys are added, each off its own maximum",
        [FD_TILES_FIRST_SUM] = "the outputs of parts of the keys are divided by the sum of the first",
        [FD_TILES_ADDED] = "the outputs of parts of the keys are added, not weighed by their sums",
    };
    const char *kernel = h->which < FD_TILES_AVERAGED ? "flash attention" : "split K/V";
    if (h->n < 0)
        SAY("%s: %s (%d parts)", kernel, words[h->which], -h->n);
    else
        SAY("%s: %s (tiles of %d keys)", kernel, words[h->which], h->n);
}

static const char *cache_text(const fd_hypothesis *h, const fd_graph *graph) {
    const fd_op reader = h->node >= 0 ? graph->nodes[h->node].op : h->ops > 0 ? (fd_op)(h->ops - 1) : FD_OP_COUNT;
    return reader == FD_OP_COUNT ? "K and V" : reader == FD_OP_ATTN_MIX ? "V" : "K";
}

static void page_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size) {
    const char *cache = cache_text(h, graph);
    int32_t first = h->which * h->n;
    if (h->n == 1 && h->other < 0)
        SAY("the %s row of position %d is read as zeros", cache, first);
    else if (h->n == 1)
        SAY("the %s row of position %d is read from that of %d", cache, first, h->other);
    else if (h->end)
        SAY("the %s rows of positions %d…%d and %d…%d, pages of %d, are read from each other's place", cache, first,
            first + h->n - 1, h->other * h->n, (h->other + 1) * h->n - 1, h->n);
    else if (h->other < 0)
        SAY("the %s rows of positions %d…%d, a page of %d, are read as zeros", cache, first, first + h->n - 1, h->n);
    else
        SAY("the %s rows of positions %d…%d, a page of %d, are read from those of %d…%d", cache, first,
            first + h->n - 1, h->n, h->other * h->n, (h->other + 1) * h->n - 1);
}

void fd_hypothesis_attention_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size) {
    if (h->guess == FD_GUESS_KEYS) keys_text(h, to, size);
    if (h->guess == FD_GUESS_TILES) tiles_text(h, to, size);
    if (h->guess == FD_GUESS_PAGE) page_text(h, graph, to, size);
    if (h->guess == FD_GUESS_UNWRITTEN && h->end > 0)
        SAY("the %s rows of positions %d…%d are read as zeros: they are not written", cache_text(h, graph), h->n,
            h->end - 1);
    else if (h->guess == FD_GUESS_UNWRITTEN)
        SAY("the %s rows from position %d on are read as zeros: they are not written", cache_text(h, graph), h->n);
}
