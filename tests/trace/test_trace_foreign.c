/* Traces that somebody else wrote: the minimum, other element types, other orders. */
#include <criterion/criterion.h>
#include <hdf5.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dumpers/hdf5/h5.h"
#include "fixture.h"
#include "model/gguf/quant.h"
#include "tests/trace/foreign_trace.h"

Test(trace_foreign, the_minimum_opens) {
    const char *path = fixture_path("minimal.h5");
    hid_t file = foreign_start(path);
    foreign_add_ramp(file, "blk.0.attn_q");
    H5Fclose(file);
    fd_trace *trace = fixture_open(path);
    cr_expect(fd_trace_n_pos(trace) == FOREIGN_N_POS && fd_trace_n_node(trace) == 1 && fd_trace_n_step(trace) == 1);
    cr_expect(fd_trace_steps(trace)[0].kind == FD_STEP_PREFILL && fd_trace_steps(trace)[0].n_pos == FOREIGN_N_POS);
    cr_expect_eq(fd_trace_tokens(trace)[2], 4);
    const fd_trace_node *node = fd_trace_node_at(trace, 0);
    cr_expect_str_eq(node->op, "");
    cr_expect(node->layer == 0 && node->n_dim == 1 && node->shape[0] == 3 && node->has_data && !node->over_kv);
    cr_expect(fd_trace_get_info(trace)->complete && fd_trace_get_info(trace)->numerics[0] == '\0');
    cr_expect_null(fd_trace_fingerprint(trace, 0, 0));
    cr_expect_null(fd_trace_stats_at(trace, 0, 0));
    cr_expect_null(fd_trace_health_at(trace, 0));
    float row[3];
    fd_error err = {0};
    cr_assert_eq(fd_trace_read(trace, 0, 2, row, NULL, &err), FD_OK, "%s", err.message);
    cr_expect(row[0] == 6 && row[1] == 7 && row[2] == 8);
    cr_expect_eq(fd_trace_read(trace, 0, FOREIGN_N_POS, row, NULL, &err), FD_ERR_INPUT);
    cr_expect_eq(fd_trace_read(trace, 1, 0, row, NULL, &err), FD_ERR_INPUT);
    fd_trace_close(trace);
}

/* ---- order ---- */

Test(trace_foreign, names_give_the_order_of_execution) {
    const char *shuffled[] = {"logits",        "zebra",           "blk.10.attn_norm",  "blk.2.l_out", "blk.2.attn_q",
                              "blk.2.ffn_inp", "output_norm",     "blk.2.mystery",     "token_embd",  "blk.2.ffn_up",
                              "blk.2.attn_k",  "blk.2.attn_norm", "blk.2.attn_weights"};
    const char *sorted[] = {"token_embd",    "blk.2.attn_norm", "blk.2.attn_q", "blk.2.attn_k",  "blk.2.attn_weights",
                            "blk.2.ffn_inp", "blk.2.ffn_up",    "blk.2.l_out",  "blk.2.mystery", "blk.10.attn_norm",
                            "output_norm",   "logits",          "zebra"};
    const char *path = fixture_path("order.h5");
    hid_t file = foreign_start(path);
    size_t n = sizeof shuffled / sizeof *shuffled;
    hsize_t dims[3] = {FOREIGN_N_POS, 2, FOREIGN_N_POS};
    float weights[FOREIGN_N_POS * 2 * FOREIGN_N_POS] = {0};
    for (size_t i = 0; i < n; i++)
        if (strcmp(shuffled[i], "blk.2.attn_weights") == 0)
            H5Dclose(foreign_add(file, shuffled[i], H5T_IEEE_F32LE, 3, dims, H5T_NATIVE_FLOAT, weights));
        else
            foreign_add_ramp(file, shuffled[i]);
    H5Fclose(file);
    fd_trace *trace = fixture_open(path);
    for (size_t i = 0; i < n; i++) {
        cr_expect_str_eq(fd_trace_node_at(trace, (int32_t)i)->name, sorted[i]);
        cr_expect_eq(fd_trace_node_at(trace, (int32_t)i)->seq, (int32_t)i);
    }
    /* attn_weights run over the keys even without the attribute */
    const fd_trace_node *node = fd_trace_node_at(trace, 4);
    cr_expect(node->over_kv && node->shape[1] == 0 && fd_trace_elements(node, 2) == 6);
    fd_trace_close(trace);
}

Test(trace_foreign, seq_overrules_names_when_all_have_it) {
    const char *names[] = {"c", "a", "b"};
    for (int missing = 0; missing < 2; missing++) {
        const char *path = fixture_path("seq.h5");
        hid_t file = foreign_start(path);
        for (int i = 0; i < 3; i++) {
            foreign_add_ramp(file, names[i]);
            char set_path[16];
            snprintf(set_path, sizeof set_path, "tensors/%s", names[i]);
            hid_t set = H5Dopen2(file, set_path, H5P_DEFAULT);
            if (!missing || i > 0) fd_h5_put_int(set, "seq", 10 * i);
            H5Dclose(set);
        }
        H5Fclose(file);
        fd_trace *trace = fixture_open(path);
        cr_expect_str_eq(fd_trace_node_at(trace, 0)->name, missing ? "a" : "c");
        cr_expect_str_eq(fd_trace_node_at(trace, 2)->name, missing ? "c" : "b");
        fd_trace_close(trace);
    }
}

/* ---- element types ---- */

/* h5py's float16 and a bfloat16 as HDF5 describes it. */
static hid_t half_type(bool brain, bool big_endian) {
    hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    if (brain)
        H5Tset_fields(type, 15, 7, 8, 0, 7), H5Tset_precision(type, 16), H5Tset_size(type, 2);
    else
        H5Tset_fields(type, 15, 10, 5, 0, 10), H5Tset_precision(type, 16), H5Tset_size(type, 2), H5Tset_ebias(type, 15);
    if (big_endian) H5Tset_order(type, H5T_ORDER_BE);
    return type;
}

typedef struct type_case {
    const char *name, *attribute; /* attribute NULL: none */
    int kind; /* 0 f32, 1 f64, 2 f32 big-endian, 3 raw 16 bits, 4 float16, 5 bfloat16, 6 float16 BE */
    uint32_t dtype;
} type_case;

Test(trace_foreign, every_element_type_is_read_exactly) {
    const type_case cases[] = {
        {"float32", NULL, 0, FD_F32},          {"float32 that says so", "f32", 0, FD_F32},
        {"float64", NULL, 1, FD_F64},          {"big-endian", NULL, 2, FD_F32},
        {"raw halves", "F16", 3, FD_F16},      {"raw bfloats", "bf16", 3, FD_BF16},
        {"h5py's float16", NULL, 4, FD_F16},   {"a bfloat16 float", NULL, 5, FD_BF16},
        {"big-endian half", "F16", 6, FD_F16},
    };
    const uint16_t bits[FOREIGN_N_POS * 2] = {0x3c00, 0xc000, 0x0001, 0x7c00, 0x7e01, 0x8000, 0x3555, 0x7bff};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const char *path = fixture_path("types.h5");
        hid_t file = foreign_start(path), type = -1, set = -1;
        hsize_t dims[2] = {FOREIGN_N_POS, 2};
        float narrow[FOREIGN_N_POS * 2];
        double wide[FOREIGN_N_POS * 2];
        bool brain = cases[c].dtype == FD_BF16;
        for (int i = 0; i < FOREIGN_N_POS * 2; i++)
            wide[i] = narrow[i] = brain ? fd_bf16_to_f32(bits[i]) : fd_f16_to_f32(bits[i]);
        switch (cases[c].kind) {
        case 0: set = foreign_add(file, "x", H5T_IEEE_F32LE, 2, dims, H5T_NATIVE_FLOAT, narrow); break;
        case 1: set = foreign_add(file, "x", H5T_IEEE_F64LE, 2, dims, H5T_NATIVE_DOUBLE, wide); break;
        case 2: set = foreign_add(file, "x", H5T_IEEE_F32BE, 2, dims, H5T_NATIVE_FLOAT, narrow); break;
        case 3: set = foreign_add(file, "x", H5T_STD_U16LE, 2, dims, H5T_NATIVE_UINT16, bits); break;
        default:
            type = half_type(cases[c].kind == 5, false);
            hid_t stored = half_type(cases[c].kind == 5, cases[c].kind == 6);
            set = foreign_add(file, "x", stored, 2, dims, type, bits);
            H5Tclose(stored);
            H5Tclose(type);
        }
        if (cases[c].attribute) fd_h5_put_string(set, "dtype", cases[c].attribute);
        H5Dclose(set);
        H5Fclose(file);
        fd_trace *trace = fixture_open(path);
        cr_assert_eq(fd_trace_node_at(trace, 0)->dtype, cases[c].dtype, "%s", cases[c].name);
        for (int32_t pos = 0; pos < FOREIGN_N_POS; pos++) {
            fd_error err = {0};
            double row64[2];
            float row32[2];
            cr_assert_eq(fd_trace_read(trace, 0, pos, NULL, row64, &err), FD_OK, "%s", err.message);
            for (int i = 0; i < 2; i++)
                cr_expect_eq(fd_canonical64(row64[i]), fd_canonical64(wide[pos * 2 + i]), "%s: %g", cases[c].name,
                             row64[i]);
            fd_code code = fd_trace_read(trace, 0, pos, row32, NULL, &err);
            cr_expect_eq(code, cases[c].dtype == FD_F64 ? FD_ERR_INPUT : FD_OK, "%s", cases[c].name);
            for (int i = 0; code == FD_OK && i < 2; i++)
                cr_expect_eq(fd_canonical32(row32[i]), fd_canonical32(narrow[pos * 2 + i]), "%s", cases[c].name);
        }
        fd_trace_close(trace);
    }
}

/* ---- shapes ---- */

Test(trace_foreign, over_kv_rows_come_without_their_padding) {
    const char *path = fixture_path("scores.h5");
    hid_t file = foreign_start(path);
    hsize_t dims[3] = {FOREIGN_N_POS, 2, FOREIGN_N_POS + 3}; /* an engine may store its whole context */
    float data[FOREIGN_N_POS][2][FOREIGN_N_POS + 3];
    for (int p = 0; p < FOREIGN_N_POS; p++)
        for (int h = 0; h < 2; h++)
            for (int k = 0; k < FOREIGN_N_POS + 3; k++) data[p][h][k] = (float)(100 * p + 10 * h + k);
    hid_t set = foreign_add(file, "scores", H5T_IEEE_F32LE, 3, dims, H5T_NATIVE_FLOAT, data);
    fd_h5_put_int(set, "over_kv", 1);
    H5Dclose(set);
    H5Fclose(file);
    fd_trace *trace = fixture_open(path);
    fd_error err = {0};
    float row[6];
    cr_assert_eq(fd_trace_read(trace, 0, 2, row, NULL, &err), FD_OK, "%s", err.message);
    const float expected[6] = {200, 201, 202, 210, 211, 212};
    cr_expect_arr_eq(row, expected, sizeof row);
    fd_trace_close(trace);
}

Test(trace_foreign, first_position_places_the_rows_of_a_part) {
    const char *path = fixture_path("last_logits.h5");
    hid_t file = foreign_start(path);
    hsize_t dims[2] = {1, 3};
    float data[3] = {7, 8, 9};
    hid_t set = foreign_add(file, "logits", H5T_IEEE_F32LE, 2, dims, H5T_NATIVE_FLOAT, data);
    fd_h5_put_int(set, "first_position", FOREIGN_N_POS - 1);
    H5Dclose(set);
    H5Fclose(file);
    fd_trace *trace = fixture_open(path);
    fd_error err = {0};
    float row[3];
    cr_expect_eq(fd_trace_read(trace, 0, 0, row, NULL, &err), FD_ERR_INCOMPLETE);
    cr_assert_eq(fd_trace_read(trace, 0, FOREIGN_N_POS - 1, row, NULL, &err), FD_OK, "%s", err.message);
    cr_expect_eq(row[1], 8.0f);
    fd_trace_close(trace);
}
