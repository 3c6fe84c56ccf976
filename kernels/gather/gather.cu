#include "kernels/gather/gather.h"

#include "kernels/device.cuh"
#include "kernels/launch.cuh"

enum {
    THREADS = 512,
    MOST_BLOCKS = 64, /* enough for the link; all but one end without waiting */
    PAGE_THREADS =
        128, /* small blocks: they find room beside those of the product before, and are there when it ends */
    MOST_PAGE_BLOCKS = 256,  /* all wait */
    MOST_SHARED_BLOCKS = 64, /* of all ranks on one device: other kernels need multiprocessors where none waits */
    SPINS_A_LOOK = 4096,     /* `stop` lies in host memory: it is looked at seldom */
    PAGES_AT = 256,          /* bytes */
};

size_t fd_mailbox_bytes(int64_t n_element) {
    return PAGES_AT + 2 * sizeof(uint2) * (size_t)n_element;
}

__device__ __forceinline__ void store_release(uint32_t *to, uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t load_acquire(const uint32_t *from) {
    uint32_t value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(from)) : "memory");
    return value;
}

/* An element and its gather's number: 8 bytes that arrive together. */
__device__ __forceinline__ void store_marked(uint2 *to, float element, uint32_t turn) {
    asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(__float_as_uint(element)), "r"(turn)
                 : "memory");
}
__device__ __forceinline__ uint2 load_marked(const uint2 *from) {
    uint2 value;
    asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(value.x), "=r"(value.y)
                 : "l"(__cvta_generic_to_global(from))
                 : "memory");
    return value;
}

__device__ __forceinline__ uint32_t thread_of_grid() {
    return blockIdx.x * blockDim.x + threadIdx.x;
}

/* ---- through the pages ---- */

__device__ __forceinline__ uint2 *page_of(const fd_gather &in, int rank, uint32_t turn) {
    return (uint2 *)((char *)in.mail[rank] + PAGES_AT) + (turn % 2) * in.n_page;
}

/* A rank that is at the gather after the next one has everything of this one's: two pages do. */
__global__ void __launch_bounds__(PAGE_THREADS) gather_by_page(fd_gather in) {
    if (in.alone) fd_pdl_launch_dependents();
    const uint32_t turn = in.mail[in.rank]->turn + in.index; /* the passes before are complete */
    const uint32_t width = (uint32_t)in.width, stride = (uint32_t)in.stride, first = (uint32_t)in.first;
    const uint32_t step = gridDim.x * PAGE_THREADS, part = (uint32_t)in.n_row * width,
                   whole = (uint32_t)in.n_row * stride;
    fd_pdl_wait();
    const float *x = in.x + (in.pos0 ? *in.pos0 * in.width : 0);
    float *to = in.to[in.rank];
    for (uint32_t i = thread_of_grid(); i < part; i += step) {
        const float element = x[i];
        const uint32_t at = i / width * stride + first + i % width;
        for (int r = 0; r < in.n_rank; r++)
            if (r != in.rank) store_marked(page_of(in, r, turn) + at, element, turn);
        to[at] = in.plus ? element + in.plus[at] : element;
    }
    const uint2 *page = page_of(in, in.rank, turn);
    for (uint32_t at = thread_of_grid(); at < whole; at += step) {
        if (at % stride - first < width) continue; /* its own part; before it the difference is huge */
        const float plus = in.plus ? in.plus[at] : 0.0f;
        uint2 marked = load_marked(page + at);
        for (int spins = 1; marked.y != turn; spins++) {
            if (spins % SPINS_A_LOOK == 0 && load_acquire(in.stop) != 0) break;
            marked = load_marked(page + at);
        }
        const float element = __uint_as_float(marked.x);
        to[at] = in.plus ? element + plus : element;
    }
}

/* ---- straight to where it goes ---- */

template <class Element> __device__ __forceinline__ void write_part(const fd_gather &in) {
    constexpr int64_t EACH = sizeof(Element) / sizeof(float);
    const int64_t width = in.width / EACH, n = in.n_row * width, skip = in.pos0 ? *in.pos0 * width : 0;
    const Element *x = (const Element *)in.x + skip;
    for (int64_t i = thread_of_grid(); i < n; i += (int64_t)gridDim.x * THREADS) {
        const Element value = x[i];
        const int64_t at = i / width * (in.stride / EACH) + in.first / EACH + i % width;
        for (int r = 0; r < in.n_rank; r++) ((Element *)in.to[r])[at] = value;
    }
}

/* The last block that has written says so to the others, and waits until they have. */
template <class Element> __global__ void __launch_bounds__(THREADS) gather(fd_gather in) {
    if (in.alone) fd_pdl_launch_dependents();
    fd_pdl_wait();
    write_part<Element>(in);
    __syncthreads();
    fd_mailbox *own = in.mail[in.rank];
    if (threadIdx.x != 0) return;
    __threadfence_system();
    if (atomicAdd(&own->arrived, 1u) != gridDim.x - 1) return;
    __threadfence_system();
    const uint32_t turn = own->turn + in.index;
    own->arrived = 0;
    for (int r = 0; r < in.n_rank; r++)
        if (r != in.rank) store_release(&in.mail[r]->through[in.rank], turn);
    for (int r = 0; r < in.n_rank; r++)
        for (int spins = 1; r != in.rank && (int32_t)(load_acquire(&own->through[r]) - turn) < 0; spins++)
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
    if (in->n_rank < 2 || in->n_rank > FD_MAX_RANKS || in->rank < 0 || in->rank >= in->n_rank || in->n_row < 0)
        return fd_fail(err, FD_ERR_INPUT, "kernel gather: rank %d of %d, %lld rows", in->rank, in->n_rank,
                       (long long)in->n_row);
    const int64_t whole = in->n_row * in->stride;
    const bool by_page = in->n_row > 0 && whole <= in->n_page;
    if (in->plus && !by_page)
        return fd_fail(err, FD_ERR_INPUT, "kernel gather: a sum of %lld elements, at most %lld", (long long)whole,
                       (long long)in->n_page);
    const bool by_four = in->width % 4 == 0 && in->stride % 4 == 0 && in->first % 4 == 0;
    const int64_t items = by_page ? whole : in->n_row * in->width / (by_four ? 4 : 1);
    const unsigned wanted = fd_blocks(items, by_page ? PAGE_THREADS : 2 * THREADS);
    const unsigned shared = MOST_SHARED_BLOCKS / (unsigned)in->n_rank;
    const unsigned most = !by_page ? (unsigned)MOST_BLOCKS : in->alone ? (unsigned)MOST_PAGE_BLOCKS : shared;
    const unsigned blocks = wanted < 1 ? 1 : wanted < most ? wanted : most;
    void (*const kernel)(fd_gather) = by_page ? gather_by_page : by_four ? gather<float4> : gather<float>;
    return fd_launch(ctx, "gather", kernel, dim3(blocks), by_page ? PAGE_THREADS : THREADS, 0, err, *in);
}
