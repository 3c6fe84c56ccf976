/* A row of weights from the file to the device's layout (kernels/formats/pack.h), of every type. */
#ifndef FD_ENGINE_PACK_WEIGHT_H
#define FD_ENGINE_PACK_WEIGHT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* n_col elements of `dtype` (fd_can_pack), both in host memory; `to` gets fd_packed_row_bytes. */
void fd_pack_weight_row(uint32_t dtype, int64_t n_col, const void *from, void *to);

#ifdef __cplusplus
}
#endif
#endif
