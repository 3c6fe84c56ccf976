/* Makes the datasets, groups and attributes of an empty trace. False: HDF5 or the disk refused. */
#ifndef FD_DUMPERS_STORE_DATASETS_H
#define FD_DUMPERS_STORE_DATASETS_H

#include "dumpers/store/schema.h"

/* Attributes of the root but for `finished`: it is not complete. */
bool fd_trace_put_info(hid_t root, const fd_trace_info *info, fd_trace_level level);
/* Writes a list of n elements, deflated with `compress`. */
bool fd_trace_put_list(hid_t root, const char *name, hid_t stored, hid_t memory, int32_t n, const void *data,
                       bool compress);

/* In these, n_pos: positions that the trace will have, for tables that are no larger; 0: unknown. */

/* /tokens and /steps, with no rows, and the group /tensors. */
bool fd_trace_make_lists(hid_t root, int32_t n_pos);
/* /health; entropy and sink where n_layer and n_head are not 0. */
bool fd_trace_make_health(hid_t root, int32_t n_layer, int32_t n_head, int32_t n_pos);
/* /fingerprints and, where asked for, /stats, with a column for each of n nodes and no rows. */
bool fd_trace_make_fingerprints(hid_t root, int32_t n, int32_t n_pos);
bool fd_trace_make_stats(hid_t root, int32_t n, int32_t n_pos);
bool fd_trace_make_graph(hid_t root, const fd_graph_row *rows, int32_t n, bool compress);
/* tensors/NAME, with no rows; `row` says what its attributes are. */
bool fd_trace_make_tensor(hid_t root, const fd_graph_row *row, int32_t seq, const fd_tensor_form *form, bool compress);

/* Rows go straight to the file: a step writes whole rows once, and a chunk cache for each of hundreds of tensors would
 * only hold memory. -1: not there. */
hid_t fd_trace_open_set(hid_t root, const char *name);

#endif
