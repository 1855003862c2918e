// Reads listed rows and does nothing with them: the floor under every decode kernel, for benchmarks.
#include <cuda_runtime.h>

#include "mla_decode.h"

namespace {
constexpr int kThreads = 256, kTileRows = 64, kChunks = 36;  // chunks of 16 bytes a row of 576
constexpr int kLoads = kTileRows * kChunks / kThreads;

// Consecutive threads read consecutive chunks of a row, nine loads a thread in flight.
__global__ void __launch_bounds__(kThreads) read_rows(const uint4* __restrict__ pool, const int* __restrict__ rows, int n, unsigned* sink) {
  __shared__ int number[kTileRows];
  unsigned folded = 0;
  for (int first = blockIdx.x * kTileRows; first < n; first += gridDim.x * kTileRows) {
    if (threadIdx.x < kTileRows) number[threadIdx.x] = rows[min(first + (int)threadIdx.x, n - 1)];
    __syncthreads();
    uint4 v[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int chunk = i * kThreads + threadIdx.x;
      v[i] = __ldcs(pool + (long long)number[chunk / kChunks] * kChunks + chunk % kChunks);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) folded ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    __syncthreads();
  }
  if (folded == 0x9e3779b9u) *sink = folded;  // keeps the loads
}
}  // namespace

int glm5_mla_read_rows(const uint8_t* pool, const int32_t* rows, int32_t n, uint32_t* sink, int32_t blocks_per_sm, void* stream) {
  int device, sms;
  cudaError_t e = cudaGetDevice(&device);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (e == cudaSuccess) {
    const int tiles = (n + kTileRows - 1) / kTileRows, blocks = sms * blocks_per_sm;
    read_rows<<<tiles < blocks ? tiles : blocks, kThreads, 0, (cudaStream_t)stream>>>((const uint4*)pool, rows, n, sink);
    e = cudaGetLastError();
  }
  return e == cudaSuccess ? 0 : 1000 + (int)e;
}
