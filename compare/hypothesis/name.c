/* What the engine does, as one word: explanations are counted and compared by it. */
#include "compare/hypothesis/internal.h"
#include "compare/hypothesis/parameters.h"
#include "faults/tiles.h"

static const char *own_name(const fd_hypothesis *h) {
    static const char *const names[] = {
        [FD_OWN_ROW_FACTOR] = "row_factor",         [FD_OWN_COLUMN_TERM] = "column_term",
        [FD_OWN_ELEMENTS] = "weight_rows_wrong",    [FD_OWN_LOG_SOFTMAX] = "log_softmax",
        [FD_OWN_COLUMN_FACTOR] = "column_factor",   [FD_OWN_EXPERTS] = "experts_left_out",
        [FD_OWN_EXPERT_BIAS] = "other_expert_bias", [FD_OWN_FUNCTION] = "other_function",
        [FD_OWN_LOW_RANK] = "low_rank_term",        [FD_OWN_CONSTANT] = "constant",
        [FD_OWN_DROPPED] = "dropout_active",        [FD_OWN_INPUT_ELEMENT] = "weight_rows_wrong",
    };
    return h->which == FD_OWN_ROW_FACTOR && h->other == FD_OUTSIDE ? "keys_outside" : names[h->which];
}

static const char *cache_name(const fd_hypothesis *h) {
    switch ((fd_cache_rule)h->which) {
    case FD_CACHE_ZEROS:
    case FD_CACHE_MOVED: return h->end == h->first + 1 ? "cache_row_wrong" : "cache_rows_wrong";
    case FD_CACHE_EXCHANGED: return "cache_rows_wrong";
    case FD_CACHE_SHIFTED: return "cache_shifted";
    case FD_CACHE_RING: return "cache_ring_short";
    case FD_CACHE_OF: return "other_cache";
    case FD_CACHE_PAST: return "other_past";
    case FD_CACHE_UNKNOWN: return "cache_rows_stale";
    case FD_CACHE_LATE: return "cache_slots_late";
    case FD_CACHE_OWN: return "own_row_stale";
    case FD_CACHE_OUTSIDE: return "keys_outside";
    case FD_CACHE_BLOCKS: return "cache_blocks";
    }
    return "";
}

const char *fd_hypothesis_name(const fd_hypothesis *h) {
    switch (h->guess) {
    case FD_GUESS_NONE: return "";
    case FD_GUESS_STRIDES: return "strides_ignored";
    case FD_GUESS_FAULT: return fd_fault_at(h->fault)->name;
    case FD_GUESS_PARAMETER: return fd_parameters[h->which].name;
    case FD_GUESS_POSITION: return "other_position";
    case FD_GUESS_WEIGHT: return h->node < 0 && !h->kind[0] ? "other_layer" : "other_weight";
    case FD_GUESS_INPUT: return h->n ? "earlier_input" : "other_input";
    case FD_GUESS_INPUT_ORDER: return "other_input_order";
    case FD_GUESS_INPUT_FACTOR: return "input_factor";
    case FD_GUESS_INPUT_TAIL: return h->value > 0 ? "sum_counts_twice" : "sum_cut_short";
    case FD_GUESS_PARTIAL: return h->keys ? "tp_not_reduced" : h->value > 0 ? "tp_partial_twice" : "tp_partial_missing";
    case FD_GUESS_TILES: return fd_tile_rule_name((fd_tile_rule)h->which);
    case FD_GUESS_CACHE: return cache_name(h);
    case FD_GUESS_MAPPED:
        return h->which == FD_MAPPED_EXPERTS   ? "other_experts"
               : h->which == FD_MAPPED_NUMBERS ? "other_head_numbers"
               : h->which == FD_MAPPED_QUERIES ? "query_heads_mapped"
               : h->which == FD_MAPPED_OUTPUTS ? "other_expert_outputs"
                                               : "other_kv_heads";
    case FD_GUESS_EXPERTS: return h->which == FD_EXPERTS_LEFT_OUT ? "experts_left_out" : "expert_inputs_weighted";
    case FD_GUESS_HEAD_NUMBERS: return "other_head_numbers";
    case FD_GUESS_UNWRITTEN: return "cache_rows_unwritten";
    case FD_GUESS_STATE: return h->which == FD_STATE_FRESH ? "state_not_carried" : "state_not_stored";
    case FD_GUESS_STATISTIC: return "other_statistic";
    case FD_GUESS_SCALING: return "other_rope_scaling";
    case FD_GUESS_TWICE: return "applied_twice";
    case FD_GUESS_COPY: return h->which ? "other_term" : "other_tensor";
    case FD_GUESS_CLAMP: return h->which == 2 ? "small_as_zero" : "clamped";
    case FD_GUESS_OWN: return own_name(h);
    case FD_GUESS_CAP: return h->which ? "other_attn_softcap" : "other_softcap";
    case FD_GUESS_KEYS: return "keys_hidden";
    case FD_GUESS_SLOTS: return "cache_empty_slots";
    case FD_GUESS_BLOCKS: return "other_blocks";
    case FD_GUESS_TOKEN:
        return h->which != FD_TOKEN_BEFORE ? "other_token" : h->n < 0 ? "later_token" : "earlier_token";
    case FD_GUESS_FACTOR: return h->value == 0.0 ? "zeros" : "factor";
    case FD_GUESS_ORDER: return "other_order";
    case FD_GUESS_ROWS: return h->which == FD_ROWS_LATE ? "cache_slots_late" : "other_rows";
    case FD_GUESS_ROUNDED: return "rounded";
    }
    return "";
}
