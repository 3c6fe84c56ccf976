/* racecheck_probe [each | broken]: what does compute-sanitizer's racecheck see of a hand-over through an mbarrier? One warp
 * fills two stages of shared memory, another reads them, and mbarriers alone keep them apart, as in the large tile of
 * prefill (kernels/matmul/tile.cu): the lanes of a warp meet, and one arrives for all. With "each" every lane arrives
 * itself, as in a build with FD_RACECHECK (kernels/pipeline.cuh); "broken" leaves the waits out. The sum is right without
 * "broken", or the exit status is 1. */
#include <stdio.h>
#include <string.h>

#include "kernels/pipeline.cuh"

enum { STAGES = 2, TURNS = 64, WARP = 32 };

enum hand { ONE_FOR_ALL, EACH, BROKEN };

template <hand HOW> __global__ void hand_over(int *out) {
    __shared__ int stage[STAGES][WARP];
    __shared__ uint64_t barriers[2 * STAGES];
    const uint32_t full = fd_shared_address(barriers), empty = full + STAGES * 8;
    const int lane = (int)threadIdx.x % WARP;
    if (threadIdx.x == 0)
        for (int s = 0; s < 2 * STAGES; s++) fd_mbarrier_init(full + s * 8, HOW == EACH ? WARP : 1);
    __syncthreads();
    int sum = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        const int s = turn % STAGES;
        const unsigned parity = turn / STAGES % 2;
        const bool fills = threadIdx.x < WARP;
        if (HOW != BROKEN) fd_mbarrier_wait((fills ? empty : full) + s * 8, fills ? parity ^ 1u : parity);
        if (fills)
            stage[s][lane] = turn * WARP + lane;
        else
            sum += stage[s][WARP - 1 - lane];
        __syncwarp();
        if (HOW == EACH || (HOW == ONE_FOR_ALL && lane == 0)) fd_mbarrier_arrive((fills ? full : empty) + s * 8);
    }
    if (threadIdx.x >= WARP) out[lane] = sum;
}

int main(int argc, char **argv) {
    const bool broken = argc > 1 && strcmp(argv[1], "broken") == 0, each = argc > 1 && strcmp(argv[1], "each") == 0;
    int *out, sums[WARP], wrong = 0, n_device = 0;
    if (cudaGetDeviceCount(&n_device) != cudaSuccess || n_device == 0) return 77;
    cudaError_t status = cudaMalloc(&out, sizeof sums);
    if (status == cudaSuccess) {
        if (broken)
            hand_over<BROKEN><<<1, 2 * WARP>>>(out);
        else if (each)
            hand_over<EACH><<<1, 2 * WARP>>>(out);
        else
            hand_over<ONE_FOR_ALL><<<1, 2 * WARP>>>(out);
        status = cudaMemcpy(sums, out, sizeof sums, cudaMemcpyDeviceToHost);
    }
    if (status != cudaSuccess) {
        fprintf(stderr, "racecheck_probe: %s\n", cudaGetErrorString(status));
        return 2;
    }
    for (int lane = 0; lane < WARP; lane++)
        wrong += sums[lane] != TURNS * (TURNS - 1) / 2 * WARP + TURNS * (WARP - 1 - lane);
    printf("%d of %d sums wrong\n", wrong, WARP);
    return wrong && !broken;
}
