// A trace of tensors on a GPU. Two kernels hand a buffer back and forth; each put is ordered in the stream behind the
// kernel that computed its data, so the next kernel may overwrite the buffer at once, without a synchronisation.
//
//     nvcc main.cu $(pkg-config --cflags --libs firstdiff_trace) -o main
//     FIRSTDIFF_TRACE=gpu.h5 ./main && firstdiff inspect gpu.h5
#include <cstdint>
#include <cstdio>

#include <cuda_fp16.h>
#include <firstdiff_trace.h>

enum { N_TOKENS = 3, WIDTH = 1024, N_LAYER = 8 };

__global__ void fill(float *x, float value) { x[blockIdx.x * WIDTH + threadIdx.x] = value + blockIdx.x; }

__global__ void layer(float *x) { x[blockIdx.x * WIDTH + threadIdx.x] *= 2; } // in place

__global__ void to_half(const float *x, __half *y) {
    y[threadIdx.x * N_TOKENS + blockIdx.x] = __float2half(x[blockIdx.x * WIDTH + threadIdx.x]); // transposed
}

int main() {
    float *x;
    __half *half;
    cudaStream_t stream;
    if (cudaMalloc(&x, N_TOKENS * WIDTH * sizeof *x) || cudaMalloc(&half, N_TOKENS * WIDTH * sizeof *half) ||
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) {
        fprintf(stderr, "no CUDA device\n");
        return 77;
    }
    fd_tracer_options options = {};
    options.engine = "examples/cuda";
    options.numerics = "f16";
    fd_tracer *trace = fd_tracer_open(NULL, &options);

    int32_t tokens[N_TOKENS] = {1, 2, 3};
    for (int step = 0; step < 2; step++) {
        fd_tracer_step(trace, tokens, N_TOKENS);
        fill<<<N_TOKENS, WIDTH, 0, stream>>>(x, (float)(1 + step * N_TOKENS)); // position p starts at p + 1
        for (int i = 0; i < N_LAYER; i++) {
            char name[64];
            layer<<<N_TOKENS, WIDTH, 0, stream>>>(x);
            snprintf(name, sizeof name, "blk.%d.l_out", i);
            fd_tracer_tensor out = {};
            out.name = name;
            out.dtype = FD_TRACER_F32;
            out.data = x;
            out.n_dim = 2;
            out.shape[0] = N_TOKENS;
            out.shape[1] = WIDTH;
            out.on_device = 1;
            out.stream = stream;
            fd_tracer_put(trace, &out);
        }
        to_half<<<N_TOKENS, WIDTH, 0, stream>>>(x, half);
        fd_tracer_tensor last = {};
        last.name = "output_norm";
        last.dtype = FD_TRACER_F16;
        last.data = half; // [WIDTH, N_TOKENS] in memory
        last.n_dim = 2;
        last.shape[0] = N_TOKENS;
        last.shape[1] = WIDTH;
        last.stride[0] = 1;
        last.stride[1] = N_TOKENS;
        last.on_device = 1;
        last.stream = stream;
        fd_tracer_put(trace, &last);
    }
    char message[512];
    int failed = fd_tracer_close(trace, message, sizeof message);
    if (failed) fprintf(stderr, "no trace: %s\n", message);
    cudaStreamDestroy(stream);
    cudaFree(x);
    cudaFree(half);
    if (cudaDeviceSynchronize() != cudaSuccess) return 1;
    return failed ? 2 : 0;
}
