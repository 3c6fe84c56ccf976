/* Elements on their way through the pages, each beside the number of its gather: 8 bytes that arrive together, so that
 * an element is known to be there by itself. */
#ifndef FD_KERNELS_GATHER_PAGE_CUH
#define FD_KERNELS_GATHER_PAGE_CUH

#include "kernels/gather/gather.h"

enum { FD_PAGES_AT = 256 /* bytes, behind the fd_mailbox */ };

__device__ __forceinline__ void fd_store_marked(uint2 *to, float element, uint32_t turn) {
    asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(__float_as_uint(element)), "r"(turn)
                 : "memory");
}
__device__ __forceinline__ uint2 fd_load_marked(const uint2 *from) {
    uint2 value;
    asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(value.x), "=r"(value.y)
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    return value;
}

/* The gather's number since the engine was made; the passes before are complete. */
__device__ __forceinline__ uint32_t fd_turn_of(const fd_send &s) {
    return __ldcg(&s.mail[s.rank]->turn) + s.index;
}
__device__ __forceinline__ uint2 *fd_page_of(const fd_send &s, int rank, uint32_t turn) {
    return (uint2 *)((char *)s.mail[rank] + FD_PAGES_AT) + (turn % 2) * s.n_page;
}

/* ---- for the kernel before a gather: it sends what it computes ---- */

__device__ __forceinline__ uint32_t &fd_sent_turn() {
    __shared__ uint32_t turn;
    return turn;
}
/* By all threads of a block, before a barrier; the sends follow that. `s` is a kernel parameter, its `mail` is indexed. */
__device__ __forceinline__ void fd_send_begin(const fd_send &s) {
    if (s.n_rank > 0 && threadIdx.x == 0) fd_sent_turn() = fd_turn_of(s);
}
/* Element `at` of this rank's, to every rank. */
__device__ __forceinline__ void fd_send_element(const fd_send &s, int64_t at, float element) {
    const uint32_t turn = fd_sent_turn();
#pragma unroll 1
    for (int r = 0; r < s.n_rank; r++) fd_store_marked(fd_page_of(s, r, turn) + s.first + at, element, turn);
}

#endif
