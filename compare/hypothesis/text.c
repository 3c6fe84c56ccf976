/* What the engine does, in one line. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare/bounds/dot_inputs.h"
#include "compare/hypothesis/internal.h"
#include "compare/hypothesis/parameters.h"
#include "compare/hypothesis/round_scaled.h"
#include "compare/hypothesis/round_type.h"

#define SAY(...) snprintf(to, size, __VA_ARGS__)

static void input_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size) {
    const fd_node *own = h->node < 0 ? NULL : &graph->nodes[h->node];
    if (h->node < 0 && h->readers > 0) {
        const char *name = graph->nodes[h->readers - 1].name;
        if (h->n)
            SAY("what reads %s reads it of %d position%s before", name, h->n, h->n == 1 ? "" : "s");
        else
            SAY("what reads %s reads %s", name, graph->nodes[h->other].name);
        return;
    }
    const char *was = own && own->input[h->which] >= 0 ? graph->nodes[own->input[h->which]].name : "its input";
    if (h->n && own && h->other == own->input[h->which])
        SAY("reads %s of %d position%s before", was, h->n, h->n == 1 ? "" : "s");
    else
        SAY("reads %s where %s is right", graph->nodes[h->other].name, was);
}

static void factor_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size) {
    const fd_node *node = h->node < 0 ? NULL : &graph->nodes[h->node];
    int64_t width = !node ? 0 : node->over_kv ? node->shape[0] : fd_node_width(node);
    const char *unit = node && node->over_kv ? "head" : "element";
    char where[104] = "the values are";
    bool some = width && (h->first > 0 || h->end < width), one = h->end - h->first == 1;
    char every[40] = "";
    if (h->n) snprintf(every, sizeof every, "of every %d ", h->n);
    if (some && one) snprintf(where, sizeof where, "%s%s %d is", every, unit, h->first);
    if (some && !one) snprintf(where, sizeof where, "%s%ss %d…%d are", every, unit, h->first, h->end - 1);
    if (h->value == 0.0 && node && node->op == FD_OP_KV_WRITE && !some)
        SAY("rows are zero in the cache: not written");
    else if (h->value == 0.0 && h->before_bias)
        SAY("%s the bias alone: the matrix's rows are zero, or not multiplied", some ? where : "it is");
    else if (h->value == 0.0)
        SAY("%s zero", some ? where : "it is");
    else
        SAY("%s %.6g times the right ones%s", where, h->value, h->before_bias ? ", but for the bias" : "");
    fd_hypothesis_say_size(h->value, graph, to, size);
}

static void state_text(const fd_hypothesis *h, char *to, size_t size) {
    switch ((fd_state_rule)h->which) {
    case FD_STATE_FRESH: SAY("what earlier steps left is not read: the state starts at zero"); break;
    case FD_STATE_FROZEN: SAY("steps of one position do not store their state: each starts from the same"); break;
    case FD_STATE_LATE: SAY("the state that a step leaves lacks its last position"); break;
    }
}

static void statistic_text(const fd_hypothesis *h, char *to, size_t size) {
    switch ((fd_statistic)h->which) {
    case FD_STATISTIC_FIRST_OF_ALL: SAY("RMSNorm sums the squares of the first %d elements alone", h->n); break;
    case FD_STATISTIC_FIRST: SAY("RMSNorm takes the mean square of the first %d elements", h->n); break;
    case FD_STATISTIC_ABSOLUTE:
        SAY("RMSNorm divides by the mean of absolute values, not by the root of the mean square");
        break;
    case FD_STATISTIC_LARGEST: SAY("RMSNorm divides by the largest absolute value of the row"); break;
    case FD_STATISTIC_VARIANCE: SAY("RMSNorm divides by the standard deviation: its squares lack the mean's"); break;
    case FD_STATISTIC_PARTS: SAY("RMSNorm divides each of %d parts of its row by a number of its own", h->n); break;
    case FD_STATISTIC_WHOLE_ROW:
        SAY("RMSNorm divides all heads by one number, their row's, not each by its own");
        break;
    case FD_STATISTIC_FIRST_ROW: SAY("RMSNorm divides every row of a step by what its first row is divided by"); break;
    }
}

/* Of what op the number says what is wrong. */

static void partial_text(const fd_hypothesis *h, char *to, size_t size) {
    const char *bias = h->other ? h->keys ? ", without the bias" : " and the bias" : "";
    if (h->keys)
        SAY("only the partial sum of rank %d of %d ranks is there%s: no all-reduce", h->which, h->n, bias);
    else
        SAY("the partial sum of rank %d of %d ranks%s %s: without ranks, part %d of %d of what it adds up", h->which,
            h->n, bias,
            h->other       ? "are left out"
            : h->value > 0 ? "is added twice"
                           : "is left out",
            h->which + 1, h->n);
}

static void clamp_text(const fd_hypothesis *h, char *to, size_t size) {
    if (h->which == 3)
        SAY("softmax's exponents are clamped from below at -%.6g", h->value);
    else if (h->which == 2)
        SAY("weights below %.6g are taken for 0", h->value);
    else
        SAY("%s cut off %s %.6g", h->which == 4 ? "the activation, which up is multiplied by, is" : "values are",
            h->which == 1 ? "above" : "beyond ±", h->value);
}

static void rounded_text(const fd_hypothesis *h, const fd_node *node, char *to, size_t size) {
    static const char *const what[] = {
        [FD_ROUNDED_RESULT] = "",
        [FD_ROUNDED_INPUT] = "what it reads is ",
        [FD_ROUNDED_BOTH] = "what it reads and what it gives are ",
        [FD_ROUNDED_TABLE] = "gate and what up is multiplied by, as in a table, are ",
    };
    const bool caches = h->node < 0 && h->ops - 1 == FD_OP_KV_WRITE, scaled = fd_is_scaled_type(h->other);
    char every[64] = "";
    if (h->node < 0 && !caches && !h->kind[0])
        snprintf(every, sizeof every, "every %s is ", fd_op_name((fd_op)(h->ops - 1)));
    SAY("%s%srounded to %s%s", caches && !h->kind[0] ? "K and V are kept " : every,
        h->which != FD_ROUNDED_FACTOR ? what[h->which]
        : node->weight[0] >= 0        ? "what its weight multiplies is "
                                      : "what up is multiplied by is ",
        fd_round_type_name(h->other), scaled ? fd_scale_name((fd_scale_of)h->n) : "");
}

static void summary_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size) {
    to[0] = '\0';
    const fd_parameter *p = h->guess == FD_GUESS_PARAMETER ? &fd_parameters[h->which] : NULL;
    const fd_node *node = &graph->nodes[h->node < 0 ? 0 : h->node];
    switch (h->guess) {
    case FD_GUESS_NONE: break;
    case FD_GUESS_FAULT: SAY("%s", fd_fault_at(h->fault)->summary); break;
    case FD_GUESS_PARAMETER: {
        if (p->op == FD_OP_KV_WRITE) {
            SAY("rows are written to the cache %g position%s too %s", fabs(h->value), fabs(h->value) > 1 ? "s" : "",
                h->value > 0 ? "far" : "early");
            break;
        }
        double file = 0;
        bool differ = false;
        for (int32_t i = 0, n = 0; i < graph->n_node; i++) {
            if (graph->nodes[i].op != p->op ||
                (h->node < 0 ? !fd_hypothesis_may_concern(h, &graph->nodes[i]) : h->node != i))
                continue;
            const double here = fd_parameter_of(p, &graph->nodes[i]);
            differ |= n++ && here != file;
            if (n == 1) file = here;
        }
        SAY("%s %.6g%s", p->words, h->value,
            h->n       ? ", with the frequencies of the whole"
            : h->other ? ", and no scaling for longer contexts"
                       : "");
        if (p->type == FD_PARAMETER_F32) fd_hypothesis_say_size(h->value, graph, to, size);
        if (!differ) snprintf(to + strlen(to), size - strlen(to), "; the file says %.6g", file);
        break;
    }
    case FD_GUESS_POSITION: fd_hypothesis_position_text(h, to, size); break;
    case FD_GUESS_WEIGHT:
        if (h->kind[0])
            SAY("reads the matrix%s of the layer %s", h->other ? " and the bias" : "", h->n > 0 ? "after" : "before");
        else if (h->node < 0)
            SAY(h->n ? "layers %d and %d have each other's weights, or run in each other's place"
                     : "layer %d has the weights of layer %d",
                h->layer, h->other);
        else if (h->end > 0)
            SAY("rows %d…%d are those of %s, where %s is right", h->first, h->end - 1, graph->weights[h->other].name,
                graph->weights[node->weight[h->which]].name);
        else
            SAY("reads %s%s where %s is right", graph->weights[h->other].name, h->n ? ", and its bias," : "",
                node->weight[h->which] < 0 ? "none" : graph->weights[node->weight[h->which]].name);
        break;
    case FD_GUESS_INPUT: input_text(h, graph, to, size); break;
    case FD_GUESS_INPUT_FACTOR:
        if (h->node < 0)
            SAY("every %s takes its %s input %.6g times", fd_op_name((fd_op)(h->ops - 1)),
                h->which ? "second" : "first", h->value);
        else if (h->value == 0.0)
            SAY("%s is left out", graph->nodes[node->input[h->which]].name);
        else
            SAY("takes %s %.6g times%s", graph->nodes[node->input[h->which]].name, h->value,
                node->op != FD_OP_ATTN_SOFTMAX               ? ""
                : fabs(h->value - 0.6931471805599453) < 1e-5 ? ", which is ln 2: 2^x for e^x"
                : fabs(h->value - 1.4426950408889634) < 1e-5 ? ", which is 1 / ln 2: e^x for 2^x"
                                                             : "");
        fd_hypothesis_say_size(h->value, graph, to, size);
        break;
    case FD_GUESS_INPUT_TAIL:
        if (h->node >= 0 && node->op == FD_OP_ATTN_MIX) {
            SAY("keys after the last whole tile of %d are left out", h->n);
            break;
        }
        if (h->node >= 0 && h->end > 0 && node->weight[0] >= 0 && h->end < graph->weights[node->weight[0]].n_col) {
            const char *what = h->value > 0 ? "counted twice" : "left out";
            if (h->other && h->n == 1)
                SAY("element %d of every %d of its sums is %s", h->first, h->end, what);
            else if (h->other)
                SAY("elements %d…%d of every %d of its sums are %s", h->first, h->first + h->n - 1, h->end, what);
            else
                SAY("the last %d of every %d elements of its sums are %s", h->n, h->end, what);
            break;
        }
        if (h->other) {
            SAY("element %d of what it multiplies is left out, or that column of the matrix", h->first);
            break;
        }
        SAY("the last %d elements of %s are %s", h->n,
            h->node >= 0 && node->op == FD_OP_ATTN_SCORES ? "each head of q·k" : "its sums",
            h->value > 0 ? "counted twice" : "left out");
        break;
    case FD_GUESS_PARTIAL: partial_text(h, to, size); break;
    case FD_GUESS_STRIDES:
    case FD_GUESS_TILES:
    case FD_GUESS_CACHE:
    case FD_GUESS_MAPPED:
    case FD_GUESS_EXPERTS:
    case FD_GUESS_HEAD_NUMBERS:
    case FD_GUESS_UNWRITTEN:
    case FD_GUESS_SLOTS:
    case FD_GUESS_KEYS: fd_hypothesis_attention_text(h, graph, to, size); break;
    case FD_GUESS_STATE: state_text(h, to, size); break;
    case FD_GUESS_STATISTIC: statistic_text(h, to, size); break;
    case FD_GUESS_SCALING:
        if (h->which == FD_ROPE_SCALING_LINEAR)
            SAY("RoPE divides every frequency by %g; the file scales them otherwise", h->value);
        else
            SAY("RoPE's frequencies are scaled as %s does, by %g from a context of %d%s; the file says otherwise",
                h->which == FD_ROPE_SCALING_YARN ? "YaRN" : "llama3", h->value, h->n,
                h->other ? ", with YaRN's factor of cos and sin" : "");
        break;
    case FD_GUESS_TWICE: SAY("%s is applied twice", fd_op_name(node->op)); break;
    case FD_GUESS_CLAMP: clamp_text(h, to, size); break;
    case FD_GUESS_CAP:
        SAY("%sa softcap of %.6g, where the file has none", h->which ? "softmax caps its scores: " : "", h->value);
        break;
    case FD_GUESS_BLOCKS: {
        static const char *const words[FD_BLOCKS_COUNT] = {
            [FD_BLOCKS_CUT] = "values of int8 blocks are cut off towards zero, not rounded",
            [FD_BLOCKS_DOWN] = "values of int8 blocks are rounded down, not to the nearest",
            [FD_BLOCKS_BY_128] = "the scale of int8 blocks is their largest value / 128, not / 127",
            [FD_BLOCKS_BY_128_CLAMPED] =
                "the scale of int8 blocks is their largest value / 128, not / 127, and what exceeds 127 is cut",
            [FD_BLOCKS_ROW] = "int8 values have one scale a row, not one a block",
        };
        SAY("%s", words[h->which]);
        break;
    }
    case FD_GUESS_FACTOR: factor_text(h, graph, to, size); break;
    case FD_GUESS_TOKEN:
    case FD_GUESS_OWN:
    case FD_GUESS_INPUT_ORDER:
    case FD_GUESS_COPY:
    case FD_GUESS_ORDER:
    case FD_GUESS_ROWS: fd_hypothesis_rows_text(h, graph, to, size); break;
    case FD_GUESS_ROUNDED: rounded_text(h, node, to, size); break;
    }
}

static void kind_text(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size) {
    fd_hypothesis one = *h;
    for (int32_t i = 0; i < graph->n_node && one.node < 0; i++)
        if (fd_hypothesis_may_concern(h, &graph->nodes[i])) one.node = i;
    summary_text(&one, graph, to, size);
    const int n = (int)strcspn(h->kind, " "); /* of one kind, or of two */
    snprintf(to + strlen(to), size - strlen(to), ", at every %.*s%s%s", n, h->kind, h->kind[n] ? " and " : "",
             h->kind[n] ? h->kind + n + 1 : "");
}

void fd_hypothesis_summary(const fd_hypothesis *h, const fd_graph *graph, char *to, size_t size) {
    if (h->since) {
        const int n = snprintf(to, size, "from position %d on: ", h->since);
        fd_hypothesis always = *h;
        always.since = 0;
        if (n > 0 && (size_t)n < size) fd_hypothesis_summary(&always, graph, to + n, size - (size_t)n);
        return;
    }
    if (h->node < 0 && h->kind[0])
        kind_text(h, graph, to, size);
    else
        summary_text(h, graph, to, size);
    if (h->guess == FD_GUESS_FAULT && h->node < 0 && h->readers)
        snprintf(to + strlen(to), size - strlen(to), ", in what reads %s alone", graph->nodes[h->readers - 1].name);
    fd_hypothesis_where_text(h, graph, to + strlen(to), size - strlen(to));
}
