#include "kernels/gather/gather.h"

#include "kernels/device.cuh"
#include "kernels/gather/page.cuh"
#include "kernels/launch.cuh"

enum {
    THREADS = 512,
    MOST_BLOCKS = 64, /* enough for the link; all but one end without waiting */
    PAGE_THREADS =
        128, /* small blocks: they find room beside those of the product before, and are there when it ends */
    MOST_PAGE_BLOCKS = 256,  /* all wait */
    MOST_SHARED_BLOCKS = 64, /* of all ranks on one device: other kernels need multiprocessors where none waits */
    SPINS_A_LOOK = 4096,     /* `stop` lies in host memory: it is looked at seldom */
};

size_t fd_mailbox_bytes(int64_t n_element) {
    return FD_PAGES_AT + 2 * sizeof(uint2) * (size_t)n_element;
}

__device__ __forceinline__ void store_release(uint32_t *to, uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t load_acquire(const uint32_t *from) {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(from)) : "memory");
    return value;
}

__device__ __forceinline__ uint32_t thread_of_grid() {
    return blockIdx.x * blockDim.x + threadIdx.x;
}

/* ---- through the pages ---- */

/* The whole as it arrives: elements before `first` and from first + width on, of each row. */
__device__ __forceinline__ void take_elements(const fd_gather &in, uint32_t turn, uint32_t first, uint32_t width) {
    const uint32_t stride = (uint32_t)in.stride, whole = (uint32_t)in.n_row * stride;
    const uint2 *page = fd_page_of(in.send, in.send.rank, turn);
    float *to = in.to[in.send.rank];
    for (uint32_t at = thread_of_grid(); at < whole; at += gridDim.x * PAGE_THREADS) {
        if (at % stride - first < width) continue; /* before `first` the difference is huge */
        const float plus = in.plus ? in.plus[at] : 0.0f;
        uint2 marked = fd_load_marked(page + at);
        for (int spins = 1; marked.y != turn; spins++) {
            if (spins % SPINS_A_LOOK == 0 && load_acquire(in.stop) != 0) break;
            marked = fd_load_marked(page + at);
        }
        const float element = __uint_as_float(marked.x);
        to[at] = in.plus ? element + plus : element;
    }
}

/* A rank that sends for the gather after the next one has completed the next one, for which the others sent once they
 * had completed this one: two pages do. */
__global__ void __launch_bounds__(PAGE_THREADS) gather_by_page(const __grid_constant__ fd_gather in) {
    if (in.alone) fd_pdl_launch_dependents();
    const uint32_t turn = fd_turn_of(in.send);
    const uint32_t width = (uint32_t)in.width, stride = (uint32_t)in.stride, first = (uint32_t)in.send.first;
    const uint32_t step = gridDim.x * PAGE_THREADS, part = (uint32_t)in.n_row * width;
    fd_pdl_wait();
    const float *x = in.x + (in.pos0 ? *in.pos0 * in.width : 0);
    float *to = in.to[in.send.rank];
    for (uint32_t i = thread_of_grid(); i < part; i += step) {
        const float element = x[i];
        const uint32_t at = i / width * stride + first + i % width;
        for (int r = 0; r < in.send.n_rank; r++)
            if (r != in.send.rank) fd_store_marked(fd_page_of(in.send, r, turn) + at, element, turn);
        to[at] = in.plus ? element + in.plus[at] : element;
    }
    take_elements(in, turn, first, width);
}

/* What the kernel before sends, this rank's part too: taken while that one still runs. An element that is there says
 * that everything before that kernel is complete. */
__global__ void __launch_bounds__(PAGE_THREADS) gather_sent(const __grid_constant__ fd_gather in) {
    if (in.alone) fd_pdl_launch_dependents();
    take_elements(in, fd_turn_of(in.send), 0, 0);
    fd_pdl_wait(); /* whoever waits for this kernel waits for that one, too */
}

/* ---- straight to where it goes ---- */

template <class Element> __device__ __forceinline__ void write_part(const fd_gather &in) {
    constexpr int64_t EACH = sizeof(Element) / sizeof(float);
    const int64_t width = in.width / EACH, n = in.n_row * width, skip = in.pos0 ? *in.pos0 * width : 0;
    const Element *x = (const Element *)in.x + skip;
    for (int64_t i = thread_of_grid(); i < n; i += (int64_t)gridDim.x * THREADS) {
        const Element value = x[i];
        const int64_t at = i / width * (in.stride / EACH) + in.send.first / EACH + i % width;
        for (int r = 0; r < in.send.n_rank; r++) ((Element *)in.to[r])[at] = value;
    }
}

/* The last block that has written says so to the others, and waits until they have. */
template <class Element> __global__ void __launch_bounds__(THREADS) gather(const __grid_constant__ fd_gather in) {
    const int rank = in.send.rank, n_rank = in.send.n_rank;
    if (in.alone) fd_pdl_launch_dependents();
    fd_pdl_wait();
    write_part<Element>(in);
    __syncthreads();
    fd_mailbox *own = in.send.mail[rank];
    if (threadIdx.x != 0) return;
    __threadfence_system();
    if (atomicAdd(&own->arrived, 1u) != gridDim.x - 1) return;
    __threadfence_system();
    const uint32_t turn = fd_turn_of(in.send);
    own->arrived = 0;
    for (int r = 0; r < n_rank; r++)
        if (r != rank) store_release(&in.send.mail[r]->through[rank], turn);
    for (int r = 0; r < n_rank; r++)
        for (int spins = 1; r != rank && (int32_t)(load_acquire(&own->through[r]) - turn) < 0; spins++)
            if (spins % SPINS_A_LOOK == 0 && load_acquire(in.stop) != 0) return;
}

__global__ void gathered(fd_mailbox *own, uint32_t n) {
    fd_pdl_wait();
    own->turn += n;
}

fd_code fd_launch_gathered(const fd_launch_context *ctx, fd_mailbox *own, uint32_t n, fd_error *err) {
    return fd_launch(ctx, "gathered", gathered, dim3(1), 1, 0, err, own, n);
}

fd_code fd_launch_gather(const fd_launch_context *ctx, const fd_gather *in, fd_error *err) {
    const fd_send *send = &in->send;
    if (send->n_rank < 2 || send->n_rank > FD_MAX_RANKS || send->rank < 0 || send->rank >= send->n_rank ||
        in->n_row < 0)
        return fd_fail(err, FD_ERR_INPUT, "kernel gather: rank %d of %d, %lld rows", send->rank, send->n_rank,
                       (long long)in->n_row);
    const int64_t whole = in->n_row * in->stride;
    const bool by_page = in->n_row > 0 && whole <= send->n_page, is_sent = in->n_row > 0 && !in->x;
    if ((in->plus || is_sent) && !by_page)
        return fd_fail(err, FD_ERR_INPUT, "kernel gather: %lld elements %s, at most %lld", (long long)whole,
                       is_sent ? "were sent" : "of a sum", (long long)send->n_page);
    const bool by_four = in->width % 4 == 0 && in->stride % 4 == 0 && send->first % 4 == 0;
    const int64_t items = by_page ? whole : in->n_row * in->width / (by_four ? 4 : 1);
    const unsigned wanted = fd_blocks(items, by_page ? PAGE_THREADS : 2 * THREADS);
    const unsigned shared = MOST_SHARED_BLOCKS / (unsigned)send->n_rank;
    const unsigned most = !by_page ? (unsigned)MOST_BLOCKS : in->alone ? (unsigned)MOST_PAGE_BLOCKS : shared;
    const unsigned blocks = wanted < 1 ? 1 : wanted < most ? wanted : most;
    void (*const kernel)(fd_gather) = is_sent   ? gather_sent
                                      : by_page ? gather_by_page
                                      : by_four ? gather<float4>
                                                : gather<float>;
    return fd_launch(ctx, "gather", kernel, dim3(blocks), by_page ? PAGE_THREADS : THREADS, 0, err, *in);
}
