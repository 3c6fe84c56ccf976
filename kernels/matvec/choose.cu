/* Matrix-vector products: which of the kernels takes them, in which form. None of the choices changes a bit. */
#include "kernels/matvec/matvec.h"

#include "base/dtype.h"
#include "kernels/matvec/stage.cuh"

static fd_code check(const fd_matvec *in, fd_error *err) {
    const fd_device_matrix *first = &in->part[0].weight;
    if (in->n_part < 1 || in->n_part > FD_MATVEC_PARTS)
        return fd_fail(err, FD_ERR_INPUT, "kernel matvec: %d parts", in->n_part);
    if (in->n_tok < 1 || in->n_tok > FD_MATVEC_TOKENS)
        return fd_fail(err, FD_ERR_INPUT, "kernel matvec: %d rows", in->n_tok);
    if (in->norm_out && in->n_tok != 1)
        return fd_fail(err, FD_ERR_INPUT, "kernel matvec: the normed x of %d rows is not kept", in->n_tok);
    if (in->silu_pair && (in->n_part != 2 || first->n_row != in->part[1].weight.n_row))
        return fd_fail(err, FD_ERR_INPUT, "kernel matvec: silu takes two parts of equal rows");
    for (int i = 0; i < in->n_part; i++) {
        const fd_device_matrix *w = &in->part[i].weight;
        if (w->dtype != first->dtype || w->n_col != first->n_col || w->n_row < 1 || w->n_col < 1 ||
            w->n_row > (1 << 29) || w->n_col > (1 << 30))
            return fd_fail(err, FD_ERR_INPUT,
                           "kernel matvec: part %d is [%lld, %lld] of type %u, part 0 has %lld columns of type %u", i,
                           (long long)w->n_row, (long long)w->n_col, (unsigned)w->dtype, (long long)first->n_col,
                           (unsigned)first->dtype);
    }
    return FD_OK;
}

/* Bulk copies came with sm_90, as clusters did; with scales apart from the weights lanes are faster
 * (docs/performance-diary.md). */
static bool can_bulk(const fd_launch_context *ctx, uint32_t dtype) {
    const fd_dtype_info *type = fd_dtype_get(dtype);
    return ctx->has_clusters && type && !type->is_quantised;
}

/* As measured (docs/performance-diary.md), by rows a multiprocessor. Many rows keep its warps busy without rings; fewer
 * want the rings' bytes in flight; few, lanes of two partials, so that more warps share the work. Types in blocks of
 * 256 pay with more instructions for their scales in such lanes, and gain by two rows a lane, which share what is read
 * of x. Bulk copies take long rows of floats where a multiprocessor has some; there rings pay for more rows, and one
 * row a lane where each warp has one row at most. Without rings a multiprocessor takes 96 rows at once, one a lane, or
 * 128, two a lane: rows between the two would need a second round. */
fd_matvec_form fd_matvec_choose(const fd_launch_context *ctx, const fd_matvec *in) {
    enum { FEW = 12, ONE_EACH = FD_MATVEC_WARPS, SOME = 40, MANY = 100, LOTS = 150, LONG = 4096, BULK_ROW = 4096 };
    enum { ROUND = 96, ROUND_2 = 128 };
    static const fd_matvec_form plain = {8, 1, 8, 1, 0, false}, plain_2 = {8, 2, 8, 1, 0, false};
    const fd_device_matrix *first = &in->part[0].weight;
    const fd_dtype_info *type = fd_dtype_get(first->dtype);
    const bool blocks_of_256 = type && type->block_elements == 256, floats = type && !type->is_quantised;
    int64_t n_row = 0;
    for (int i = 0; i < in->n_part; i++) n_row += in->part[i].weight.n_row;
    const int64_t rows = n_row / ctx->n_sm;
    const bool bulk = can_bulk(ctx, first->dtype) && first->row_bytes >= BULK_ROW && rows >= FEW;
    fd_matvec_form form;
    if (in->n_tok != 1 || first->n_col % 64 != 0) return plain;
    if (rows >= LOTS && blocks_of_256) {
        if (first->n_col < LONG) return plain_2;
        form = {8, 2, 16, 1, 2, false};
    } else if (rows >= LOTS && in->silu_pair && floats) {
        return plain_2;
    } else if (rows >= (bulk ? MANY : SOME)) {
        return rows > ROUND && rows <= ROUND_2 ? plain_2 : plain;
    } else if (rows < (bulk ? ONE_EACH : FEW)) {
        form = {2, in->silu_pair ? 2 : 1, 16, 1, 2, bulk};
    } else if (floats) {
        form = {2, 2, 16, 1, 2, bulk};
    } else {
        form = {8, 1, 8, 1, 2, false};
    }
    const int64_t ring = (int64_t)form.warps * form.stages * FD_MATVEC_STAGE_BYTES;
    const int64_t x = first->n_col * (int64_t)sizeof(float);
    return ring + x + 1024 <= (int64_t)ctx->max_shared ? form : plain;
}

static fd_code check_form(const fd_launch_context *ctx, const fd_matvec *in, const fd_matvec_form *form,
                          fd_error *err) {
    if ((form->partials == 2 || form->partials == 8) && (form->rows == 1 || form->rows == 2) && form->warps >= 1 &&
        form->warps <= FD_MATVEC_WARPS && form->blocks >= 1 && form->stages >= 2 && form->stages <= 4 &&
        (form->rows == 2 || form->partials == 8 || !in->silu_pair) && in->part[0].weight.n_col % 64 == 0 &&
        (!form->bulk || (form->partials == 2 && can_bulk(ctx, in->part[0].weight.dtype))))
        return FD_OK;
    return fd_fail(err, FD_ERR_INPUT,
                   "kernel matvec: no form of %d partials, %d rows, %d warps, %d blocks, %d stages%s for %lld columns",
                   form->partials, form->rows, form->warps, form->blocks, form->stages,
                   form->bulk ? " by bulk copies" : "", (long long)in->part[0].weight.n_col);
}

/* ---- several token rows ---- */

/* Whole rows of x beside the rings of as many warps as fit; `warps` 0 where fewer than the least do. */
static tokens_form whole_form(const fd_launch_context *ctx, int64_t n_col, int tokens, int partials, int rows) {
    enum { LEAST_WARPS = 4 };
    const int64_t left = (int64_t)ctx->max_shared - 1024 - tokens * n_col * (int64_t)sizeof(float);
    const int64_t warps = left / (TOKENS_STAGES * FD_MATVEC_STAGE_BYTES), most = tokens_warps(partials);
    return {tokens, partials, rows, left < 0 || warps < LEAST_WARPS ? 0 : (int)(warps < most ? warps : most), false};
}

/* As few token rows as hold n_tok where they fit; 0 warps: not even two do. Eight partials a lane where every
 * multiprocessor has rows for warps enough, and one row a lane where warps of that fit at once: as measured
 * (docs/performance-diary.md). */
static tokens_form choose_tokens(const fd_launch_context *ctx, const matvec_args &args, int n_tok,
                                 const fd_matvec_form *wanted) {
    enum { SOME = 24, MANY = 32 };
    const int64_t rows = args.n_row / ctx->n_sm; /* a multiprocessor */
    const int tokens = n_tok > 4 ? 8 : n_tok > 2 ? 4 : 2;
    const bool eight_partials = wanted ? wanted->partials == 8 : n_tok > 2 && rows >= SOME;
    if (eight_partials) {
        const int of_lane = wanted ? wanted->rows : rows >= MANY ? 2 : 1;
        tokens_form form = whole_form(ctx, args.n_col, tokens > 4 ? 8 : 4, 8, of_lane);
        if (form.warps == 0 && !args.norm_weight) form.warps = tokens_warps(8), form.in_chunks = true;
        if (form.warps > 0) return form;
    }
    for (int fewer = tokens; fewer >= 2; fewer /= 2) {
        const tokens_form form = whole_form(ctx, args.n_col, fewer, 2, 2);
        if (form.warps > 0) return form;
    }
    return {0, 2, 2, 0, false};
}

fd_code fd_launch_matvec(const fd_launch_context *ctx, const fd_matvec *in, const fd_matvec_form *form, fd_error *err) {
    FD_TRY(check(in, err));
    const fd_matvec_form own = form ? *form : fd_matvec_choose(ctx, in);
    const fd_device_matrix *first = &in->part[0].weight;
    matvec_args args = matvec_args_of(in);
    if (in->n_tok == 1 && own.stages > 0) {
        FD_TRY(check_form(ctx, in, &own, err));
        return fd_launch_matvec_ring(ctx, first->dtype, args, &own, err);
    }
    if (in->n_tok > 1 && args.n_col % 64 == 0 && (!form || form->stages > 0)) {
        if (form) FD_TRY(check_form(ctx, in, form, err));
        const tokens_form tokens = choose_tokens(ctx, args, in->n_tok, form);
        if (tokens.warps > 0) return fd_launch_matvec_tokens(ctx, first->dtype, args, in->n_tok, tokens, err);
    }
    const int norms = in->norm_weight ? 1 : 0;
    for (int done = 0, n; done < in->n_tok; done += n) {
        const int left = in->n_tok - done;
        n = left > 1 && fd_matvec_fits(ctx, args.n_col, 2 + norms) ? 2 : 1;
        args.x = in->x + (int64_t)done * args.n_col;
        for (int i = 0; i < in->n_part; i++) {
            const int64_t skip = done * args.part[i].n_row;
            args.part[i].out = in->part[i].out + skip;
            args.part[i].residual = in->part[i].residual ? in->part[i].residual + skip : nullptr;
            args.part[i].product = in->part[i].product ? in->part[i].product + skip : nullptr;
        }
        FD_TRY(fd_launch_matvec_plain(ctx, first->dtype, args, n, own.rows, err));
    }
    return FD_OK;
}

bool fd_matvec_fits(const fd_launch_context *ctx, int64_t n_col, int32_t n_tok) {
    return (size_t)n_tok * sizeof(float) * (size_t)((n_col + 63) / 64 * 64) + 1024 <= ctx->max_shared;
}
