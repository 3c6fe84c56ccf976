#include "compare/bounds/numerics_class.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/text.h"
#include "compare/bounds/roundoffs.h"
#include "numerics/contract.h"

static const struct {
    const char *recorded, *name;
} aliases[] = {{"q8act", "q8"},    {"fast", "f16"},         {"fp32", "f32"},
               {"float32", "f32"}, {"fp16", "hf-f16"},      {"float16", "hf-f16"},
               {"half", "hf-f16"}, {"bfloat16", "hf-bf16"}, {"llama-cublas", "f16acc"}};

const fd_numerics_class *fd_numerics_class_find(const char *name) {
    static const char emulated[] = "emulate-"; /* our emulating executor records its class and, after a colon, a seed */
    bool strip = strncmp(name, emulated, strlen(emulated)) == 0;
    if (strip) name += strlen(emulated);
    size_t size = strip ? strcspn(name, ":") : strlen(name);
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strlen(aliases[i].recorded) == size && strncmp(aliases[i].recorded, name, size) == 0)
            name = aliases[i].name, size = strlen(name);
    const fd_numerics_class *found = fd_numerics_class_at(0);
    for (int32_t i = 0; found && (strlen(found->name) != size || strncmp(found->name, name, size) != 0);)
        found = fd_numerics_class_at(++i);
    return found;
}

const fd_numerics_class *fd_class_unfused(const fd_numerics_class *c) {
    char name[48];
    if (!fd_ends_with(c->name, "-fa")) return c;
    snprintf(name, sizeof name, "%.*s", (int)strlen(c->name) - 3, c->name);
    return fd_numerics_class_find(name);
}

const fd_numerics_class *fd_class_with_f16_cache(const fd_numerics_class *c) {
    static const char with[] = "-f32kv";
    char name[48];
    if (strcmp(c->name, "f32") == 0) return fd_numerics_class_find("f16kv");
    if (!fd_ends_with(c->name, with)) return NULL;
    snprintf(name, sizeof name, "%.*s-f16kv", (int)(strlen(c->name) - strlen(with)), c->name);
    return fd_numerics_class_find(name);
}

bool fd_class_has_room_in_mix(const fd_numerics_class *c) {
    return c->u_mix > U32 && !c->sums_in_turn;
}

bool fd_class_sums_in_16_bits(const fd_numerics_class *c) {
    return c->u_acc > U32 || c->u_acc_f16 > U32 || fd_class_has_room_in_mix(c);
}

bool fd_class_repeats_cache(const fd_numerics_class *c) {
    return c->u_kv >= UF16 && c->u_kv <= UF16 && c->u_attn <= 0;
}

bool fd_class_rounds_to_steps(const fd_numerics_class *c) {
    return c->replays_inputs || fd_class_repeats_cache(c);
}

bool fd_class_leaves_nothing(const fd_numerics_class *c) {
    bool cache_alone = c->u_in <= 0 && c->u_attn <= 0 && !c->q8_activations;
    return !c->exact && cache_alone && c->u_acc > 0 && c->u_acc <= 0x1p-24 && c->u_out <= 0x1p-24;
}

/* Bounds add the largest errors of the four or more operations of an op. */
#define TYPICAL_OF_SEVERAL 0.25

fd_numerics_class fd_numerics_class_shown(const fd_numerics_class *class_) {
    fd_numerics_class narrow = *class_;
    narrow.u_op = (class_->typical ? TYPICAL_OF_SEVERAL : 1) * class_->u_shown;
    narrow.u_out = class_->u_shown;
    narrow.tiny_out = class_->tiny_in;
    return narrow;
}

fd_numerics_class fd_numerics_class_inside_attention(const fd_numerics_class *class_) {
    fd_numerics_class inside = *class_;
    if (class_->fused_attention) inside.u_op = inside.u_out = U32, inside.tiny_out = TINY32;
    return inside;
}

fd_numerics_class fd_numerics_class_typical(const fd_numerics_class *class_) {
    fd_numerics_class typical = *class_;
    typical.typical = true;
    typical.u_op *= TYPICAL_OF_SEVERAL;
    return typical;
}

const char *fd_numerics_class_names(char *to, int32_t size) {
    int32_t at = 0;
    to[0] = '\0';
    for (int32_t i = 0; fd_numerics_class_at(i) && at < size; i++)
        at += snprintf(to + at, (size_t)(size - at), "%s%s", i ? ", " : "", fd_numerics_class_at(i)->name);
    return to;
}

double fd_dtype_roundoff(uint32_t dtype) {
    return dtype == FD_F16 ? UF16 : dtype == FD_BF16 ? UBF16 : dtype == FD_F32 ? U32 : 0;
}

double fd_dtype_tiny(uint32_t dtype) {
    return dtype == FD_F16 ? TINYF16 : dtype == FD_BF16 ? 0x1p-133 : dtype == FD_F32 ? 0x1p-149 : 0;
}

double fd_rounding_error(double x, int digits, double tiny) {
    if (!isfinite(x) || x == 0) return 0;
    bool fits = digits >= 53 || (fd_bits64(x) & ((UINT64_C(1) << (53 - digits)) - 1)) == 0;
    /* a subnormal: a multiple of the spacing, below where `digits` bits reach */
    double steps = tiny > 0 ? x / tiny : INFINITY;
    if (fits && (fabs(steps) >= ldexp(1, digits) || rint(steps) == steps)) return 0;
    double error = ldexp(fabs(x), -digits);
    return error > tiny / 2 ? error : tiny / 2;
}

double fd_bound_lambda(double n, double n_output) {
    const double delta = 1e-3;
    double outcomes = (n > 1 ? n : 1) * (n_output > 1 ? n_output : 1);
    return sqrt(2 * log(2 * outcomes / delta));
}
