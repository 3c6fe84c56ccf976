/* The empty trace: every group, dataset and attribute. Nothing is added once the first step is written, because HDF5's
 * single-writer mode only lets datasets grow. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/store/writer.h"
#include "dumpers/store/weights.h"

/* A dataset to make: extents along positions start at 0 and have no limit. */
typedef struct set_plan {
    const char *name;
    hid_t type;
    int rank;
    hsize_t dim[3], max[3], chunk[3];
    const void *fill; /* one element of `type`; NULL: 0 */
    bool compress;
} set_plan;

static hid_t make_set(hid_t group, const set_plan *plan) {
    hid_t space = H5Screate_simple(plan->rank, plan->dim, plan->max);
    hid_t create = H5Pcreate(H5P_DATASET_CREATE);
    bool ok = space >= 0 && create >= 0 && H5Pset_chunk(create, plan->rank, plan->chunk) >= 0 &&
              H5Pset_obj_track_times(create, false) >= 0;
    if (ok && plan->fill) ok = H5Pset_fill_value(create, plan->type, plan->fill) >= 0;
    if (ok && plan->compress) ok = H5Pset_shuffle(create) >= 0 && H5Pset_deflate(create, 1) >= 0;
    hid_t set = ok ? H5Dcreate2(group, plan->name, plan->type, space, H5P_DEFAULT, create, H5P_DEFAULT) : -1;
    fd_h5_release(space);
    fd_h5_release(create);
    return set;
}

/* [n_pos, a, b] with as many positions to a chunk as fill 32 KiB, or as the run will have. */
static set_plan plan_rows(const fd_trace_writer *writer, const char *name, hid_t type, hsize_t a, hsize_t b) {
    hsize_t most = writer->options.n_pos > 0 ? (hsize_t)writer->options.n_pos : 1024;
    set_plan plan = {.name = name, .type = type, .rank = 3, .dim = {0, a, b}, .max = {H5S_UNLIMITED, a, b}};
    hsize_t row = H5Tget_size(type) * a * b;
    plan.chunk[0] = row >= 32768 ? 1 : 32768 / row > 1024 ? 1024 : 32768 / row;
    if (plan.chunk[0] > most) plan.chunk[0] = most;
    plan.chunk[1] = a;
    plan.chunk[2] = b;
    if (b == 1) plan.rank = a == 1 ? 1 : 2;
    return plan;
}

static bool make(hid_t group, set_plan plan, const char *description) {
    hid_t set = make_set(group, &plan);
    if (set < 0) return false;
    bool ok = fd_h5_put_string(set, "description", description);
    fd_h5_release(set);
    return ok;
}

static bool make_tensor(const fd_trace_writer *writer, hid_t group, const fd_node *node) {
    hid_t type = writer->stored == FD_F64 ? H5T_IEEE_F64LE : writer->stored == FD_F32 ? H5T_IEEE_F32LE : H5T_STD_U16LE;
    set_plan plan = {.name = node->name,
                     .type = type,
                     .rank = 1 + node->n_dim,
                     .max = {H5S_UNLIMITED},
                     .fill = fd_trace_fill_value(node, writer->stored),
                     .compress = writer->options.compress};
    for (int i = 0; i < node->n_dim; i++) {
        bool along_kv = node->over_kv && i == node->n_dim - 1;
        plan.dim[1 + i] = (hsize_t)node->shape[i];
        plan.max[1 + i] = along_kv ? H5S_UNLIMITED : plan.dim[1 + i];
    }
    fd_trace_chunk(node, fd_trace_stored_bytes(writer), plan.compress, plan.chunk);
    hid_t set = make_set(group, &plan);
    if (set < 0) return false;
    bool ok = fd_h5_put_string(set, "dtype", fd_dtype_get(writer->stored)->name) &&
              fd_h5_put_string(set, "op", fd_op_name(node->op)) && fd_h5_put_int(set, "seq", node->id) &&
              fd_h5_put_int(set, "layer", node->layer) && fd_h5_put_int(set, "over_kv", node->over_kv);
    fd_h5_release(set);
    return ok;
}

static hid_t make_group(hid_t file, const char *name) {
    hid_t create = H5Pcreate(H5P_GROUP_CREATE);
    /* h5py and h5web then list the tensors in order of execution */
    H5Pset_link_creation_order(create, H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
    hid_t group = H5Gcreate2(file, name, H5P_DEFAULT, create, H5P_DEFAULT);
    fd_h5_release(create);
    return group;
}

static bool make_tensors(const fd_trace_writer *writer, hid_t file) {
    hid_t group = make_group(file, "tensors");
    if (group < 0) return false;
    bool ok = true;
    for (int32_t i = 0; ok && i < writer->graph->n_node; i++)
        if (writer->stored_nodes[i]) ok = make_tensor(writer, group, &writer->graph->nodes[i]);
    fd_h5_release(group);
    return ok;
}

static bool make_graph(const fd_trace_writer *writer, hid_t file) {
    hsize_t n = (hsize_t)writer->graph->n_node;
    fd_graph_row *rows = calloc(n ? n : 1, sizeof *rows);
    if (!rows) return false;
    for (hsize_t i = 0; i < n; i++) fd_graph_row_fill(writer->graph, (int32_t)i, writer->dtype, &rows[i]);
    hid_t memory = fd_graph_row_type(), packed = H5Tcopy(memory), space = H5Screate_simple(1, &n, NULL);
    H5Tpack(packed);
    hid_t create = H5Pcreate(H5P_DATASET_CREATE);
    if (writer->options.compress && n > 0) {
        H5Pset_chunk(create, 1, &n);
        H5Pset_deflate(create, 1);
    }
    hid_t set = H5Dcreate2(file, "graph", packed, space, H5P_DEFAULT, create, H5P_DEFAULT);
    fd_h5_release(create);
    bool ok = set >= 0 && (n == 0 || H5Dwrite(set, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows) >= 0);
    free(rows);
    fd_h5_release(space);
    fd_h5_release(packed);
    fd_h5_release(memory);
    fd_h5_release(set);
    return ok;
}

static bool make_health(const fd_trace_writer *writer, hid_t file) {
    hid_t group = make_group(file, "health");
    if (group < 0) return false;
    const fd_hparams *h = &writer->graph->hparams;
    bool ok = true;
    for (int c = 0; ok && c < FD_HEALTH_COUNT; c++) {
        const fd_health_info *column = &fd_health_columns[c];
        hsize_t a = column->n_extra == 0 ? 1 : column->n_extra == 1 ? FD_TOP_K : (hsize_t)h->n_layer;
        hsize_t b = column->n_extra == 2 ? (hsize_t)h->n_head : 1;
        if (a == 0 || b == 0) continue;
        set_plan plan = plan_rows(writer, column->name, column->is_int ? H5T_STD_I32LE : H5T_IEEE_F32LE, a, b);
        plan.rank = 1 + column->n_extra; /* keeps [n_pos, n_layer, 1] for one head */
        ok = make(group, plan, column->about);
    }
    fd_h5_release(group);
    return ok;
}

static bool make_tables(const fd_trace_writer *writer, hid_t file) {
    hsize_t n_node = (hsize_t)writer->graph->n_node;
    static const char *const columns[] = {FD_STATS_COLUMNS};
    static const double nan64 = NAN;
    if (n_node == 0) return false;
    set_plan tokens = plan_rows(writer, "tokens", H5T_STD_I32LE, 1, 1);
    if (!make(file, tokens, "token fed at each position")) return false;
    hid_t packed = fd_step_row_type();
    set_plan steps = plan_rows(writer, "steps", packed, 1, 1);
    bool ok =
        make(file, steps, "forward calls; kind 0 prefill, 1 decode, 2 verify; level 0 fingerprint, 1 stats, 2 full");
    fd_h5_release(packed);
    if (!ok) return false;
    set_plan prints = plan_rows(writer, "fingerprints", H5T_STD_U64LE, n_node, 2);
    if (!make(file, prints, "[n_pos, n_node, (lo, hi)], nodes as in /graph; 0, 0: not recorded")) return false;
    if (writer->options.level < FD_TRACE_STATS) return true;
    set_plan stats = plan_rows(writer, "stats", H5T_IEEE_F64LE, n_node, FD_N_STATS);
    stats.fill = &nan64;
    hid_t set = make_set(file, &stats);
    ok = set >= 0 && fd_h5_put_strings(set, "columns", columns, FD_N_STATS) &&
         fd_h5_put_string(set, "description", "[n_pos, n_node, columns], nodes as in /graph; NaN: not recorded");
    fd_h5_release(set);
    return ok;
}

static bool put_info(const fd_trace_writer *writer, hid_t file, const fd_trace_info *info) {
    fd_trace_info written = *info;
    fd_trace_now(written.started);
    written.finished[0] = '\0';
    bool ok = fd_h5_put_string(file, "schema", FD_TRACE_SCHEMA) && fd_h5_put_int(file, "version", FD_TRACE_VERSION);
    for (size_t i = 0; ok && i < fd_info_field_count; i++)
        ok = fd_h5_put_string(file, fd_info_fields[i].name, (const char *)&written + fd_info_fields[i].offset);
    return ok && fd_h5_put_int(file, "contract", info->contract) &&
           fd_h5_put_string(file, "level", fd_trace_level_name(writer->options.level)) &&
           (!info->prompt || fd_h5_put_string(file, "prompt", info->prompt)) && fd_h5_put_int(file, "complete", 0);
}

static bool make_weights(const fd_trace_writer *writer, hid_t file) {
    fd_error err = {0}; /* whoever calls says that the trace cannot be created */
    const fd_graph *model = writer->options.weights;
    int32_t most = writer->options.level == FD_TRACE_FINGERPRINT ? FD_FEW_WEIGHT_HASHES : FD_MAX_WEIGHT_HASHES;
    return !model || fd_trace_write_weights(file, writer->graph, model, most, &err) == FD_OK;
}

static bool fill_empty(const fd_trace_writer *writer, hid_t root, const fd_trace_info *info) {
    return put_info(writer, root, info) && make_tables(writer, root) && make_health(writer, root) &&
           make_graph(writer, root) && make_tensors(writer, root) && make_weights(writer, root) &&
           writer->file->target.error == 0;
}

/* Rows go straight to the file: a step writes whole rows once, and a chunk cache for each of hundreds of tensors would
 * only hold memory. */
static hid_t open_set(hid_t file, const char *name) {
    hid_t access = H5Pcreate(H5P_DATASET_ACCESS);
    H5Pset_chunk_cache(access, 1, 0, 1.0);
    hid_t set = H5Dopen2(file, name, access);
    fd_h5_release(access);
    return set;
}

static bool open_all(fd_trace_writer *writer) {
    hid_t root = writer->root;
    if ((writer->tokens = open_set(root, "tokens")) < 0 || (writer->steps = open_set(root, "steps")) < 0 ||
        (writer->fingerprints = open_set(root, "fingerprints")) < 0)
        return false;
    if (writer->options.level >= FD_TRACE_STATS && (writer->stats = open_set(root, "stats")) < 0) return false;
    char name[80];
    for (int c = 0; c < FD_HEALTH_COUNT; c++) {
        snprintf(name, sizeof name, "health/%s", fd_health_columns[c].name);
        if (fd_h5_has(root, name) && (writer->health[c] = open_set(root, name)) < 0) return false;
    }
    for (int32_t i = 0; i < writer->graph->n_node; i++) {
        if (!writer->stored_nodes[i]) continue;
        snprintf(name, sizeof name, "tensors/%s", writer->graph->nodes[i].name);
        if ((writer->tensor[i] = open_set(root, name)) < 0) return false;
    }
    return true;
}

/* The trace of a file of its own: single-writer mode comes when the file has all its datasets. */
static fd_code create_alone(fd_trace_writer *writer, const fd_trace_info *info, fd_error *err) {
    if (!writer->file) FD_TRY(fd_trace_file_create(writer->path, &writer->file, err));
    if (fill_empty(writer, writer->file->id, info)) FD_TRY(fd_trace_file_publish(writer->file, err));
    writer->root = writer->file->growing ? -1 : writer->file->id;
    if (writer->root >= 0 && open_all(writer)) return FD_OK;
    return fd_h5_target_fail(&writer->file->target, err, "%s: cannot create the trace", writer->path);
}

static fd_code create_group(fd_trace_writer *writer, const fd_trace_info *info, fd_error *err) {
    hid_t link = H5Pcreate(H5P_LINK_CREATE), create = H5Pcreate(H5P_GROUP_CREATE);
    H5Pset_create_intermediate_group(link, 1);
    H5Pset_attr_phase_change(create, 64, 32);
    writer->root = H5Gcreate2(writer->file->id, writer->options.group, link, create, H5P_DEFAULT);
    fd_h5_release(link);
    fd_h5_release(create);
    if (writer->root >= 0 && fill_empty(writer, writer->root, info) && open_all(writer)) return FD_OK;
    return fd_h5_target_fail(&writer->file->target, err, "%s: cannot create group %s", writer->path,
                             writer->options.group);
}

fd_code fd_trace_create_file(fd_trace_writer *writer, const fd_trace_info *info, fd_error *err) {
    writer->file = writer->options.file;
    return writer->file ? create_group(writer, info, err) : create_alone(writer, info, err);
}
