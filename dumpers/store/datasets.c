#include "dumpers/store/datasets.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A dataset to make: extents along positions start at 0 and have no limit. */
typedef struct set_plan {
    const char *name;
    hid_t type;
    int rank;
    hsize_t dim[FD_H5_MAX_RANK], max[FD_H5_MAX_RANK], chunk[FD_H5_MAX_RANK];
    const void *fill; /* one element of `type`; NULL: 0 */
    bool compress;
} set_plan;

static hid_t make_set(hid_t group, const set_plan *plan) {
    hid_t space = H5Screate_simple(plan->rank, plan->dim, plan->max);
    hid_t create = H5Pcreate(H5P_DATASET_CREATE), links = H5Pcreate(H5P_LINK_CREATE);
    bool ok = space >= 0 && create >= 0 && H5Pset_chunk(create, plan->rank, plan->chunk) >= 0 &&
              H5Pset_obj_track_times(create, false) >= 0 && H5Pset_char_encoding(links, H5T_CSET_UTF8) >= 0;
    if (ok && plan->fill) ok = H5Pset_fill_value(create, plan->type, plan->fill) >= 0;
    if (ok && plan->compress) ok = H5Pset_shuffle(create) >= 0 && H5Pset_deflate(create, 1) >= 0;
    hid_t set = ok ? H5Dcreate2(group, plan->name, plan->type, space, links, create, H5P_DEFAULT) : -1;
    fd_h5_release(space);
    fd_h5_release(create);
    fd_h5_release(links);
    return set;
}

/* [positions, a, b] with as many positions to a chunk as fill 32 KiB, or as the trace will have. */
static set_plan plan_rows(const char *name, hid_t type, hsize_t a, hsize_t b, int32_t n_pos) {
    hsize_t most = n_pos > 0 && n_pos < 1024 ? (hsize_t)n_pos : 1024;
    set_plan plan = {.name = name, .type = type, .rank = 3, .dim = {0, a, b}, .max = {H5S_UNLIMITED, a, b}};
    hsize_t row = H5Tget_size(type) * a * b;
    plan.chunk[0] = row >= 32768 ? 1 : 32768 / row > most ? most : 32768 / row;
    plan.chunk[1] = a;
    plan.chunk[2] = b;
    if (b == 1) plan.rank = a == 1 ? 1 : 2;
    return plan;
}

static bool make_table(hid_t group, set_plan plan, const char *description) {
    hid_t set = make_set(group, &plan);
    bool ok = set >= 0 && fd_h5_put_string(set, "description", description);
    fd_h5_release(set);
    return ok;
}

static hid_t make_group(hid_t root, const char *name) {
    hid_t create = H5Pcreate(H5P_GROUP_CREATE);
    /* h5py and h5web then list the tensors in order of execution */
    H5Pset_link_creation_order(create, H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
    hid_t group = H5Gcreate2(root, name, H5P_DEFAULT, create, H5P_DEFAULT);
    fd_h5_release(create);
    return group;
}

bool fd_trace_put_info(hid_t root, const fd_trace_info *info, fd_trace_level level) {
    bool ok = fd_h5_put_string(root, "schema", FD_TRACE_SCHEMA) && fd_h5_put_int(root, "version", FD_TRACE_VERSION);
    for (size_t i = 0; ok && i < fd_info_field_count; i++)
        ok = fd_h5_put_string(root, fd_info_fields[i].name, (const char *)info + fd_info_fields[i].offset);
    return ok && fd_h5_put_int(root, "contract", info->contract) &&
           fd_h5_put_string(root, "level", fd_trace_level_name(level)) &&
           (!info->prompt || fd_h5_put_string(root, "prompt", info->prompt)) && fd_h5_put_int(root, "complete", 0);
}

bool fd_trace_put_list(hid_t root, const char *name, hid_t stored, hid_t memory, int32_t n, const void *data,
                       bool compress) {
    hsize_t dim = (hsize_t)n;
    hid_t space = H5Screate_simple(1, &dim, NULL), create = H5Pcreate(H5P_DATASET_CREATE);
    if (compress && n > 0) {
        H5Pset_chunk(create, 1, &dim);
        H5Pset_deflate(create, 1);
    }
    hid_t set = H5Dcreate2(root, name, stored, space, H5P_DEFAULT, create, H5P_DEFAULT);
    fd_h5_release(create);
    bool ok = set >= 0 && (n == 0 || H5Dwrite(set, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
    fd_h5_release(set);
    fd_h5_release(space);
    return ok;
}

bool fd_trace_make_lists(hid_t root, int32_t n_pos) {
    hid_t step = fd_h5_type_make(&fd_step_row_type), group = make_group(root, "tensors");
    bool ok = make_table(root, plan_rows("tokens", H5T_STD_I32LE, 1, 1, n_pos), "token fed at each position") &&
              make_table(root, plan_rows("steps", step, 1, 1, n_pos),
                         "forward calls; kind 0 prefill, 1 decode, 2 verify; level 0 fingerprint, 1 stats, 2 full");
    fd_h5_release(step);
    fd_h5_release(group);
    return ok && group >= 0;
}

bool fd_trace_make_health(hid_t root, int32_t n_layer, int32_t n_head, int32_t n_pos) {
    hid_t group = make_group(root, "health");
    bool ok = group >= 0;
    for (int c = 0; ok && c < FD_HEALTH_COUNT; c++) {
        const fd_health_info *column = &fd_health_columns[c];
        hsize_t a = column->n_extra == 0 ? 1 : column->n_extra == 1 ? FD_TOP_K : (hsize_t)n_layer;
        hsize_t b = column->n_extra == 2 ? (hsize_t)n_head : 1;
        if (a == 0 || b == 0) continue;
        set_plan plan = plan_rows(column->name, column->is_int ? H5T_STD_I32LE : H5T_IEEE_F32LE, a, b, n_pos);
        plan.rank = 1 + column->n_extra; /* keeps [n_pos, n_layer, 1] for one head */
        ok = make_table(group, plan, column->about);
    }
    fd_h5_release(group);
    return ok;
}

bool fd_trace_make_fingerprints(hid_t root, int32_t n, int32_t n_pos) {
    return make_table(root, plan_rows("fingerprints", H5T_STD_U64LE, (hsize_t)n, 2, n_pos),
                      "[n_pos, n_node, (lo, hi)], nodes as in /graph; 0, 0: not recorded");
}

bool fd_trace_make_stats(hid_t root, int32_t n, int32_t n_pos) {
    static const char *const columns[] = {FD_STATS_COLUMNS};
    static const double nan64 = NAN;
    set_plan stats = plan_rows("stats", H5T_IEEE_F64LE, (hsize_t)n, FD_N_STATS, n_pos);
    stats.fill = &nan64;
    hid_t set = make_set(root, &stats);
    bool ok = set >= 0 && fd_h5_put_strings(set, "columns", columns, FD_N_STATS) &&
              fd_h5_put_string(set, "description", "[n_pos, n_node, columns], nodes as in /graph; NaN: not recorded");
    fd_h5_release(set);
    return ok;
}

bool fd_trace_make_graph(hid_t root, const fd_graph_row *rows, int32_t n, bool compress) {
    hid_t memory = fd_h5_type_make(&fd_graph_row_type), packed = H5Tcopy(memory);
    H5Tpack(packed);
    bool ok = fd_trace_put_list(root, "graph", packed, memory, n, rows, compress);
    fd_h5_release(packed);
    fd_h5_release(memory);
    return ok;
}

bool fd_trace_make_tensor(hid_t root, const fd_graph_row *row, int32_t seq, const fd_tensor_form *form, bool compress) {
    char name[80];
    snprintf(name, sizeof name, "tensors/%s", row->name);
    set_plan plan = {.name = name,
                     .type = fd_stored_type(form->dtype),
                     .rank = 1 + form->n_dim,
                     .fill = fd_form_fill(form),
                     .compress = compress};
    fd_form_extent(form, 0, 0, plan.dim);
    fd_form_extent(form, 0, 0, plan.max);
    plan.max[0] = H5S_UNLIMITED;
    if (form->over_kv) plan.max[form->n_dim] = H5S_UNLIMITED;
    fd_form_chunk(form, compress, plan.chunk);
    hid_t set = make_set(root, &plan);
    bool ok = set >= 0 && fd_h5_put_string(set, "dtype", fd_dtype_get(form->dtype)->name) &&
              fd_h5_put_int(set, "seq", seq) && fd_h5_put_int(set, "layer", row->layer) &&
              fd_h5_put_int(set, "over_kv", row->over_kv) && (!row->op[0] || fd_h5_put_string(set, "op", row->op));
    fd_h5_release(set);
    return ok;
}

hid_t fd_trace_open_set(hid_t root, const char *name) {
    hid_t access = H5Pcreate(H5P_DATASET_ACCESS);
    H5Pset_chunk_cache(access, 1, 0, 1.0);
    hid_t set = H5Dopen2(root, name, access);
    fd_h5_release(access);
    return set;
}
