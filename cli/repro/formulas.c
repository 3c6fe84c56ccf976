/* Every op as it should be, in NumPy and in C: y holds the tested elements. Where the op computes a whole part of a row,
 * FIRST is where they begin in it. tests/cli/repro_every_op.py holds each to the reference. */
#include "cli/repro/internal.h"

/* Formulas that several ops have: NumPy, C, the arrays. */
#define FORMULA_COPY "    y = load(\"x\")\n", "    for (int i = 0; i < N; i++) y[i] = x[i];\n", "x"
#define FORMULA_PRODUCT                                                                                                \
    "    y = load(\"w\") @ load(\"x\") + load(\"bias\")\n",                                                            \
        "    for (int i = 0; i < N; i++) {\n"                                                                          \
        "        double sum = bias[i];\n"                                                                              \
        "        for (int k = 0; k < N_IN; k++) sum += w[i * N_IN + k] * x[k];\n"                                      \
        "        y[i] = sum;\n"                                                                                        \
        "    }\n",                                                                                                     \
        "w x bias"
#define FORMULA_SOFTMAX                                                                                                \
    "    x = load(\"x\")\n"                                                                                            \
    "    m = max(x.max(), SINK)\n"                                                                                     \
    "    e = np.exp(x - m)\n"                                                                                          \
    "    y = (e / (e.sum() + np.exp(SINK - m)))[FIRST : FIRST + N]\n",                                                 \
        "    double m = SINK, sum = 0;\n"                                                                              \
        "    for (int k = 0; k < N_IN; k++) m = x[k] > m ? x[k] : m;\n"                                                \
        "    for (int k = 0; k < N_IN; k++) sum += exp(x[k] - m);\n"                                                   \
        "    sum += exp(SINK - m);\n"                                                                                  \
        "    for (int i = 0; i < N; i++) y[i] = exp(x[FIRST + i] - m) / sum;\n",                                       \
        "x"
#define FORMULA_WEIGHTED_SUM                                                                                           \
    "    y = load(\"p\") @ load(\"v\")\n",                                                                             \
        "    for (int i = 0; i < N; i++) {\n"                                                                          \
        "        y[i] = 0;\n"                                                                                          \
        "        for (int t = 0; t < N_IN; t++) y[i] += p[t] * v[t * N + i];\n"                                        \
        "    }\n",                                                                                                     \
        "p v"
#define FORMULA_SUM                                                                                                    \
    "    y = load(\"a\") + load(\"b\")\n", "    for (int i = 0; i < N; i++) y[i] = a[i] + b[i];\n", "a b"
#define FORMULA_TIMES_CONSTANT                                                                                         \
    "    y = load(\"x\") * SCALE\n", "    for (int i = 0; i < N; i++) y[i] = x[i] * SCALE;\n", "x"
#define FORMULA_TIMES                                                                                                  \
    "    y = load(\"a\") * load(\"b\")\n", "    for (int i = 0; i < N; i++) y[i] = a[i] * b[i];\n", "a b"

static const fd_repro_op ops[] = {
    {FD_OP_EMBED, fd_repro_write_embed, FORMULA_COPY},
    {FD_OP_RMS_NORM, fd_repro_write_rms_norm,
     "    x = load(\"x\")\n"
     "    y = (x / np.sqrt((x * x).mean() + EPS) * load(\"w\"))[FIRST : FIRST + N]\n",
     "    double mean = 0;\n"
     "    for (int k = 0; k < N_IN; k++) mean += x[k] * x[k] / N_IN;\n"
     "    for (int i = 0; i < N; i++) y[i] = x[FIRST + i] / sqrt(mean + EPS) * w[FIRST + i];\n",
     "x w"},
    {FD_OP_MATMUL, fd_repro_write_matmul, FORMULA_PRODUCT},
    {FD_OP_ROPE, fd_repro_write_rope,
     "    x, c, s = load(\"x\"), load(\"cosine\"), load(\"sine\")\n"
     "    i = np.arange(HALF)\n"
     "    one, two = (2 * i, 2 * i + 1) if INTERLEAVED else (i, i + HALF)\n"
     "    y = x.copy()\n"
     "    y[one], y[two] = x[one] * c - x[two] * s, x[one] * s + x[two] * c\n"
     "    y = y[FIRST : FIRST + N]\n",
     "    double all[N_IN];\n"
     "    for (int k = 0; k < N_IN; k++) all[k] = x[k];\n"
     "    for (int i = 0; i < HALF; i++) {\n"
     "        int one = INTERLEAVED ? 2 * i : i, two = INTERLEAVED ? 2 * i + 1 : i + HALF;\n"
     "        all[one] = x[one] * cosine[i] - x[two] * sine[i];\n"
     "        all[two] = x[one] * sine[i] + x[two] * cosine[i];\n"
     "    }\n"
     "    for (int i = 0; i < N; i++) y[i] = all[FIRST + i];\n",
     "x cosine sine"},
    {FD_OP_KV_WRITE, fd_repro_write_cache_row, FORMULA_COPY},
    {FD_OP_ATTN_SCORES, fd_repro_write_scores,
     "    s = load(\"k\") @ load(\"q\") * SCALE\n"
     "    y = np.where(np.arange(FIRST, FIRST + N) < FIRST_SEEN, -np.inf, CAP * np.tanh(s / CAP) if CAP else s)\n",
     "    for (int i = 0; i < N; i++) {\n"
     "        double sum = 0, cap = CAP;\n"
     "        for (int d = 0; d < N_IN; d++) sum += q[d] * k[i * N_IN + d] * SCALE;\n"
     "        y[i] = FIRST + i < FIRST_SEEN ? -INFINITY : cap > 0 ? cap * tanh(sum / cap) : sum;\n"
     "    }\n",
     "q k"},
    {FD_OP_ATTN_SOFTMAX, fd_repro_write_softmax, FORMULA_SOFTMAX},
    {FD_OP_ATTN_MIX, fd_repro_write_mix, FORMULA_WEIGHTED_SUM},
    {FD_OP_SILU_MUL, fd_repro_write_two,
     "    a = load(\"a\")\n"
     "    y = a / (1 + np.exp(-a)) * load(\"b\")\n",
     "    for (int i = 0; i < N; i++) y[i] = a[i] / (1 + exp(-a[i])) * b[i];\n", "a b"},
    {FD_OP_ADD, fd_repro_write_two, FORMULA_SUM},
    {FD_OP_SCALE, fd_repro_write_one, FORMULA_TIMES_CONSTANT},
    {FD_OP_ATTN_TEMPERATURE, fd_repro_write_one, FORMULA_TIMES_CONSTANT},
    {FD_OP_SOFTCAP, fd_repro_write_one, "    y = CAP * np.tanh(load(\"x\") / CAP)\n",
     "    for (int i = 0; i < N; i++) y[i] = CAP * tanh(x[i] / CAP);\n", "x"},
    {FD_OP_GELU_MUL, fd_repro_write_two,
     "    a = load(\"a\")\n"
     "    y = 0.5 * a * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3))) * load(\"b\")\n",
     "    for (int i = 0; i < N; i++)\n"
     "        y[i] = 0.5 * a[i] * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (a[i] + 0.044715 * a[i] * a[i] * "
     "a[i]))) * b[i];\n",
     "a b"},
    {FD_OP_SWIGLU_CLAMP, fd_repro_write_two,
     "    a, b = np.minimum(load(\"a\"), LIMIT), np.clip(load(\"b\"), -LIMIT, LIMIT)\n"
     "    y = a / (1 + np.exp(-SLOPE * a)) * (b + 1)\n",
     "    for (int i = 0; i < N; i++) {\n"
     "        double g = fmin(a[i], LIMIT), u = fmax(fmin(b[i], LIMIT), -LIMIT);\n"
     "        y[i] = g / (1 + exp(-SLOPE * g)) * (u + 1);\n"
     "    }\n",
     "a b"},
    {FD_OP_SOFTMAX, fd_repro_write_row_softmax, FORMULA_SOFTMAX},
    {FD_OP_TOP_K, fd_repro_write_top_k,
     "    x = load(\"x\").reshape(GROUPS, -1)\n"
     "    best = np.argsort(-np.sort(x)[:, -2:].sum(-1), kind=\"stable\")[:GROUPS_USED]\n"
     "    x[~np.isin(np.arange(GROUPS), best)] = -np.inf\n"
     "    y = np.argsort(-x.ravel(), kind=\"stable\")[FIRST : FIRST + N]\n",
     "    int each = N_IN / GROUPS;\n"
     "    double sum[GROUPS];\n"
     "    for (int g = 0; g < GROUPS; g++) {\n"
     "        double one = -INFINITY, two = -INFINITY;\n"
     "        for (int k = g * each; k < (g + 1) * each; k++) {\n"
     "            two = x[k] > one ? one : x[k] > two ? x[k] : two;\n"
     "            one = x[k] > one ? x[k] : one;\n"
     "        }\n"
     "        sum[g] = one + two;\n"
     "    }\n"
     "    for (int k = 0; k < N_IN; k++) {\n"
     "        int better = 0, rank = 0;\n"
     "        for (int g = 0; g < GROUPS; g++) better += sum[g] > sum[k / each] || (sum[g] == sum[k / each] && g < k / "
     "each);\n"
     "        for (int o = 0; o < N_IN && better < GROUPS_USED; o++) {\n"
     "            int open = 0;\n"
     "            for (int g = 0; g < GROUPS; g++) open += sum[g] > sum[o / each] || (sum[g] == sum[o / each] && g < o "
     "/ each);\n"
     "            rank += open < GROUPS_USED && (x[o] > x[k] || (x[o] == x[k] && o < k));\n"
     "        }\n"
     "        if (better < GROUPS_USED && rank >= FIRST && rank < FIRST + N) y[rank - FIRST] = k;\n"
     "    }\n",
     "x"},
    {FD_OP_EXPERT_WEIGHTS, fd_repro_write_expert_weights,
     "    x = load(\"x\")\n"
     "    x = np.exp(x - x.max()) if SOFTMAX else x\n"
     "    y = (x / (x.sum() if SOFTMAX or NORMALISED else 1) * SCALE)[FIRST : FIRST + N]\n",
     "    double max = -INFINITY, sum = 0;\n"
     "    for (int k = 0; k < N_IN; k++) max = x[k] > max ? x[k] : max;\n"
     "    for (int k = 0; k < N_IN; k++) sum += SOFTMAX ? exp(x[k] - max) : x[k];\n"
     "    for (int i = 0; i < N; i++)\n"
     "        y[i] = (SOFTMAX ? exp(x[FIRST + i] - max) : x[FIRST + i]) / (SOFTMAX || NORMALISED ? sum : 1) * SCALE;\n",
     "x"},
    {FD_OP_EXPERT_MATMUL, fd_repro_write_expert_matmul, FORMULA_PRODUCT},
    {FD_OP_EXPERT_SUM, fd_repro_write_expert_sum, FORMULA_WEIGHTED_SUM},
    {FD_OP_LAYER_NORM, fd_repro_write_layer_norm,
     "    x = load(\"x\")\n"
     "    y = ((x - x.mean()) / np.sqrt(x.var() + EPS))[FIRST : FIRST + N] * load(\"w\") + load(\"b\")\n",
     "    double mean = 0, variance = 0;\n"
     "    for (int k = 0; k < N_IN; k++) mean += x[k] / N_IN;\n"
     "    for (int k = 0; k < N_IN; k++) variance += (x[k] - mean) * (x[k] - mean) / N_IN;\n"
     "    for (int i = 0; i < N; i++) y[i] = (x[FIRST + i] - mean) / sqrt(variance + EPS) * w[i] + b[i];\n",
     "x w b"},
    {FD_OP_ADD_POSITION, fd_repro_write_with_vector, FORMULA_SUM},
    {FD_OP_ADD_VECTOR, fd_repro_write_with_vector, FORMULA_SUM},
    {FD_OP_ATTN_ALIBI, fd_repro_write_alibi, "    y = load(\"x\") + SLOPE * (np.arange(FIRST, FIRST + N) - POSITION)\n",
     "    for (int i = 0; i < N; i++) y[i] = x[i] + SLOPE * (FIRST + i - POSITION);\n", "x"},
    {FD_OP_GELU, fd_repro_write_one,
     "    a = load(\"x\")\n"
     "    y = 0.5 * a * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3)))\n",
     "    for (int i = 0; i < N; i++)\n"
     "        y[i] = 0.5 * x[i] * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x[i] + 0.044715 * x[i] * x[i] * "
     "x[i])));\n",
     "x"},
    {FD_OP_RELU_SQUARED, fd_repro_write_one, "    y = np.maximum(load(\"x\"), 0) ** 2\n",
     "    for (int i = 0; i < N; i++) y[i] = x[i] > 0 ? x[i] * x[i] : 0;\n", "x"},
    {FD_OP_SIGMOID, fd_repro_write_one, "    y = 1 / (1 + np.exp(-load(\"x\")))\n",
     "    for (int i = 0; i < N; i++) y[i] = 1 / (1 + exp(-x[i]));\n", "x"},
    {FD_OP_CLAMP, fd_repro_write_one, "    y = np.clip(load(\"x\"), -LIMIT, LIMIT)\n",
     "    for (int i = 0; i < N; i++) y[i] = fmax(fmin(x[i], LIMIT), -LIMIT);\n", "x"},
    {FD_OP_SLICE, fd_repro_write_slice, FORMULA_COPY},
    {FD_OP_CONCAT, fd_repro_write_concat, FORMULA_COPY},
    {FD_OP_HEAD_MATMUL, fd_repro_write_head_matmul, FORMULA_PRODUCT},
    {FD_OP_SILU, fd_repro_write_one,
     "    x = load(\"x\")\n"
     "    y = x / (1 + np.exp(-x))\n",
     "    for (int i = 0; i < N; i++) y[i] = x[i] / (1 + exp(-x[i]));\n", "x"},
    {FD_OP_SOFTPLUS, fd_repro_write_one, "    y = np.logaddexp(0, load(\"x\"))\n",
     "    for (int i = 0; i < N; i++) y[i] = fmax(x[i], 0) + log1p(exp(-fabs(x[i])));\n", "x"},
    {FD_OP_CONV, fd_repro_write_conv, "    y = (load(\"w\").T * load(\"x\")).sum(0) + load(\"bias\")\n",
     "    for (int i = 0; i < N; i++) {\n"
     "        y[i] = bias[i];\n"
     "        for (int j = 0; j < TAPS; j++) y[i] += w[i * TAPS + j] * x[j * N + i];\n"
     "    }\n",
     "x w bias"},
    {FD_OP_SSM_SCAN, fd_repro_write_ssm_scan,
     "    h = 0\n"
     "    for dt, x, b in zip(load(\"dt\"), load(\"x\"), load(\"b\")):\n"
     "        h = h * np.exp(load(\"a\") * dt) + np.outer(x * dt, b)\n"
     "    y = h @ load(\"c\") + D * x\n",
     "    for (int i = 0; i < N; i++) {\n"
     "        double h[STATE] = {0};\n"
     "        for (int t = 0; t < T; t++)\n"
     "            for (int s = 0; s < STATE; s++) h[s] = h[s] * exp(a[s] * dt[t]) + x[t * N + i] * dt[t] * b[t * STATE "
     "+ s];\n"
     "        y[i] = D * x[(T - 1) * N + i];\n"
     "        for (int s = 0; s < STATE; s++) y[i] += c[s] * h[s];\n"
     "    }\n",
     "a c dt x b"},
    {FD_OP_MUL, fd_repro_write_two, FORMULA_TIMES},
    {FD_OP_MUL_VECTOR, fd_repro_write_with_vector, FORMULA_TIMES},
    {FD_OP_EXP, fd_repro_write_one, "    y = np.exp(load(\"x\"))\n",
     "    for (int i = 0; i < N; i++) y[i] = exp(x[i]);\n", "x"},
    {FD_OP_L2_NORM, fd_repro_write_l2_norm,
     "    x = load(\"x\")\n"
     "    y = (x / np.sqrt((x * x).sum() + EPS))[FIRST : FIRST + N]\n",
     "    double sum = EPS;\n"
     "    for (int k = 0; k < N_IN; k++) sum += x[k] * x[k];\n"
     "    for (int i = 0; i < N; i++) y[i] = x[FIRST + i] / sqrt(sum);\n",
     "x"},
    {FD_OP_TOKEN_SHIFT, fd_repro_write_token_shift,
     "    x = load(\"x\")\n"
     "    y = x + (load(\"before\") - x) * load(\"w\")\n",
     "    for (int i = 0; i < N; i++) y[i] = x[i] + (before[i] - x[i]) * w[i];\n", "x before w"},
    {FD_OP_GATED_DELTA, fd_repro_write_gated_delta,
     "    s = np.zeros((STATE, N))\n"
     "    for g, beta, k, v in zip(load(\"log_decay\"), load(\"beta\"), load(\"k\"), load(\"v\")):\n"
     "        s = s * np.exp(g)\n"
     "        s = s + np.outer(k, (v - k @ s) * beta)\n"
     "    y = load(\"q\") @ s * SCALE\n",
     "    for (int i = 0; i < N; i++) {\n"
     "        double s[STATE] = {0};\n"
     "        y[i] = 0;\n"
     "        for (int t = 0; t < T; t++) {\n"
     "            double read = 0;\n"
     "            for (int n = 0; n < STATE; n++) s[n] *= exp(log_decay[t]);\n"
     "            for (int n = 0; n < STATE; n++) read += k[t * STATE + n] * s[n];\n"
     "            for (int n = 0; n < STATE; n++) s[n] += k[t * STATE + n] * (v[t * N + i] - read) * beta[t];\n"
     "        }\n"
     "        for (int n = 0; n < STATE; n++) y[i] += q[n] * s[n] * SCALE;\n"
     "    }\n",
     "q log_decay beta k v"},
    {FD_OP_WKV7, fd_repro_write_wkv7,
     "    s = np.zeros((N, STATE))\n"
     "    for w, k, v, a, b in zip(*map(load, \"wkvab\")):\n"
     "        s = s * w + np.outer(s @ a, b) + np.outer(v, k)\n"
     "    y = s @ load(\"r\")\n",
     "    for (int i = 0; i < N; i++) {\n"
     "        double s[STATE] = {0};\n"
     "        y[i] = 0;\n"
     "        for (int t = 0; t < T; t++) {\n"
     "            double read = 0;\n"
     "            for (int n = 0; n < STATE; n++) read += a[t * STATE + n] * s[n];\n"
     "            for (int n = 0; n < STATE; n++)\n"
     "                s[n] = s[n] * w[t * STATE + n] + read * b[t * STATE + n] + v[t * N + i] * k[t * STATE + n];\n"
     "        }\n"
     "        for (int n = 0; n < STATE; n++) y[i] += r[n] * s[n];\n"
     "    }\n",
     "w k v a b r"},
};

const fd_repro_op *fd_repro_op_of(fd_op op) {
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (ops[i].op == op) return &ops[i];
    return NULL;
}
