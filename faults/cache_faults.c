/* K/V cache bugs: where rows are written, and which cache is read. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "faults/attention_rule.h"
#include "numerics/contract.h"

FD_EDIT(one_further, node->row_offset = 1)
FD_EDIT(one_short, node->row_offset = -1)

/* Row p at flat element p·stride of the cache; what falls outside it is dropped. */
static void write_with_stride(const fd_op_args *args, int64_t stride) {
    int64_t width = fd_node_width(args->node), size = width * (args->n_ctx ? args->n_ctx : args->n_kv);
    for (int32_t r = 0; r < args->n_pos; r++) {
        int64_t at = (args->pos0 + r) * stride;
        if (at + width <= size)
            memmove((float *)args->out + at, (const float *)args->in[0] + r * width, sizeof(float) * (size_t)width);
    }
}
FD_OVERRIDE(by_element, write_with_stride(args, 1))
FD_OVERRIDE(by_head, write_with_stride(args, args->node->shape[1]))
FD_OVERRIDE(never, write_with_stride(args, 0))
static void over_the_first(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node);
    for (int32_t r = 0; r < args->n_pos; r++)
        memmove((float *)args->out + args->pos0 * width, (const float *)args->in[0] + r * width,
                sizeof(float) * (size_t)width);
}
FD_APPLIES(several_heads, node->n_dim == 2 && node->shape[0] > 1)

#define RULE(name, ...)                                                                                                \
    FD_OVERRIDE(name##_k, fd_rule_scores(args, (fd_attention_rule){__VA_ARGS__}))                                      \
    FD_OVERRIDE(name##_v, fd_rule_mix(args, (fd_attention_rule){__VA_ARGS__}))                                         \
    FD_EDIT(name##_both, node->override = node->op == FD_OP_ATTN_SCORES ? name##_k                                     \
                                          : node->op == FD_OP_ATTN_MIX  ? name##_v                                     \
                                                                        : node->override)
/* Attention runs before the batch's rows are in the cache, which is zero there: scores of 0, nothing mixed. */
RULE(stale, .stale = true)
/* V's rows of the first batch stay zero, for later ones, too. */
static void not_the_first(const fd_op_args *args) {
    int64_t width = fd_node_width(args->node);
    int32_t first = args->first_batch ? args->first_batch : args->pos0 == 0 ? args->n_pos : 0;
    for (int32_t r = 0; r < args->n_pos; r++)
        if (args->pos0 + r >= first)
            memmove((float *)args->out + (args->pos0 + r) * width, (const float *)args->in[0] + r * width,
                    sizeof(float) * (size_t)width);
}

/* The norm of K's heads in that layer; NULL: there is none. */
static const fd_node *norm_of_k(const fd_graph *graph, const fd_node *cache) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].layer == cache->layer && strcmp(fd_fault_suffix(&graph->nodes[i]), "attn_k_norm") == 0)
            return &graph->nodes[i];
    return NULL;
}
/* Without a weight: V has none. */
static void normed(const fd_op_args *args) {
    const fd_node *k = norm_of_k(args->graph, args->node);
    const int64_t dim = args->node->shape[1], width = fd_node_width(args->node);
    for (int64_t at = 0; at < args->n_pos * width; at += dim) {
        const float *x = (const float *)args->in[0] + at;
        const float by = 1.0f / sqrtf(fd_dot(x, x, dim) / (float)dim + (k ? k->eps : NAN));
        for (int64_t i = 0; i < dim; i++) ((float *)args->out)[args->pos0 * width + at + i] = x[i] * by;
    }
}
FD_APPLIES(norms_k, node->n_dim == 2 && norm_of_k(graph, node) != NULL)

static void nothing(const fd_op_args *args) {
    (void)args;
}

/* The slot of the newest position still holds, or the kernel is given, the row before it. */
RULE(newest, .newest_before = true)
/* The page table's entry for the second page is that of the first. */
enum { PAGE = 4 };
RULE(page, .page = PAGE)

/* Softmax reads `n_more` slots past the row's own. They were never written: their K is zero, so is their score, and
 * their V adds nothing to the mix. */
static void softmax_with_empty_slots(const fd_op_args *args, int32_t own, float *w, const float *s, float sink,
                                     int32_t n_more) {
    int32_t n = own + 1;
    float max = n_more > 0 ? fmaxf(sink, 0.0f) : sink;
    for (int32_t t = 0; t < n; t++) max = fmaxf(max, s[t]);
    for (int32_t t = 0; t < args->n_kv; t++) w[t] = t < n ? fd_exp32(s[t] - max) : 0.0f;
    float sum = fd_sum(w, n) + (float)n_more * fd_exp32(0.0f - max);
    if (args->weight[0]) sum = sum + fd_exp32(sink - max);
    for (int32_t t = 0; t < n; t++) w[t] = w[t] / sum;
}

/* Which empty slots count. */
enum slots { ALL_SLOTS, ONE_SLOT }; /* or how many a padded length is a multiple of */

/* Tokens come one after another here, as such engines feed them: the slots after a row's own are empty. Padding follows
 * the step's last key; what the mask hides between does not count. */
static int32_t empty_slots(const fd_op_args *args, int32_t row, int32_t which) {
    int32_t own = args->pos0 + row;
    int32_t n_slot = args->graph->hparams.n_ctx_train, n_left = n_slot > own + 1 ? n_slot - own - 1 : 0;
    if (which > ONE_SLOT) return (which - fd_fault_batch_end(args, row) % which) % which;
    return which == ALL_SLOTS || n_left < 1 ? n_left : 1;
}

static void past_the_length(const fd_op_args *args, int32_t which) {
    int32_t n_head = args->node->shape[0];
    float *sinks = args->weight[0] ? fd_fault_row(args->weight[0], 0) : NULL;
    for (int32_t i = 0; i < args->n_pos * n_head; i++) {
        int32_t own = args->pos0 + i / n_head;
        softmax_with_empty_slots(args, own, (float *)args->out + (int64_t)i * args->n_kv,
                                 (const float *)args->in[0] + (int64_t)i * args->n_kv,
                                 sinks ? sinks[i % n_head] : -INFINITY, empty_slots(args, i / n_head, which));
    }
    if (args->weight[0] && !sinks) fd_fault_nan(args, (int64_t)n_head * args->n_kv);
    free(sinks);
}
FD_OVERRIDE(all_slots, past_the_length(args, ALL_SLOTS))
FD_OVERRIDE(one_slot_more, past_the_length(args, ONE_SLOT))
FD_OVERRIDE(padded_to_8, past_the_length(args, 8))
FD_OVERRIDE(padded_to_16, past_the_length(args, 16))
FD_OVERRIDE(padded_to_32, past_the_length(args, 32))
FD_OVERRIDE(padded_to_64, past_the_length(args, 64))
FD_OVERRIDE(padded_to_128, past_the_length(args, 128))
FD_OVERRIDE(padded_to_256, past_the_length(args, 256))

static void read_other(const fd_graph *graph, fd_node *node, int32_t cache) {
    if (cache < 0) return;
    const fd_node *now = &graph->nodes[node->input[1]], *other = &graph->nodes[cache];
    if (now->shape[0] == other->shape[0] && now->shape[1] == other->shape[1]) node->input[1] = cache;
}

/* The first layer has no layer before it: the fault does not concern it. */
static void previous_layer(fd_fault_site *site) {
    fd_node before = *site->node;
    if (before.op != FD_OP_ATTN_SCORES && before.op != FD_OP_ATTN_MIX) return;
    before.layer--;
    if (before.layer < 0) return;
    const char *cache = before.op == FD_OP_ATTN_MIX ? "cache_v" : "cache_k";
    read_other(site->graph, site->node, fd_fault_sibling(site->graph, &before, cache));
}

FD_EDIT(v_is_k, read_other(site->graph, node, fd_fault_sibling(site->graph, node, "cache_k")))

/* Where K is not turned, matrices that are exchanged do the same. */
FD_APPLIES(k_is_turned, fd_fault_sibling(graph, node, "attn_k_rope") >= 0)
static void exchanged(fd_fault_site *site) {
    const char *cache = site->node->op == FD_OP_ATTN_SCORES ? "cache_v" : "cache_k";
    if (site->node->op == FD_OP_ATTN_SCORES || site->node->op == FD_OP_ATTN_MIX)
        read_other(site->graph, site->node, fd_fault_sibling(site->graph, site->node, cache));
}

/* Written, not read: what earlier steps wrote is where it should be. */
static int32_t other_cache(const fd_graph *graph, const fd_node *cache) {
    return fd_fault_sibling(graph, cache, fd_fault_is_one_of(cache, "cache_k") ? "cache_v" : "cache_k");
}
FD_APPLIES(has_other_cache, fd_fault_is_one_of(node, "cache_k cache_v") && other_cache(graph, node) >= 0 &&
                                fd_node_width(&graph->nodes[other_cache(graph, node)]) == fd_node_width(node))
/* By name: the other one's may have been edited already. */
static void written_for_other(fd_fault_site *site) {
    static const char *const of_k[] = {"attn_k_norm", "attn_k_rope", "attn_k_clamped", "attn_k"};
    const fd_node *other = &site->graph->nodes[other_cache(site->graph, site->node)];
    int32_t from =
        fd_fault_is_one_of(site->node, "cache_k") ? fd_fault_sibling(site->graph, other, "attn_v_clamped") : -1;
    if (fd_fault_is_one_of(site->node, "cache_k") && from < 0) from = fd_fault_sibling(site->graph, other, "attn_v");
    for (int i = 0; i < 4 && fd_fault_is_one_of(site->node, "cache_v"); i++) {
        const int32_t k = fd_fault_sibling(site->graph, site->node, of_k[i]);
        if (k > from) from = k;
    }
    if (from >= 0 && fd_node_width(&site->graph->nodes[from]) == fd_node_width(site->node)) site->node->input[0] = from;
}

#define CACHE(name, located, op_, summary) .info = {name, "kv_cache", summary, located, false}, .op = op_

#define PADDED(n)                                                                                                      \
    {                                                                                                                  \
        .info = {.name = "softmax_padding_" #n,                                                                        \
                 .family = "kv_cache",                                                                                 \
                 .summary = "softmax counts the keys that pad a step's to a multiple of " #n "; their score is 0",     \
                 .located = "attn_weights",                                                                            \
                 .whole_batch = true},                                                                                 \
        .op = FD_OP_ATTN_SOFTMAX, .override = padded_to_##n                                                            \
    }

static const fd_fault rows[] = {
    {CACHE("kv_off_by_one", "cache_k", FD_OP_KV_WRITE,
           "rows are written to the cache (of K and V, or a convolution's) one position too far"),
     .edit = one_further},
    {CACHE("kv_one_short", "cache_k", FD_OP_KV_WRITE,
           "rows are written to the cache (of K and V, or a convolution's) one position too early"),
     .edit = one_short},
    {CACHE("kv_by_element", "cache_k", FD_OP_KV_WRITE, "the cache advances by one element a position, not by a row"),
     .override = by_element},
    {CACHE("kv_by_head", "cache_k", FD_OP_KV_WRITE, "the cache advances by one head a position, not by all of them"),
     .applies = several_heads, .override = by_head},
    {CACHE("kv_never_advances", "cache_k", FD_OP_KV_WRITE, "every row is written over row 0 of the cache"),
     .override = never, .info.whole_batch = true},
    {CACHE("kv_step_in_one_row", "cache_k", FD_OP_KV_WRITE, "all rows of a step are written over its first"),
     .override = over_the_first, .info.whole_batch = true},
    {CACHE("v_never_written", "cache_v", FD_OP_KV_WRITE,
           "V is zero in the cache: its rows are never written, or written as zeros"),
     .nodes = "cache_v", .override = nothing, .info.lasting = true},
    {CACHE("k_never_written", "cache_k", FD_OP_KV_WRITE,
           "K is zero in the cache: its rows are never written, or written as zeros, and all keys weigh the same"),
     .nodes = "cache_k", .override = nothing, .info.lasting = true},
    {CACHE("v_normed", "cache_v", FD_OP_KV_WRITE, "V's heads are normed, as K's are"), .nodes = "cache_v",
     .applies = norms_k, .override = normed, .info.lasting = true, .info.roundings = 8},
    {CACHE("v_first_step_lost", "cache_v", FD_OP_KV_WRITE,
           "V's rows of the first step are never written: they are zero in later steps, too"),
     .nodes = "cache_v", .override = not_the_first, .info.lasting = true},
    {CACHE("kv_stale_row", "attn_scores", FD_OP_ATTN_SCORES, "attention reads K before this batch's rows are written"),
     .override = stale_k},
    {CACHE("kv_stale_v", "attn_out", FD_OP_ATTN_MIX, "attention reads V before this batch's rows are written"),
     .override = stale_v},
    {CACHE("kv_stale_both", "attn_scores", FD_OP_COUNT, "attention reads K and V before this batch's rows are written"),
     .edit = stale_both},
    {CACHE("newest_key_stale", "attn_scores", FD_OP_ATTN_SCORES,
           "for the newest position attention reads the K row of the one before"),
     .override = newest_k},
    {CACHE("newest_value_stale", "attn_out", FD_OP_ATTN_MIX,
           "for the newest position attention reads the V row of the one before"),
     .override = newest_v},
    {CACHE("newest_both_stale", "attn_scores", FD_OP_COUNT,
           "for the newest position attention reads the K and V rows of the one before"),
     .edit = newest_both},
    {CACHE("page_wrong", "attn_scores", FD_OP_COUNT,
           "the page table is wrong: pages of 4 keys, and the second is read from the first one's place"),
     .edit = page_both},
    {CACHE("kv_previous_layer", "attn_scores", FD_OP_COUNT, "layers share a cache: a layer reads the one before it"),
     .edit = previous_layer},
    {CACHE("kv_v_is_k", "attn_out", FD_OP_ATTN_MIX, "K and V share a cache: attention mixes the rows of K"),
     .edit = v_is_k},
    {CACHE("kv_exchanged", "attn_scores", FD_OP_COUNT,
           "the caches of K and V are exchanged: scores are those of V's rows, and attention mixes those of K"),
     .applies = k_is_turned, .edit = exchanged, .info.pair = true},
    {CACHE("kv_written_exchanged", "cache_k", FD_OP_KV_WRITE, "K is written to the cache of V, and V to that of K"),
     .nodes = "cache_k cache_v", .applies = has_other_cache, .edit = written_for_other, .info.pair = true},
    {CACHE("k_written_twice", "cache_v", FD_OP_KV_WRITE, "K is written to the cache of V, too"), .nodes = "cache_v",
     .applies = has_other_cache, .edit = written_for_other},
    {CACHE("cache_all_slots", "attn_weights", FD_OP_ATTN_SOFTMAX,
           "attention goes over every slot of the cache, up to the trained context; those nobody wrote have a score of "
           "0"),
     .override = all_slots},
    {CACHE("cache_one_slot_more", "attn_weights", FD_OP_ATTN_SOFTMAX,
           "attention goes over one slot more than is written, whose score is 0; or a smooth softmax adds e^0 to its "
           "sum"),
     .override = one_slot_more},
    PADDED(8),
    PADDED(16),
    PADDED(32),
    PADDED(64),
    PADDED(128),
    PADDED(256),
};
const fd_fault_family fd_cache_faults = FD_FAULT_FAMILY(rows);
