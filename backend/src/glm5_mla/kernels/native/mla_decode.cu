// MLA decode over an FP8 (e4m3) latent KV pool, read as it is: no cast pass.
//
//   scores = (q_nope . row[:512] + q_rope . row[512:]) * sm_scale * kv_scale,  out = softmax(scores) . row[:512] * kv_scale
//
// Roofline. A row is 576 bytes and takes 2 * (576 + 512) = 2,176 FLOP a head: 30 FLOP/B at 8 heads. An H200 (4.3 TB/s,
// 790 TFLOP/s dense BF16) balances at 184 FLOP/B, so one layer takes rows * 576 B / 4.3 TB/s at best, provided that little
// of the matrix unit's work is padding. Hence the operands are swapped: 16 KV rows are the M of mma.m16n8k16 and 8 columns
// (query token, head) its N. Nothing is padded at 8 heads.
//
// Tiling. One CTA an SM, whose 8 warps walk contiguous ranges of rows in tiles of 64 that lie in a ring in shared memory, copied as whole rows.
// Each product is shared out over the warps in the way that suits it, and so is the softmax between them:
//   S^T (rows x columns)      A fragments are a row's bytes as they lie: the k order is free as long as Q's is the same.
//   O^T (latents x columns)   += V^T P^T, 64 latents a warp. V^T fragments come through ldmatrix.trans (transposes 8x8 pairs of bytes) and one
//                             byte permutation.
// One or two column blocks (`attend_ring`): mma, rows and Q by bulk copies that four more warps ask for. A warp that asks is held up while the copy
// engine has no room, so it must have nothing else to do. Each row is asked for by itself; the engine takes one in 14 cycles at best, 22 to 28 while all
// SMs ask; rows come from memory every 31 to 33.
// Four column blocks have four times the work a byte: on SM90 wgmma (`attend_warpgroups`; it takes 16 cycles for 64 x N x 16 even where N is 8, so that
// it gains nothing with fewer blocks), elsewhere mma and cp.async in tiles of 32 (`attend_cp_async`). There is no register for warps that copy: a
// ninth warp on an SM lowers a thread's most from 255 to 168.
//
// Numbers. e4m3 -> f16 is exact; q is scaled by a power of two per column and rounded to f16; P is kept as f16(2^(s - m + 11)): with a running
// maximum that may lag by 2^4 it stays below 65504, and weights down to 2^-25 of the largest keep full precision. Sums are float32.
//
// Budget a thread in 32-bit registers. Ring: O 16 NB, Q 36 (NB = 1; in shared memory otherwise), scores 16, fragments in work 32, in 168. Shared
// memory: 37 KB a tile (3 tiles), Q 9 KB NB and as much for the next segment's, P and scores or the last merge 4 NB, row numbers 0.5. cp.async: O 64,
// Q 72, row bytes 32, scores 16, P 16, and what the scores need at a time, in 255; shared memory: 18.5 KB a tile (3 tiles), scores or the last merge 32,
// P 4. wgmma: O 64, scores 16, fragments of A 64 to 72, P and column factors 32, in 255; shared memory: 37 KB a tile (4 tiles), Q 37, P 4, scores 8, the
// last merge 12. What SM120 uses fits its 99 KB: a ring of two tiles for one column block, cp.async for more.
//
// What bounds a tile, in cycles an SM: 2,000 to 2,100 to bring its 64 rows from memory; for one column block 830 of conversions and permutations and 610
// of mma in each of four schedulers, 830 of shared memory (a row is written once and read twice).
//
// Split-KV. No host plan and no host read: each CTA computes its range from kv_indptr (cut.h). A request inside one CTA is written at once. One that spans
// CTAs goes through global memory: each of its CTAs sends its partial in pieces and merges one slice of all. What travels tells by itself whether it is
// there (see `Piece`, `Wire`), so nobody counts arrivals and no fence is needed. All CTAs are resident (one an SM, cooperative launch), so the wait for a
// piece ends; should it not, the launch fails after kSpinLimit polls.
// The order of every sum is fixed: results are bit-identical from run to run.
//
// At small shapes a chain of latencies is all there is, and code that runs once a launch takes 4 to 8 cycles an instruction: what does not depend on rows
// is worked out while they are awaited.
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdlib.h>

#include "cut.h"
#include "mla_decode.h"

namespace {
using glm5::Cut;
using glm5::divide;

constexpr int kLatent = 512, kRope = 64, kRowBytes = kLatent + kRope;
constexpr int kWarps = 8, kThreads = 32 * kWarps;  // that compute, of a CTA
constexpr int kGroups = 32 / kWarps;               // of 16 latents that a warp owns of the output
constexpr float kScoreBias = 11.f;  // P = 2^(s - m + bias)
constexpr float kMaxLag = 4.f;      // the running maximum may lag behind the true one by this many powers of two
constexpr int kUnits = 2048;               // pieces a column block: two latents of a column each, in fragment order
constexpr unsigned kSpinLimit = 1u << 24;  // polls for a piece of another CTA, seconds: then the launch fails

// Two latents of a partial result, already divided by its sum of weights, whose base 2 logarithm is lse; |o| <= 448 fits f16, and
// its rounding is an eighth of that of the BF16 output. A piece for another CTA travels as one 64-bit store and one load, so
// that it needs no fence and no counter: whoever reads it polls until it is not empty, and leaves it empty for the next call.
struct __align__(8) Piece {
  uint32_t o;  // f16 x 2
  uint32_t lse;
};
constexpr uint32_t kEmpty = ~0u;  // as f16 x 2 or lse: NaN that no arithmetic gives
// Four column blocks have four times the pieces, and merging them took up to a third of the time. Theirs have eight latents, 16 bytes; the
// logarithms of a stretch of 16 such pieces, which has four columns, travel beside them. Each word tells by itself whether it is there.
template <int NB>
struct Wire {  // a CTA's partial of a request on its way to others
  static constexpr int kPairs = 1, kPieces = kUnits;  // of latents a piece; pieces a column block
  using Type = Piece;
  Piece piece[NB][kPieces];
};
template <>
struct Wire<4> {
  static constexpr int kPairs = 4, kPieces = kUnits / kPairs;
  using Type = uint4;
  uint4 piece[4][kPieces];
  uint32_t lse[4][kPieces / 16][4];
};

struct Kernel {  // by value in constant memory
  Glm5MlaArgs a;
  int passes;       // over the query's column blocks, NB at a time
  int block_shift;  // log2 of the column blocks a token has: heads / 8
  void* spanning;   // Wire<NB>[2: pass parity][cta][2: first, last request]: partials of requests that span CTAs

  // Of a request's column block: its token among the request's, and its first head.
  __device__ __forceinline__ int token_of(int block) const { return block >> block_shift; }
  __device__ __forceinline__ int head_of(int block) const { return (block & ((1 << block_shift) - 1)) * 8; }
};

__device__ __forceinline__ uint32_t e4m3_low(uint32_t x) {
  uint32_t r;
  asm("{.reg .b16 l,h; mov.b32 {l,h}, %1; cvt.rn.f16x2.e4m3x2 %0, l;}" : "=r"(r) : "r"(x));
  return r;
}
__device__ __forceinline__ uint32_t e4m3_high(uint32_t x) {
  uint32_t r;
  asm("{.reg .b16 l,h; mov.b32 {l,h}, %1; cvt.rn.f16x2.e4m3x2 %0, h;}" : "=r"(r) : "r"(x));
  return r;
}
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t transpose8x8(uint32_t x) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0,%1;" : "=r"(r) : "r"(x));
  return r;
}
__device__ __forceinline__ float exp2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x));
  return r;
}
__device__ __forceinline__ uint32_t pack_f16(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
__device__ __forceinline__ uint32_t pack_bf16(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0,%1,%2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
// q is scaled by a power of two that brings a column's largest |q|, given as bf16, into [2^7, 2^8): f16 then loses only what is 2^-32
// times smaller.
__device__ __forceinline__ int q_exponent(uint32_t largest) { return min(max((int)largest >> 7, 8), 254); }
__device__ __forceinline__ float q_scale(int exponent) { return __uint_as_float((uint32_t)(261 - exponent) << 23); }
__device__ __forceinline__ float q_unscale(int exponent) { return __uint_as_float((uint32_t)(exponent - 7) << 23); }  // 1 / q_scale
__device__ __forceinline__ uint32_t scaled_f16(uint32_t bf16x2, float scale) {
  return pack_f16(__uint_as_float(bf16x2 << 16) * scale, __uint_as_float(bf16x2 & 0xffff0000u) * scale);
}
__device__ __forceinline__ uint64_t piece_bits(float2 o, float lse) { return (uint64_t)__float_as_uint(lse) << 32 | pack_f16(o.x, o.y); }
__device__ __forceinline__ float2 unpack_f16(uint32_t v) {
  float2 o;
  asm("{.reg .b16 l,h; mov.b32 {l,h},%2; cvt.f32.f16 %0,l; cvt.f32.f16 %1,h;}" : "=f"(o.x), "=f"(o.y) : "r"(v));
  return o;
}
__device__ __forceinline__ float2 piece_o(uint64_t v) { return unpack_f16((uint32_t)v); }
__device__ __forceinline__ uint32_t piece_lse(uint64_t v) { return (uint32_t)(v >> 32); }
__device__ __forceinline__ void send(Piece* to, uint64_t v) { asm volatile("st.relaxed.gpu.global.b64 [%0],%1;" ::"l"(to), "l"(v) : "memory"); }
__device__ __forceinline__ uint64_t receive(const Piece* from) {
  uint64_t v;
  asm volatile("ld.relaxed.gpu.global.b64 %0,[%1];" : "=l"(v) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ void send(uint4* to, const uint4& v) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0],{%1,%2,%3,%4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ uint4 receive(const uint4* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0,%1,%2,%3},[%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ void empty_again(Piece* at) { send(at, ~0ull); }
__device__ __forceinline__ void empty_again(uint4* at) { send(at, make_uint4(kEmpty, kEmpty, kEmpty, kEmpty)); }
__device__ __forceinline__ void send(uint32_t* to, uint32_t v) { asm volatile("st.relaxed.gpu.global.b32 [%0],%1;" ::"l"(to), "r"(v) : "memory"); }
__device__ __forceinline__ uint32_t receive(const uint32_t* from) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.b32 %0,[%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ int load_here(const int32_t* p) {  // not moved behind a branch
  int v;
  asm volatile("ld.relaxed.cta.global.s32 %0,[%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t in_shared(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
// 16 bytes of a row into shared memory, past L1 and past the registers.
__device__ __forceinline__ void copy_row16(uint4* to, const uint8_t* from) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(in_shared(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_number(uint4* to, int i, const int* from) {  // the i-th from `to` on
  asm volatile("cp.async.ca.shared.global [%0],[%1],4;" ::"r"(in_shared(to) + 4 * i), "l"(from) : "memory");
}
__device__ __forceinline__ void end_batch() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void wait_for_batches_but() {  // all of this thread's but the newest N
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
struct Turn {  // of a ring: a stage, and the phase of its mbarrier
  int stage = 0;
  unsigned phase = 0;
};
// ---- bulk copies, by the copy engine, and mbarriers
template <int N>
__device__ __forceinline__ void init_mbarriers(uint64_t (&bars)[N], int arrivals) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(in_shared(bars + i)), "r"(arrivals) : "memory");
}
// Copies then see what is initialized.
__device__ __forceinline__ void mbarriers_to_copies() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Into shared memory by the copy engine; `full` counts the bytes.
template <int kBytes>
__device__ __forceinline__ void copy_bulk(void* to, const void* from, uint64_t* full) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(in_shared(to)), "l"(from), "n"(kBytes),
               "r"(in_shared(full))
               : "memory");
}
__device__ __forceinline__ void copy_row(void* to, const uint8_t* from, uint64_t* full) { copy_bulk<kRowBytes>(to, from, full); }
__device__ __forceinline__ void arrive_expecting(uint64_t* at, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(in_shared(at)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive(uint64_t* at) { asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(in_shared(at)) : "memory"); }
__device__ __forceinline__ void await(uint64_t* at, unsigned phase) {  // written as one loop: the compiler's own cost 100 cycles a tile
  asm volatile(
      "{.reg .pred p; .reg .u32 n; mov.u32 n,0;\n"
      "again%=: mbarrier.try_wait.parity.shared::cta.b64 p,[%0],%1;\n\t@p bra done%=;\n\t"
      "add.u32 n,n,1; setp.lt.u32 p,n,%2;\n\t@p bra again%=;\n\ttrap;\n"
      "done%=: }" ::"r"(in_shared(at)), "r"(phase), "n"(kSpinLimit) : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], const void* row) {  // four 8x8 matrices of pairs of bytes; each lane names a row
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(in_shared(row))
               : "memory");
}
__device__ __forceinline__ void turn_on(Turn& turn, int stages) {
  if (++turn.stage == stages) {
    turn.stage = 0;
    turn.phase ^= 1;
  }
}
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)  // ---- wgmma
__device__ __forceinline__ void store_transposed(void* row, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0],{%1,%2,%3,%4};" ::"r"(in_shared(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
// What this thread stored in shared memory becomes visible to wgmma, once a barrier has been passed.
__device__ __forceinline__ void shared_to_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Fragments are made before, all together: the compiler lets wgmmas wait for one another if any is made among them.
template <int N>
__device__ __forceinline__ void wgmma_begin(uint32_t (&f)[N][4]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(f[i][0]), "+r"(f[i][1]), "+r"(f[i][2]), "+r"(f[i][3])::"memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }  // for all batches but the newest N
__device__ __forceinline__ void wgmma(float (&x)[4], float (&y)[4], float (&z)[4], float (&w)[4], const uint32_t (&a)[4], uint64_t b, int add) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p,%21,0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},{%16,%17,%18,%19},%20,p,1,1,0;}"
      : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3]), "+f"(y[0]), "+f"(y[1]), "+f"(y[2]), "+f"(y[3]), "+f"(z[0]), "+f"(z[1]), "+f"(z[2]), "+f"(z[3]),
        "+f"(w[0]), "+f"(w[1]), "+f"(w[2]), "+f"(w[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
// Descriptor of B: `next_k` bytes from one half of a k step to the other, 128 from 8 columns to the next.
__device__ __forceinline__ uint64_t core_matrices(const void* at, uint32_t next_k) {
  return (uint64_t)((in_shared(at) & 0x3ffff) >> 4) | (uint64_t)(next_k >> 4) << 16 | (uint64_t)(128 >> 4) << 32;
}
#endif
// True in one lane. The compiler knows that it is one: of what needs uniform registers, as bulk copies do, it makes no loop over lanes.
__device__ __forceinline__ bool elected() {
  int r;
  asm volatile("{.reg .pred p; elect.sync _|p,0xffffffff; selp.b32 %0,1,0,p;}" : "=r"(r));
  return r;
}
// Of the threads that compute.
__device__ __forceinline__ void cta_barrier() { asm volatile("bar.sync 0,%0;" ::"n"(kThreads) : "memory"); }
__device__ __forceinline__ bool cta_barrier_or(bool x) {
  int r;
  asm volatile("{.reg .pred p,q; setp.ne.b32 p,%2,0; barrier.cta.red.or.pred q,0,%1,p; selp.b32 %0,1,0,q;}" : "=r"(r) : "n"(kThreads), "r"((int)x) : "memory");
  return r;
}
__device__ __forceinline__ void pair_barrier(int pair) { asm volatile("bar.sync %0,64;" ::"r"(pair + 1) : "memory"); }  // of two warps
__device__ __forceinline__ uint32_t word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// ---- Merging partial results: o relative to 2^m, l the sum of weights. Finished ones are (o / l, lse): m = lse, l = 1.
template <int P>
struct __align__(16) Partial {  // of P pairs of latents
  float2 o[P];
  float m, l;
};
template <int P>
__device__ __forceinline__ Partial<P> nothing(float m) {  // relative to 2^m
  Partial<P> x;
#pragma unroll
  for (int p = 0; p < P; ++p) x.o[p] = make_float2(0.f, 0.f);
  x.m = m;
  x.l = 0.f;
  return x;
}
__device__ __forceinline__ float weight(float m, float largest) { return m == largest ? 1.f : exp2_approx(m - largest); }
template <int P>
__device__ __forceinline__ void shrink(Partial<P>& x, float m) {  // makes it relative to 2^m
  const float w = weight(x.m, m);
#pragma unroll
  for (int p = 0; p < P; ++p) x.o[p] = make_float2(x.o[p].x * w, x.o[p].y * w);
  x.m = m;
  x.l *= w;
}
template <int P, int N>
__device__ __forceinline__ Partial<P> merge_all(const Partial<P> (&y)[N]) {
  Partial<P> x = nothing<P>(y[0].m);
#pragma unroll
  for (int i = 1; i < N; ++i) x.m = fmaxf(x.m, y[i].m);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float w = weight(y[i].m, x.m);
#pragma unroll
    for (int p = 0; p < P; ++p) {
      x.o[p].x += y[i].o[p].x * w;
      x.o[p].y += y[i].o[p].y * w;
    }
    x.l += y[i].l * w;
  }
  return x;
}
template <int P>
__device__ __forceinline__ Partial<P> merge(const Partial<P>& x, const Partial<P>& z) {
  const float m = fmaxf(x.m, z.m), v = weight(x.m, m), w = weight(z.m, m);
  Partial<P> y;
#pragma unroll
  for (int p = 0; p < P; ++p) y.o[p] = make_float2(x.o[p].x * v + z.o[p].x * w, x.o[p].y * v + z.o[p].y * w);
  y.m = m;
  y.l = x.l * v + z.l * w;
  return y;
}
__device__ __forceinline__ float lse_of(float m, float l) { return m + __log2f(l); }  // no row seen: -inf
__device__ __forceinline__ int column_of(int unit) { return 2 * (unit & 3) + (unit >> 5 & 1); }
__device__ __forceinline__ float normalizer(float l, float out_scale) { return l == 0.f ? 0.f : __fdividef(out_scale, l); }  // no row seen: zero
__device__ __forceinline__ float natural(float lse) { return lse * 0.69314718056f; }

struct Target {  // of a request: where its tokens begin and how many column blocks this pass has of them
  int token0, blocks;
};
struct Members {  // the CTAs that share a request; none if last < first
  int first, last;
};
// Of a CTA: [0] a request that began in an earlier range, [1] one that goes on in a later.
struct Sharing {
  Members members;
  Target target;
};

// The ways over a segment's rows, for NB column blocks of 8 a pass, with a ring of kStages tiles in shared memory.
enum Way { kRing, kWarpgroups, kCpAsync };  // `attend_ring`, `attend_warpgroups`, `attend_cp_async`
template <int NB, Way way, int kStages>
struct Shape {
  static_assert(way == kRing);
  static constexpr int kRows = 64, kCopyWarps = 4;  // of a tile; besides those that compute
  static constexpr bool kQInRegisters = NB == 1;
  static constexpr int kRow = kRowBytes + 16;  // in the ring: rows spread over the banks
  struct Shared {
    __align__(128) uint8_t ring[kStages][kRows][kRow];
    uint4 raw_q[8 * NB][(kLatent + kRope) / 8];  // Q as it comes, bf16, by column: the next segment's as soon as this one's is in `q`
    uint4 q[2][NB][9][32];                       // fragments, by half of the latents; two k steps each
    union {  // nobody is in the loop over rows any more when `reduce` is written, since a ring takes one pass
      struct {
        uint2 p[2][4][NB][32];        // weights of a tile as fragments, by row block; double buffered
        float2 half[kWarps][NB][32];  // scores for the pair's other warp to add
      };
      Partial<Wire<NB>::kPairs> reduce[kThreads];
    };
    float by_warp[kWarps][8 * NB];  // maxima of a column's scores
    float factor[8 * NB];           // of a column's scores
    uint4 numbers[kCopyWarps][2][kRows / kCopyWarps / 4];  // of a copying warp's rows of a tile; double buffered
    uint64_t full[kStages], empty[kStages], full_q[1], empty_q[1];
    Sharing sharing[2];
  };
};
template <int kStages>
struct Shape<4, kWarpgroups, kStages> {
  static constexpr int NB = 4, kRows = 64, kCopyWarps = 0;
  static constexpr int kRow = kRowBytes + 16;
  static constexpr int kQStep = NB * 256 + 16;  // bytes of a k step of Q, spread likewise
  struct Shared {
    __align__(128) uint8_t ring[kStages][kRows][kRow];
    __align__(16) uint8_t q[36 * kQStep];
    uint4 p[4][2][NB][8];           // by k step of 16 rows, half of it, column block, column: 8 rows
    float2 half[kWarps][NB][32];    // scores for the other warpgroup to add
    float by_warp[kWarps][8 * NB];  // maxima or sums of a column's weights
    float factor[8 * NB];           // of a column's scores
    uint64_t full[kStages];
    Sharing sharing[2];
    Partial<Wire<NB>::kPairs> reduce[kThreads];
  };
};
template <int kStages>
struct Shape<4, kCpAsync, kStages> {
  static constexpr int NB = 4, kRows = 32, kCopyWarps = 0;
  static constexpr int kOwned = 4 * kRows;  // pieces of 16 latents that a warp owns of a tile
  struct Tile {
    uint4 latents[kWarps][kOwned + 4];  // each lane's own 16 of a row's, by owning warp; 64 bytes between warps' spread a row over the banks
    uint4 rope[4][kRows];               // by k step and row, see `rope_slot`
  };
  struct Shared {
    union {
      float4 scores[2][kWarps][NB][32];  // partial ones; this and the next two double buffered
      Partial<Wire<NB>::kPairs> reduce[kThreads];
    };
    uint4 weights[2][NB][32];     // P, as the fragments that a lane needs of a tile
    float shrink[2][8 * NB];      // what a column's earlier weights are to be multiplied by
    uint32_t largest[8 * NB][4];  // of |q|, by column and quarter of the latents
    float2 sums[8 * NB];          // m and l of a column when the segment ends
    Sharing sharing[2];
    Tile ring[kStages];
  };
};

// The first of the two latents that row g of an output's fragment has; warp w owns groups kGroups w + 0..kGroups - 1 of 16 latents.
template <Way way>
__device__ __forceinline__ int latent_of(unsigned group, unsigned g) {
  return way == kCpAsync ? 16 * kGroups * (group / kGroups) + 16 * (g >> 1) + 4 * (group % kGroups) + 2 * (g & 1) : 16 * group + 2 * g;
}
template <Way way>
struct Output {
  const Kernel& k;
  int block0;

  __device__ __forceinline__ void write(const Target& to, int n, int unit, float2 o, float m, float l) const {
    if (n >= to.blocks) return;
    const int block = block0 + n, lane = unit & 31;  // unit = ((kGroups warp + i) * 2 + c) * 32 + lane
    const int latent = latent_of<way>(unit >> 6, lane >> 2);
    const int64_t row = (int64_t)(to.token0 + k.token_of(block)) * k.a.heads + k.head_of(block) + column_of(unit);
    const float scale = normalizer(l, k.a.out_scale);
    *reinterpret_cast<uint32_t*>(k.a.out + row * kLatent + latent) = pack_bf16(o.x * scale, o.y * scale);
    if (k.a.lse && latent == 0) k.a.lse[row] = natural(lse_of(m, l));
  }
};

// Merges over CTAs what this one, `me`, shares with others: one slice of each of two requests, none of which may be. All loops and waits are
// those of whole warps: divergent ones were seen to cost the loop over rows its registers.
template <int NB, Way way>
struct MergeCtas {
  static constexpr int kPairs = Wire<NB>::kPairs, kPieces = Wire<NB>::kPieces, kStretches = NB * kPieces / 16;
  static constexpr int kUnitsAhead = 2;
  static constexpr int kMostAtOnce = 144;  // members whose pieces are asked for in one round, of the smallest slice: an H200's SMs and some
  static constexpr int kToLast = sizeof(Wire<NB>) / sizeof(typename Wire<NB>::Type);  // pieces from a CTA's first request's to its last's
  static constexpr int kStep = 2 * kToLast;                                            // from one CTA's to the next's
  using Sum = Partial<kPairs>;
  Wire<NB>* spanning;  // [cta][2: first, last request]
  int me;
  Members one, two;
  Target to_one, to_two;
  const Output<way> output;
  int units = 0, both = 0;  // of the slice of `one`; of both slices

  // Member number `me` of those takes every members-th stretch of 16 units.
  __device__ __forceinline__ int units_of(const Members& m) const {
    const int n = m.last - m.first + 1;
    return n <= 0 ? 0 : divide(kStretches - (me - m.first) + n - 1, n) * 16;
  }
  struct Unit {  // a piece of the sum
    int n, piece, members;
    bool second;
    typename Wire<NB>::Type* pieces;  // the first member's, of its first request
    uint32_t* lse;                    // beside it; one for each of four columns
  };
  __device__ __forceinline__ Unit unit_of(int flat, bool valid) const {
    Unit x;
    x.second = flat >= units;
    const int first = x.second ? two.first : one.first, n = (x.second ? two.last : one.last) - first + 1;
    const int stretch = me - first + ((x.second ? flat - units : flat) >> 4) * max(n, 1);
    x.n = stretch / (kPieces / 16);
    x.piece = stretch % (kPieces / 16) * 16 + (flat & 15);
    x.members = valid ? n : 0;
    Wire<NB>& wire = spanning[(int64_t)first * 2];
    x.pieces = &wire.piece[x.n][x.piece];
    if constexpr (kPairs > 1) x.lse = &wire.lse[x.n][x.piece >> 4][x.piece & 3];
    return x;
  }
  // A piece as it came; `all` becomes false if it is not all there.
  static __device__ __forceinline__ Sum take(const Piece* from, const uint32_t*, bool valid, bool& all) {
    uint64_t v = (uint64_t)__float_as_uint(-INFINITY) << 32;
    if (valid) v = receive(from);
    all &= piece_lse(v) != kEmpty;
    return Sum{{piece_o(v)}, __uint_as_float(piece_lse(v)), valid ? 1.f : 0.f};
  }
  static __device__ __forceinline__ Sum take(const uint4* from, const uint32_t* from_lse, bool valid, bool& all) {
    uint4 v = make_uint4(0, 0, 0, 0);
    uint32_t lse = __float_as_uint(-INFINITY);
    if (valid) {
      v = receive(from);
      lse = receive(from_lse);
    }
    all &= lse != kEmpty && v.x != kEmpty && v.y != kEmpty && v.z != kEmpty && v.w != kEmpty;
    return Sum{{unpack_f16(v.x), unpack_f16(v.y), unpack_f16(v.z), unpack_f16(v.w)}, __uint_as_float(lse), valid ? 1.f : 0.f};
  }
  // Merges members from, from + step, ... of each of U units: asks for N at once, until all are there. What came is merged each
  // time: the first, vain time fetches the code.
  template <int U, int N>
  __device__ __forceinline__ void merge_members(Sum (&x)[U], const Unit (&own)[U], int from, int step, int longest) const {
#pragma unroll
    for (int u = 0; u < U; ++u) x[u] = nothing<kPairs>(-INFINITY);
#pragma unroll 1
    for (int round = 0; round < longest; round += N * step, from += N * step) {
      Sum merged[U];
      typename Wire<NB>::Type* at[U];
      unsigned spins = 0;
      bool all;
#pragma unroll
      for (int u = 0; u < U; ++u) at[u] = own[u].pieces + (int64_t)from * kStep;
      // The first member's piece is of that CTA's last request, the others' of their first.
      const int first = from == 0 ? kToLast : 0;
      const int64_t stride = (int64_t)step * kStep;
      do {
        all = true;
        Sum y[U][N];
#pragma unroll
        for (int u = 0; u < U; ++u)
#pragma unroll
          for (int j = 0; j < N; ++j) {
            typename Wire<NB>::Type* const piece = at[u] + j * stride + (j == 0 ? first : 0);
            y[u][j] = take(piece, kPairs > 1 ? own[u].lse + (piece - own[u].pieces) * 4 : nullptr, from + j * step < own[u].members, all);
          }
#pragma unroll
        for (int u = 0; u < U; ++u) merged[u] = merge(x[u], merge_all(y[u]));
        if (++spins == kSpinLimit) __trap();
      } while (!__all_sync(~0u, all));
#pragma unroll
      for (int u = 0; u < U; ++u) x[u] = merged[u];
    }
  }
  // Leaves the pieces that merge_members took empty, N a turn. Nothing waits for it, so it comes last. Four lanes empty the logarithms of
  // sixteen: all have them, since the vote that ended the wait was on what they read.
  template <int N>
  __device__ __forceinline__ void empty_members(const Unit& own, int from, int step) const {
    const int64_t stride = (int64_t)step * kStep;
    typename Wire<NB>::Type* at = own.pieces + (int64_t)from * kStep;
#pragma unroll 1
    for (; from < own.members; from += N * step, at += N * stride) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        typename Wire<NB>::Type* const piece = at + j * stride + (j == 0 && from == 0 ? kToLast : 0);
        if (j > 0 && from + j * step >= own.members) continue;
        empty_again(piece);
        if (kPairs > 1 && (own.piece & 15) < 4) send(own.lse + (piece - own.pieces) * 4, kEmpty);
      }
    }
  }
  __device__ __forceinline__ void write(const Unit& u, const Sum& x) const {
    const Target to{u.second ? to_two.token0 : to_one.token0, u.second ? to_two.blocks : to_one.blocks};
#pragma unroll
    for (int p = 0; p < kPairs; ++p) output.write(to, u.n, kPairs == 1 ? u.piece : (u.piece >> 6) * 256 + p * 64 + (u.piece & 63), x.o[p], x.m, x.l);
  }

  // How threads share the slices, if these have no more units than there are threads: `parts` threads a unit, each of which takes every
  // parts-th member. No parts: more units, or none (a request with more members than stretches).
  struct Plan {
    Unit own;
    int part, parts;
  };
  __device__ __forceinline__ Plan plan() {
    units = units_of(one);
    both = units + units_of(two);
    if (both == 0 || both > kThreads) return Plan{};
    const int parts = divide(kThreads, both), part = divide(threadIdx.x, both);
    return Plan{unit_of(threadIdx.x - part * both, part < parts), part, parts};
  }
  // Both requests at once, unless that makes more units than threads: one with few units has many members, and would be merged in many rounds.
  // Then at most one of them uses `reduce`. (With four column blocks this makes the compiler spill in the loop over rows.)
  __device__ __forceinline__ void run(Sum* reduce) {
    if constexpr (NB == 4) {
      merge_slices(reduce);
    } else {
      const Members first = one, second = two, none{0, -1};
      const int units_one = units_of(one), units_two = units_of(two);
      const bool apart = units_one > 0 && units_two > 0 && units_one + units_two > kThreads;
#pragma unroll 1
      for (int i = 0; i <= apart; ++i) {
        if (apart) {
          one = i == 0 ? first : none;
          two = i == 0 ? none : second;
        }
        merge_slices(reduce);
      }
    }
  }
  __device__ __forceinline__ void merge_slices(Sum* reduce) {
    const Plan x = plan();
    if (x.parts)
      merge_planned(reduce, x);
    else
      merge_unit_by_unit();
  }
  __device__ __forceinline__ int longest() const { return max(one.last - one.first, two.last - two.first) + 1; }
  __device__ __forceinline__ void merge_unit_by_unit() const {
#pragma unroll 1
    for (int base = 0; base < both; base += kUnitsAhead * kThreads) {
      Unit own[kUnitsAhead];
      Sum x[kUnitsAhead];
#pragma unroll
      for (int u = 0; u < kUnitsAhead; ++u) {
        const int flat = base + u * kThreads + threadIdx.x;
        own[u] = unit_of(flat, flat < both);
      }
      merge_members<kUnitsAhead, 6>(x, own, 0, 1, longest());
#pragma unroll
      for (int u = 0; u < kUnitsAhead; ++u)
        if (own[u].members) write(own[u], x[u]);
#pragma unroll
      for (int u = 0; u < kUnitsAhead; ++u) empty_members<1>(own[u], 0, 1);
    }
  }
  __device__ __forceinline__ void merge_planned(Sum* reduce, const Plan& plan) const {
    constexpr int kAtOnce = kMostAtOnce * 16 / kThreads;
    const int parts = plan.parts, part = plan.part, flat = threadIdx.x - part * both;
    const Unit own[1] = {plan.own};
    Sum x[1];
    merge_members<1, kAtOnce>(x, own, part, parts, longest());
    if (parts > 1) {
      reduce[threadIdx.x] = x[0];
      cta_barrier();
    }
    if (parts < 4) {
#pragma unroll 1
      for (int p = 1; p < parts && part == 0; ++p) x[0] = merge(x[0], reduce[flat + p * both]);
      if (part == 0) write(unit_of(flat, true), x[0]);
    } else if (threadIdx.x < 4 * both) {  // four lanes share the parts; whole warps: both is a multiple of 16
      const int lane_part = threadIdx.x & 3, mine = threadIdx.x >> 2;
      Sum y[kThreads / 16 / 4];  // both >= 16, so parts <= kThreads / 16
#pragma unroll
      for (int j = 0; j < kThreads / 16 / 4; ++j) {
        const int p = lane_part + 4 * j;
        y[j] = nothing<kPairs>(-INFINITY);
        if (p < parts) y[j] = reduce[mine + p * both];
      }
      Sum sum = merge_all(y);
      const float largest =
          fmaxf(fmaxf(sum.m, __shfl_xor_sync(~0u, sum.m, 1)), fmaxf(__shfl_xor_sync(~0u, sum.m, 2), __shfl_xor_sync(~0u, sum.m, 3)));
      shrink(sum, largest);
#pragma unroll
      for (int d = 1; d < 4; d <<= 1) {
#pragma unroll
        for (int p = 0; p < kPairs; ++p) {
          sum.o[p].x += __shfl_xor_sync(~0u, sum.o[p].x, d);
          sum.o[p].y += __shfl_xor_sync(~0u, sum.o[p].y, d);
        }
        sum.l += __shfl_xor_sync(~0u, sum.l, d);
      }
      if (lane_part == 0) write(unit_of(mine, true), sum);
    }
    empty_members<kPairs == 1 ? kAtOnce : 1>(own[0], part, parts);
  }
};

struct Segment {  // what a CTA takes of a request
  const int* list;  // the request's row numbers
  int beg, end;
  int token0, block0, blocks;
  int seen;  // rows that the request's first token sees; each later one sees one more
};
// Over the eight lanes with the same t: the rows that they hold of their columns.
__device__ __forceinline__ float max_over_rows(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
}
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
__device__ __forceinline__ float sum_over_rows(float x) {
  x += __shfl_xor_sync(~0u, x, 4);
  x += __shfl_xor_sync(~0u, x, 8);
  return x + __shfl_xor_sync(~0u, x, 16);
}
#endif
// Moves a column's maximum so that the score `top` weighs at most 2^kScoreBias, and what was summed up with it: l and values c, c + 2 of o.
template <int N>
__device__ __forceinline__ void raise_maximum(float top, float& m, float& l, float (&o)[N][4], int c) {
  const float next = fmaxf(m, top - kScoreBias), shrink = m == next ? 1.f : exp2_approx(m - next);
  m = next;
  l *= shrink;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    o[i][c] *= shrink;
    o[i][c + 2] *= shrink;
  }
}
// Moves every column's maximum to what all warps' scores want. A lane has two columns of a block; rows lie over lanes and warps.
template <int NB>
__device__ __forceinline__ void raise_common_maximum(float (&by_warp)[kWarps][8 * NB], int warp, int g, int t, const float (&s)[NB][2], float (&m)[NB][2],
                                                     float (&l)[NB][2], float (&o)[NB][kGroups][4]) {
#pragma unroll
  for (int n = 0; n < NB; ++n)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float x = max_over_rows(s[n][c]);
      if (g == 0) by_warp[warp][8 * n + 2 * t + c] = x;
    }
  cta_barrier();
#pragma unroll
  for (int n = 0; n < NB; ++n) {
    float2 top = make_float2(-INFINITY, -INFINITY);
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      const float2 x = *reinterpret_cast<const float2*>(&by_warp[i][8 * n + 2 * t]);
      top = make_float2(fmaxf(top.x, x.x), fmaxf(top.y, x.y));
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) raise_maximum(c ? top.y : top.x, m[n][c], l[n][c], o[n], c);
  }
}
// Hides from the compiler how x comes about: it keeps x in a register, and does not compute it anew or ahead of time.
template <class T>
__device__ __forceinline__ T kept(T x) {
  if constexpr (sizeof(T) == 8)
    asm volatile("" : "+l"(x));
  else
    asm volatile("" : "+r"(x));
  return x;
}

// ---- Attention over one segment, four column blocks, where there is no wgmma. Leaves o, m and l. Each piece of work on a tile is shared out over
// the warps in the way that suits it:
//   scores   warp w takes latents 128 (w / 2) + 0..127, a quarter of the rotary part and rows 16 (w % 2) + 0..15, all columns.
//   softmax  warp w adds up and weighs 4 columns of all rows, and alone keeps their maximum and sum.
//   output   warp w takes latents 64 w + 0..63, all rows and columns.
// One barrier a tile: what stands between two is the softmax of tile i, the output of tile i - 1 and the scores of tile i + 1.
// None of these waits for another, so the chains of one fill the gaps of the others; hence one turn of the loop for all, and
// scores and weights double buffered.
template <int kStages>
__device__ __forceinline__ void attend_cp_async(typename Shape<4, kCpAsync, kStages>::Shared& shared, const Kernel& k, const Segment& segment,
                                                float (&o)[4][kGroups][4], float (&l)[4][2], float (&m)[4][2]) {
  using S = Shape<4, kCpAsync, kStages>;
  constexpr int NB = S::NB, kRows = S::kRows, MT = kRows / 16;
  const Glm5MlaArgs& a = k.a;
  const int lane = threadIdx.x & 31, warp = __shfl_sync(~0u, (int)threadIdx.x >> 5, 0), g = lane >> 2, t = lane & 3;
  const int beg = segment.beg, end = segment.end;
  typename S::Shared& sm = *reinterpret_cast<typename S::Shared*>(__cvta_shared_to_generic(kept(in_shared(&shared))));

  // ---- rows: this warp copies rows 4 warp + 0..3 of a tile, each as a whole: 64 bytes of many rows at a time were seen to come more
  // slowly. Rows past the end repeat the last one.
  const int* const list = kept(segment.list);
  auto row_position = [&](int pos) { return min(pos + 4 * warp + (lane & 3), end - 1); };
  auto rope_slot = [](int step, int row) { return row ^ (2 * step); };  // spreads a row's four k steps over the banks
  const uint8_t* const latent_base = kept((const uint8_t*)a.pool + 16 * lane);
  const uint8_t* const rope_base = kept((const uint8_t*)a.pool + kLatent + 16 * t);
  // A row's latents 16 lane + 0..15 are what lane (row % 8, t) of warp lane / 4 owns.
  const int to_latents = kept((lane >> 2) * (S::kOwned + 4) + 16 * warp + t), to_rope = kept(t * kRows + rope_slot(t, 4 * warp + (g & 3)));
  const unsigned stride = a.row_stride;
  auto ask = [&](typename S::Tile& tile, int numbers, int lane0) {  // lanes lane0 + 0..3 hold the row numbers
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned row = __shfl_sync(~0u, numbers, lane0 + i);
      copy_row16(&tile.latents[0][0] + to_latents + 4 * i, latent_base + (uint64_t)row * stride);
    }
    const unsigned row = __shfl_sync(~0u, numbers, lane0 + (g & 3));
    if (lane < 16) copy_row16(&tile.rope[0][0] + to_rope, rope_base + (uint64_t)row * stride);
  };
  // One load brings the numbers for as many tiles as the ring has: with one each, the compiler lets them wait for one another.
  static_assert(kStages <= 8 && kRows == 4 * kWarps);
  const int first_numbers = load_here(list + row_position(beg + (lane >> 2) * kRows));

  // ---- Q fragments: lane (g, t) holds column g, latents 128 quarter + 64 c + 16 t + 0..15 (c = 0, 1), rotary values 16 quarter + 4 t + 0..3
  const int quarter = warp >> 1, row_block = warp & 1;
  constexpr int kWords = 18;  // two for each of 9 k steps
  uint32_t q[NB][kWords];
#pragma unroll
  for (int n = 0; n < NB; ++n) {
    const int block = segment.block0 + n, token = segment.token0 + k.token_of(block), head = k.head_of(block) + g;
    const uint16_t* qn = a.q_nope + token * a.q_nope_token_stride + head * a.q_nope_head_stride + 128 * quarter + 16 * t;
    const uint16_t* qr = a.q_rope + token * a.q_rope_token_stride + head * a.q_rope_head_stride + 16 * quarter + 4 * t;
    const bool used = n < segment.blocks;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 v = used ? __ldg(reinterpret_cast<const uint4*>(qn + 64 * (i >> 1)) + (i & 1)) : make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int j = 0; j < 4; ++j) q[n][4 * i + j] = word(v, j);
    }
    const uint2 v = used ? __ldg(reinterpret_cast<const uint2*>(qr)) : make_uint2(0, 0);
    q[n][16] = v.x;
    q[n][17] = v.y;
  }
#pragma unroll
  for (int i = 0; i < kStages; ++i) {
    if (beg + i * kRows < end) ask(sm.ring[i], first_numbers, 4 * i);
    end_batch();
  }
  int numbers = __ldg(list + row_position(beg + kStages * kRows));
#pragma unroll
  for (int n = 0; n < NB; ++n) {
    uint32_t largest = 0;  // of |q|, as two bf16: without their signs they compare as integers do
#pragma unroll
    for (int i = 0; i < kWords; ++i) largest = __vmaxu2(largest, q[n][i] & 0x7fff7fff);
    largest = __vmaxu2(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = __vmaxu2(largest, __shfl_xor_sync(~0u, largest, 2));
    if (t == 0 && row_block == 0) sm.largest[8 * n + g][quarter] = max(largest >> 16, largest & 0xffff);
  }
  // The weights of tile -1.
  if (warp < NB) sm.weights[1][warp][lane] = make_uint4(0, 0, 0, 0);
  if (warp == NB) sm.shrink[1][lane] = 1.f;
  cta_barrier();
  auto exponent = [&](int column) {
    const uint4 v = *reinterpret_cast<const uint4*>(sm.largest[column]);
    return q_exponent(max(max(v.x, v.y), max(v.z, v.w)));
  };
#pragma unroll
  for (int n = 0; n < NB; ++n) {
    const float scale = q_scale(exponent(8 * n + g));
#pragma unroll
    for (int i = 0; i < kWords; ++i) q[n][i] = scaled_f16(q[n][i], scale);
  }

  // ---- where things lie in shared memory
  // Scores: those of lane (g, t), free of bank conflicts as they are written and as they are read.
  auto score_slot = [](int row_block, int g, int t) { return 16 * (t >> 1) + ((2 * g + (t & 1)) ^ (4 * ((t >> 1) ^ row_block))); };
  constexpr int kScores = NB * 32;  // from a warp's to the next's
  const int to_scores = kept(warp * kScores + score_slot(row_block, g, t));
  const int from_latents = kept(2 * quarter * (S::kOwned + 4) + row_block * 2 * 32 + lane), from_own = kept(warp * (S::kOwned + 4) + lane);
  const int from_rope = kept(4 * (quarter * kRows + rope_slot(quarter, 16 * row_block + g)) + t);
  // This warp's softmax: block own_n, columns 4 own_half + 2 tt + c, of which lane (g, ii, tt) has rows 16 ii + 8 h + g.
  const int own_n = warp >> 1, own_half = warp & 1, ii = lane >> 1 & 1, tt = lane & 1;
  const int own_column = 8 * own_n + 4 * own_half + 2 * tt, own_row = kept(16 * ii + g);
  const int own_seen = min(end, segment.seen + k.token_of(segment.block0 + own_n));
  const int from_scores = kept(ii * kScores + own_n * 32 + score_slot(ii, g, 2 * own_half + tt));
  // Transposed, lane (4 ii + 2 tt + c, t) has rows 16 ii + 8 h + 2 t + 0, 1 of a column: they are of lane (column, t)'s fragment.
  const int to_weights = kept(2 * (32 * own_n + 16 * own_half + (lane & 15)) + (lane >> 4));
  float factor[2], own_m[2] = {-INFINITY, -INFINITY}, own_l[2] = {0.f, 0.f};
#pragma unroll
  for (int c = 0; c < 2; ++c) factor[c] = a.score_scale * q_unscale(exponent(own_column + c));

  uint32_t vt[MT][2][4];  // this warp's latents of tile i - 1, transposed
#pragma unroll
  for (int i = 0; i < MT; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) vt[i][0][j] = vt[i][1][j] = 0;
  int buffer = 0, stage = 0;
  wait_for_batches_but<kStages - 1>();
  cta_barrier();
#pragma unroll 1
  for (int pos = beg; pos < end + kRows; pos += kRows) {  // the last turn is for the output of the last tile
    typename S::Tile& tile = sm.ring[stage];
    // ---- S^T of tile i, this warp's part
    if (pos < end) {
      float acc[NB][4];
#pragma unroll
      for (int n = 0; n < NB; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.f;
      auto step = [&](uint32_t u, uint32_t v, int s) {
        const uint32_t a0 = e4m3_low(u), a1 = e4m3_low(v), a2 = e4m3_high(u), a3 = e4m3_high(v);
#pragma unroll
        for (int n = 0; n < NB; ++n) mma(acc[n], a0, a1, a2, a3, q[n][2 * s], q[n][2 * s + 1]);
      };
      const uint4* const latents = &tile.latents[0][0] + from_latents;
      const uint32_t* const rope = reinterpret_cast<const uint32_t*>(tile.rope) + from_rope;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const uint4 u = latents[c * (S::kOwned + 4)], v = latents[c * (S::kOwned + 4) + 32];
#pragma unroll
        for (int j = 0; j < 4; ++j) step(word(u, j), word(v, j), 4 * c + j);
      }
      step(rope[0], rope[4 * 8], 8);
      float4* const to = &sm.scores[buffer][0][0][0] + to_scores;
#pragma unroll
      for (int n = 0; n < NB; ++n) to[n * 32] = make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
    }
    // Read before the barrier: behind it the copies of other warps take the tile's place.
    uint4 latents[2 * MT];
#pragma unroll
    for (int i = 0; i < 2 * MT; ++i) latents[i] = (&tile.latents[0][0])[from_own + 32 * i];
    wait_for_batches_but<kStages - 2>();  // tile i + 1 is here
    cta_barrier();

    // ---- sums for the softmax of tile i
    float s[2][2], top[2];
    bool grows = false;
    {
      const float4* const from = &sm.scores[buffer][0][0][0] + from_scores;
      const float4 u = from[0], v = from[2 * kScores], w = from[4 * kScores], x = from[6 * kScores];
      s[0][0] = ((u.x + v.x) + (w.x + x.x)) * factor[0];
      s[0][1] = ((u.y + v.y) + (w.y + x.y)) * factor[1];
      s[1][0] = ((u.z + v.z) + (w.z + x.z)) * factor[0];
      s[1][1] = ((u.w + v.w) + (w.w + x.w)) * factor[1];
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (own_row + 8 * h >= own_seen - pos) s[h][0] = s[h][1] = -INFINITY;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      top[c] = fmaxf(s[0][c], s[1][c]);
      grows |= top[c] > own_m[c] + (kScoreBias + kMaxLag);
    }
    // ---- O^T += V^T P^T of tile i - 1, in halves
    uint4 p[NB];
#pragma unroll
    for (int n = 0; n < NB; ++n) p[n] = sm.weights[buffer ^ 1][n][lane];
    if (__any_sync(~0u, sm.shrink[buffer ^ 1][lane] != 1.f)) {
#pragma unroll
      for (int n = 0; n < NB; ++n) {
        const float2 f = *reinterpret_cast<const float2*>(&sm.shrink[buffer ^ 1][8 * n + 2 * t]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          o[n][j][0] *= f.x;
          o[n][j][1] *= f.y;
          o[n][j][2] *= f.x;
          o[n][j][3] *= f.y;
        }
      }
    }
    auto output = [&](int i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t a0 = e4m3_low(vt[i][0][j]), a1 = e4m3_high(vt[i][0][j]), a2 = e4m3_low(vt[i][1][j]), a3 = e4m3_high(vt[i][1][j]);
#pragma unroll
        for (int n = 0; n < NB; ++n) mma(o[n][j], a0, a1, a2, a3, word(p[n], 2 * i), word(p[n], 2 * i + 1));
      }
    };
    output(0);
    float shrink[2] = {1.f, 1.f};
    if (__any_sync(~0u, grows)) {  // the maximum moves only when a score exceeds it by 2^kMaxLag
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float x = top[c];
#pragma unroll
        for (int d = 2; d < 32; d <<= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, d));
        const float next = fmaxf(own_m[c], x - kScoreBias);
        shrink[c] = own_m[c] == next ? 1.f : exp2_approx(own_m[c] - next);
        own_m[c] = next;
        own_l[c] *= shrink[c];
      }
    }
    // ---- weights of tile i
    uint32_t weights[2];
    const float m0 = own_m[0] == -INFINITY ? 0.f : own_m[0], m1 = own_m[1] == -INFINITY ? 0.f : own_m[1];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float p0 = exp2_approx(s[h][0] - m0), p1 = exp2_approx(s[h][1] - m1);
      own_l[0] += p0;
      own_l[1] += p1;
      weights[h] = transpose8x8(pack_f16(p0, p1));
    }
    reinterpret_cast<uint2*>(&sm.weights[buffer][0][0])[to_weights] = make_uint2(weights[0], weights[1]);
    if (lane < 2) *reinterpret_cast<float2*>(&sm.shrink[buffer][own_column]) = make_float2(shrink[0], shrink[1]);
    output(1);
    // ---- this warp's latents of tile i for the next turn
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < 4; ++j) vt[i][h][j] = __byte_perm(transpose8x8(word(latents[2 * i + h], j)), 0, 0x3120);
    if (pos + kStages * kRows < end) {
      ask(tile, numbers, 0);
      numbers = __ldg(list + row_position(pos + (kStages + 1) * kRows));
    }
    end_batch();
    stage = stage == kStages - 1 ? 0 : stage + 1;
    buffer ^= 1;
  }
#pragma unroll
  for (int c = 0; c < 2; ++c)
#pragma unroll
    for (int d = 2; d < 32; d <<= 1) own_l[c] += __shfl_xor_sync(~0u, own_l[c], d);
  if (lane < 2) {
    sm.sums[own_column] = make_float2(own_m[0], own_l[0]);
    sm.sums[own_column + 1] = make_float2(own_m[1], own_l[1]);
  }
  cta_barrier();
#pragma unroll
  for (int n = 0; n < NB; ++n)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float2 v = sm.sums[8 * n + 2 * t + c];
      m[n][c] = v.x;
      l[n][c] = v.y;
    }
}

// ---- Attention over one segment by two warpgroups, four column blocks (SM90: wgmma). As `attend_cp_async`, it shares out each piece of work on a tile,
// of 64 rows here, in the way that suits it, and leaves o, m and l as that does, but for where o's latents lie:
//   scores   warpgroup v takes latents 256 v + 0..255 and half of the rotary part, all rows; its warp w rows 16 w + 0..15 of them.
//   softmax  of these rows the warps of both warpgroups weigh eight each, all columns. The maximum is common to all.
//   output   warp w takes latents 64 w + 0..63, all rows.
// Fragments of A are the rows' bytes in registers, as for mma; B (Q, then P) lies in shared memory as core matrices of 8 columns x 16 bytes.
template <int kStages>
__device__ __forceinline__ void attend_warpgroups(typename Shape<4, kWarpgroups, kStages>::Shared& sm, const Kernel& k, const Segment& segment,
                                                  float (&o)[4][kGroups][4], float (&l)[4][2], float (&m)[4][2], Turn& turn) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Shape<4, kWarpgroups, kStages>;
  constexpr int NB = S::NB, kRows = S::kRows, kRow = S::kRow;
  const Glm5MlaArgs& a = k.a;
  const int lane = threadIdx.x & 31, warp = __shfl_sync(~0u, (int)threadIdx.x >> 5, 0), g = lane >> 2, t = lane & 3;
  const int v = warp >> 2, w = warp & 3;  // warpgroup, warp of it
  const int beg = segment.beg, end = segment.end;

  // ---- rows: this warp copies rows 8 warp + 0..7 of a tile. Rows past the end repeat the last one.
  const int* const list = segment.list;
  auto row_position = [&](int pos) { return min(pos + 8 * warp + (lane & 7), end - 1); };
  auto ask = [&](int stage, int number) {  // lanes 0..7 hold the row numbers
    if (lane == 0) arrive_expecting(&sm.full[stage], 8 * kRowBytes);
    __syncwarp();
    if (lane < 8) copy_row(&sm.ring[stage][8 * warp + lane][0], a.pool + (uint64_t)(unsigned)number * (unsigned)a.row_stride, &sm.full[stage]);
  };
  static_assert(kStages == 4, "one load brings the row numbers of as many tiles");
  const int first_numbers = load_here(list + row_position(beg + (lane >> 3) * kRows));

  // ---- Q: this warp scales columns NB warp + 0..NB - 1. Lane r has latents 16 r + 0..15.
  uint4 raw[NB][2];
  uint32_t raw_rope[NB];
#pragma unroll
  for (int i = 0; i < NB; ++i) {
    const int column = NB * warp + i, n = column >> 3;
    const int block = segment.block0 + n, token = segment.token0 + k.token_of(block), head = k.head_of(block) + (column & 7);
    const uint16_t* qn = a.q_nope + token * a.q_nope_token_stride + head * a.q_nope_head_stride + 16 * lane;
    const uint16_t* qr = a.q_rope + token * a.q_rope_token_stride + head * a.q_rope_head_stride + 2 * lane;
    const bool used = n < segment.blocks;
    raw[i][0] = used ? __ldg(reinterpret_cast<const uint4*>(qn)) : make_uint4(0, 0, 0, 0);
    raw[i][1] = used ? __ldg(reinterpret_cast<const uint4*>(qn) + 1) : make_uint4(0, 0, 0, 0);
    raw_rope[i] = used ? __ldg(reinterpret_cast<const uint32_t*>(qr)) : 0;
  }
  auto ask_first = [&](int i) {
    const int number = __shfl_sync(~0u, first_numbers, 8 * i + (lane & 7));
    if (beg + i * kRows < end) ask((turn.stage + i) % kStages, number);
  };
  ask_first(0);  // the work on it is not to wait for the others, which come after Q
#pragma unroll
  for (int i = 0; i < NB; ++i) {
    const int column = NB * warp + i;
    uint32_t largest = raw_rope[i] & 0x7fff7fff;  // of |q|, as two bf16: without their signs they compare as integers do
#pragma unroll
    for (int j = 0; j < 8; ++j) largest = __vmaxu2(largest, word(raw[i][j >> 2], j & 3) & 0x7fff7fff);
    const int e = q_exponent(__reduce_max_sync(~0u, max(largest >> 16, largest & 0xffff)));
    const float scale = q_scale(e);
    // Latent 128 B + 16 (2 T + O) + 4 j + 2 h + 0, 1 is k = 8 h + 2 T + 0, 1 of step 8 j + 2 B + O: an order in which neither these
    // stores nor the loads of rows below meet in a bank.
    uint8_t* const to = sm.q + (column >> 3) * 128 + (column & 7) * 16;
#pragma unroll
    for (int x = 0; x < 8; ++x) {
      const int j = x >> 1, h = x & 1, step = 8 * j + 2 * (lane >> 3) + (lane & 1);
      *reinterpret_cast<uint32_t*>(to + step * S::kQStep + h * (NB * 128) + 4 * (lane >> 1 & 3)) = scaled_f16(word(raw[i][x >> 2], x & 3), scale);
    }
    // Rotary value 16 T + 4 j + 2 h + 0, 1 is k = 8 h + 2 T + 0, 1 of step 32 + j.
    *reinterpret_cast<uint32_t*>(to + (32 + (lane >> 1 & 3)) * S::kQStep + (lane & 1) * (NB * 128) + 4 * (lane >> 3)) = scaled_f16(raw_rope[i], scale);
    if (lane == 0) sm.factor[column] = a.score_scale * q_unscale(e);
  }
  shared_to_wgmma();
  cta_barrier();
#pragma unroll
  for (int i = 1; i < kStages; ++i) ask_first(i);
  int number = __ldg(list + row_position(beg + kStages * kRows));
  float factor[NB][2];
#pragma unroll
  for (int n = 0; n < NB; ++n) {
    const float2 f = *reinterpret_cast<const float2*>(&sm.factor[8 * n + 2 * t]);
    factor[n][0] = f.x;
    factor[n][1] = f.y;
  }
  const uint64_t q_matrices = core_matrices(sm.q, NB * 128), p_matrices = core_matrices(sm.p, NB * 128);
  // Of the 16 rows of a warp's scores, a lane's first is among those that its warpgroup weighs.
  const int own_row = 16 * w + 8 * v + g, other_row = 16 * w + 8 * (v ^ 1) + g;
  const int own_from = own_row * kRow + 256 * v + 32 * t, other_from = other_row * kRow + 256 * v + 32 * t;
  const int own_rope = own_row * kRow + kLatent + 16 * t + 8 * v, other_rope = other_row * kRow + kLatent + 16 * t + 8 * v;
  const int v_from = lane * kRow + 64 * warp;
  uint4* const to_weights = &sm.p[w][v][lane >> 3][lane & 7];
  const bool masks_early = segment.seen + k.token_of(segment.block0) < end;
  auto f16_of = [](uint32_t (&f)[4], uint32_t own, uint32_t other) {
    f[0] = e4m3_low(own);
    f[1] = e4m3_low(other);
    f[2] = e4m3_high(own);
    f[3] = e4m3_high(other);
  };

#pragma unroll 1
  for (int pos = beg; pos < end; pos += kRows) {
    const uint8_t* const tile = &sm.ring[turn.stage][0][0];
    await(&sm.full[turn.stage], turn.phase);
    // ---- S^T, this warpgroup's latents
    float acc[NB][4];
    {
      const uint2 u = *reinterpret_cast<const uint2*>(tile + own_rope), x = *reinterpret_cast<const uint2*>(tile + other_rope);
      uint32_t f[2][4];
      f16_of(f[0], u.x, x.x);
      f16_of(f[1], u.y, x.y);
      wgmma_begin(f);
#pragma unroll
      for (int j = 0; j < 2; ++j) wgmma(acc[0], acc[1], acc[2], acc[3], f[j], q_matrices + (32 + 2 * v + j) * (S::kQStep >> 4), j);
      wgmma_end();
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {  // blocks of 128 latents 2 v + c / 2, odd or even sixteens of it
      const int at = 128 * (c >> 1) + 16 * (c & 1);
      const uint4 u = *reinterpret_cast<const uint4*>(tile + own_from + at), x = *reinterpret_cast<const uint4*>(tile + other_from + at);
      uint32_t f[4][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) f16_of(f[j], word(u, j), word(x, j));
      wgmma_begin(f);
#pragma unroll
      for (int j = 0; j < 4; ++j) wgmma(acc[0], acc[1], acc[2], acc[3], f[j], q_matrices + (8 * j + 4 * v + c) * (S::kQStep >> 4), 1);
      wgmma_end();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int n = 0; n < NB; ++n) sm.half[warp][n][lane] = make_float2(acc[n][2], acc[n][3]);
    cta_barrier();
    // ---- weights of this warpgroup's half of the rows
    float s[NB][2];
#pragma unroll
    for (int n = 0; n < NB; ++n) {
      const float2 x = sm.half[warp ^ 4][n][lane];
      s[n][0] = (acc[n][0] + x.x) * factor[n][0];
      s[n][1] = (acc[n][1] + x.y) * factor[n][1];
    }
    if (pos + kRows > end || masks_early) {
#pragma unroll
      for (int n = 0; n < NB; ++n)
        if (own_row >= min(end, segment.seen + k.token_of(segment.block0 + n)) - pos) s[n][0] = s[n][1] = -INFINITY;
    }
    bool grows = false;
#pragma unroll
    for (int n = 0; n < NB; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) grows |= s[n][c] > m[n][c] + (kScoreBias + kMaxLag);
    float p[NB][2];
    auto weigh = [&] {
      uint32_t packed[NB];
#pragma unroll
      for (int n = 0; n < NB; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) p[n][c] = exp2_approx(s[n][c] - (m[n][c] == -INFINITY ? 0.f : m[n][c]));
        packed[n] = pack_f16(p[n][0], p[n][1]);
      }
      store_transposed(to_weights, packed);
      shared_to_wgmma();
    };
    if (pos > beg) weigh();
    // The maximum moves only when a score exceeds it by 2^kMaxLag. The others may then have weighed in vain.
    if (cta_barrier_or(grows) || pos == beg) {
      raise_common_maximum(sm.by_warp, warp, g, t, s, m, l, o);
      weigh();
      cta_barrier();
    }
#pragma unroll
    for (int n = 0; n < NB; ++n) {
      l[n][0] += p[n][0];
      l[n][1] += p[n][1];
    }
    // ---- O^T += V^T P^T, this warp's 64 latents
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t x[2][4], f[4][4];
      load_transposed(x[0], tile + v_from + 16 * i);
      load_transposed(x[1], tile + v_from + 16 * i + 32 * kRow);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint32_t u = __byte_perm(x[step >> 1][2 * (step & 1)], 0, 0x3120), z = __byte_perm(x[step >> 1][2 * (step & 1) + 1], 0, 0x3120);
        f[step][0] = e4m3_low(u);
        f[step][1] = e4m3_high(u);
        f[step][2] = e4m3_low(z);
        f[step][3] = e4m3_high(z);
      }
      wgmma_begin(f);
#pragma unroll
      for (int step = 0; step < 4; ++step) wgmma(o[0][i], o[1][i], o[2][i], o[3][i], f[step], p_matrices + step * (NB * 256 >> 4), 1);
      wgmma_end();
    }
    // The tile before this one has not been needed since the first barrier above; with the fence in `weigh` and the second one the copy
    // engine may write there.
    if (pos > beg && pos + (kStages - 1) * kRows < end) {
      ask((turn.stage + kStages - 1) % kStages, number);
      number = __ldg(list + row_position(pos + kStages * kRows));
    }
    wgmma_wait<0>();
    turn_on(turn, kStages);
  }
#pragma unroll
  for (int n = 0; n < NB; ++n)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float x = sum_over_rows(l[n][c]);
      if (g == 0) sm.by_warp[warp][8 * n + 2 * t + c] = x;
    }
  cta_barrier();
#pragma unroll
  for (int n = 0; n < NB; ++n) {
    l[n][0] = l[n][1] = 0.f;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      const float2 x = *reinterpret_cast<const float2*>(&sm.by_warp[i][8 * n + 2 * t]);
      l[n][0] += x.x;
      l[n][1] += x.y;
    }
  }
#else
  __trap();
#endif
}

// ---- Attention over one segment, one or two column blocks, with tiles of 64 rows that four more warps copy. Each piece of work on a tile is shared
// out in the way that suits it; warps r and r + 4 are a pair:
//   scores   warp w takes rows 16 (w % 4) + 0..15, latents 256 (w / 4) + 0..255 and half of the rotary part, all columns. The pair adds up.
//   softmax  of these rows each warp of the pair weighs eight, all columns. The maximum is common to all.
//   output   warp w takes latents 64 w + 0..63, all rows; and the sums of the weights, as the output for a latent that is one everywhere.
// A fragments of the scores are the rows' bytes as they lie: the k order is free as long as Q's is the same. o's latents lie as `attend_warpgroups`
// leaves them.
//
// While the first rows are on their way, `meanwhile` is called.
template <int NB, int kStages, class Meanwhile>
__device__ __forceinline__ void attend_ring(typename Shape<NB, kRing, kStages>::Shared& sm, const Kernel& k, const Segment& segment, float (&o)[NB][kGroups][4],
                                            float (&l)[NB][2], float (&m)[NB][2], Turn& turn, int& buffer, unsigned& q_phase, Meanwhile meanwhile) {
  using S = Shape<NB, kRing, kStages>;
  constexpr int kRows = S::kRows, kRow = S::kRow;
  const Glm5MlaArgs& a = k.a;
  const int lane = threadIdx.x & 31, warp = __shfl_sync(~0u, (int)threadIdx.x >> 5, 0), g = lane >> 2, t = lane & 3;
  const int v = warp >> 2, w = warp & 3;  // half of the latents, row block
  const int beg = segment.beg, end = segment.end;

  // ---- Q: this warp scales columns NB warp + 0..NB - 1. Lane r has latents 8 r + 0..7 and 256 + 8 r + 0..7; lanes 0 to 7 the rotary values 8 r + 0..7.
  // As fragments, lane (g, t) holds column g; k step 4 c + j has latents 256 v + 128 (c / 2) + 32 t + 16 (c % 2) + 4 j + 0..3, step 16 + j rotary
  // values 32 v + 8 t + 4 j + 0..3. Nobody reads the fragments before: since the last read of them all warps have met.
  await(sm.full_q, q_phase);
  q_phase ^= 1;
#pragma unroll
  for (int i = 0; i < NB; ++i) {
    const int column = NB * warp + i, n = column >> 3;
    const uint4* const from = sm.raw_q[column];
    const bool used = n < segment.blocks;
    const uint4 zero = make_uint4(0, 0, 0, 0), raw[3] = {used ? from[lane] : zero, used ? from[32 + lane] : zero, used && lane < 8 ? from[64 + lane] : zero};
    uint32_t largest = 0;  // of |q|, as two bf16: without their signs they compare as integers do
#pragma unroll
    for (int x = 0; x < 12; ++x) largest = __vmaxu2(largest, word(raw[x >> 2], x & 3) & 0x7fff7fff);
    const int e = q_exponent(__reduce_max_sync(~0u, max(largest >> 16, largest & 0xffff)));
    const float scale = q_scale(e);
    auto put = [&](int half, int c, int quad, const uint4& x) {
      sm.q[half][n][c][4 * (column & 7) + quad] = make_uint4(scaled_f16(x.x, scale), scaled_f16(x.y, scale), scaled_f16(x.z, scale), scaled_f16(x.w, scale));
    };
#pragma unroll
    for (int half = 0; half < 2; ++half) put(half, 4 * (lane >> 4) + (lane & 3), lane >> 2 & 3, raw[half]);
    if (lane < 8) put(lane >> 2, 8, lane & 3, raw[2]);
    if (lane == 0) sm.factor[column] = a.score_scale * q_unscale(e);
  }
  cta_barrier();
  if (threadIdx.x == 0) arrive(sm.empty_q);
  uint4 q[S::kQInRegisters ? 9 : 1];
  if constexpr (S::kQInRegisters) {
#pragma unroll
    for (int i = 0; i < 9; ++i) q[i] = sm.q[v][0][i][lane];
  }
  float2 factor[NB];
#pragma unroll
  for (int n = 0; n < NB; ++n) factor[n] = *reinterpret_cast<const float2*>(&sm.factor[8 * n + 2 * t]);

  const int own_row = 16 * w + 8 * v + g;  // of the warp's 16 rows of scores, the one that this lane weighs
  const int from_row = (16 * w + g) * kRow + 256 * v + 32 * t, from_rope = (16 * w + g) * kRow + kLatent + 32 * v + 8 * t, v_from = lane * kRow + 64 * warp;
  const bool masks_early = segment.seen + k.token_of(segment.block0) < end;  // some row of this segment is hidden from some column
  meanwhile();

#pragma unroll 1
  for (int pos = beg; pos < end; pos += kRows) {
    const uint8_t* const tile = &sm.ring[turn.stage][0][0];
    await(&sm.full[turn.stage], turn.phase);
    // ---- S^T, this warp's latents
    constexpr int kChains = 4 / NB;  // independent accumulators of a score
    float acc[kChains][NB][4];
#pragma unroll
    for (int x = 0; x < kChains; ++x)
#pragma unroll
      for (int n = 0; n < NB; ++n) acc[x][n][0] = acc[x][n][1] = acc[x][n][2] = acc[x][n][3] = 0.f;
    auto two_steps = [&](uint2 u, uint2 x, int s) {  // k steps s, s + 1
      uint4 b[NB];
#pragma unroll
      for (int n = 0; n < NB; ++n)
        if constexpr (S::kQInRegisters)
          b[n] = q[s >> 1];
        else
          b[n] = sm.q[v][n][s >> 1][lane];
#pragma unroll
      for (int n = 0; n < NB; ++n) mma(acc[s % kChains][n], e4m3_low(u.x), e4m3_low(x.x), e4m3_high(u.x), e4m3_high(x.x), b[n].x, b[n].y);
#pragma unroll
      for (int n = 0; n < NB; ++n) mma(acc[(s + 1) % kChains][n], e4m3_low(u.y), e4m3_low(x.y), e4m3_high(u.y), e4m3_high(x.y), b[n].z, b[n].w);
    };
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int at = from_row + 128 * (c >> 1) + 16 * (c & 1);
      const uint4 u = *reinterpret_cast<const uint4*>(tile + at), x = *reinterpret_cast<const uint4*>(tile + at + 8 * kRow);
      two_steps(make_uint2(u.x, u.y), make_uint2(x.x, x.y), 4 * c);
      two_steps(make_uint2(u.z, u.w), make_uint2(x.z, x.w), 4 * c + 2);
    }
    two_steps(*reinterpret_cast<const uint2*>(tile + from_rope), *reinterpret_cast<const uint2*>(tile + from_rope + 8 * kRow), 16);
    // ---- the pair adds up
    float s[NB][2];
#pragma unroll
    for (int n = 0; n < NB; ++n) {
      float part[4];
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        part[x] = acc[0][n][x] + acc[1][n][x];
        if constexpr (kChains == 4) part[x] += acc[kChains - 2][n][x] + acc[kChains - 1][n][x];
        part[x] *= x & 1 ? factor[n].y : factor[n].x;
      }
      sm.half[warp][n][lane] = v ? make_float2(part[0], part[1]) : make_float2(part[2], part[3]);
      s[n][0] = v ? part[2] : part[0];
      s[n][1] = v ? part[3] : part[1];
    }
    pair_barrier(w);
#pragma unroll
    for (int n = 0; n < NB; ++n) {
      const float2 x = sm.half[warp ^ 4][n][lane];
      s[n][0] += x.x;
      s[n][1] += x.y;
    }
    if (pos + kRows > end || masks_early) {
#pragma unroll
      for (int n = 0; n < NB; ++n)
        if (own_row >= min(end, segment.seen + k.token_of(segment.block0 + n)) - pos) s[n][0] = s[n][1] = -INFINITY;
    }
    // ---- weights
    bool grows = false;
#pragma unroll
    for (int n = 0; n < NB; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) grows |= s[n][c] > m[n][c] + (kScoreBias + kMaxLag);
    auto weigh = [&] {
#pragma unroll
      for (int n = 0; n < NB; ++n) {
        float p[2];
#pragma unroll
        for (int c = 0; c < 2; ++c) p[c] = exp2_approx(s[n][c] - (m[n][c] == -INFINITY ? 0.f : m[n][c]));
        (&sm.p[buffer][w][n][lane].x)[v] = transpose8x8(pack_f16(p[0], p[1]));
      }
    };
    if (pos > beg) weigh();
    // The maximum moves only when a score exceeds it by 2^kMaxLag. The others may then have weighed in vain.
    if (pos == beg || cta_barrier_or(grows)) {
      raise_common_maximum(sm.by_warp, warp, g, t, s, m, l, o);
      weigh();
      cta_barrier();
    }
    // ---- O^T += V^T P^T, this warp's 64 latents, 32 rows at a time
    auto output = [&](int half) {
      uint2 weights[NB][2];
#pragma unroll
      for (int n = 0; n < NB; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) weights[n][i] = sm.p[buffer][2 * half + i][n][lane];
      uint32_t x[kGroups][4];
#pragma unroll
      for (int i = 0; i < kGroups; ++i) load_transposed(x[i], tile + v_from + 16 * i + 32 * half * kRow);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          const uint32_t y = __byte_perm(x[i][2 * step], 0, 0x3120), z = __byte_perm(x[i][2 * step + 1], 0, 0x3120);
#pragma unroll
          for (int n = 0; n < NB; ++n) mma(o[n][i], e4m3_low(y), e4m3_high(y), e4m3_low(z), e4m3_high(z), weights[n][step].x, weights[n][step].y);
        }
        constexpr uint32_t kOnes = 0x3c003c00;
#pragma unroll
        for (int n = 0; n < NB; ++n) {
          float sum[4] = {l[n][0], l[n][1], 0.f, 0.f};
          mma(sum, kOnes, kOnes, kOnes, kOnes, weights[n][step].x, weights[n][step].y);
          l[n][0] = sum[0];
          l[n][1] = sum[1];
        }
      }
    };
    output(0);
    if (pos + kRows / 2 < end) output(1);
    __syncwarp();
    if (lane == 0) arrive(&sm.empty[turn.stage]);
    buffer ^= 1;
    turn_on(turn, kStages);
  }
}

template <int NB, Way way, int kStages>
__global__ void __launch_bounds__(kThreads + 32 * Shape<NB, way, kStages>::kCopyWarps, 1) mla_decode(const __grid_constant__ Kernel k) {
  using S = Shape<NB, way, kStages>;
  constexpr int kRows = S::kRows;
  extern __shared__ __align__(128) char smem_raw[];
  typename S::Shared& sm = *reinterpret_cast<typename S::Shared*>(smem_raw);
  const int lane = threadIdx.x & 31, warp = __shfl_sync(~0u, (int)threadIdx.x >> 5, 0), g = lane >> 2, t = lane & 3;
  const Glm5MlaArgs& a = k.a;
  const unsigned cta = blockIdx.x, ctas = gridDim.x;

  // ---- this CTA's range: from the cut x0 (in request b0) to the cut x1 (in request b1)
  // Everything about the first 32 requests is asked for at once: one latency before the row numbers can be.
  const int near = min(lane, a.batch - 1);
  const int first_ptr = load_here(a.kv_indptr), last_ptr = load_here(a.kv_indptr + a.batch);
  const int near_ptr = load_here(a.kv_indptr + near), near_end = load_here(a.kv_indptr + near + 1);
  const int near_token = load_here(a.qo_indptr + near), near_token_end = load_here(a.qo_indptr + near + 1);
  if constexpr (way != kCpAsync) {
    if (threadIdx.x == 0) {
      init_mbarriers(sm.full, way == kRing ? S::kCopyWarps : kWarps);
      if constexpr (way == kRing) {
        init_mbarriers(sm.empty, kWarps);
        init_mbarriers(sm.full_q, S::kCopyWarps);
        init_mbarriers(sm.empty_q, 1);
      }
      mbarriers_to_copies();
    }
    __syncthreads();
  }
  Cut cut;
  cut.segment_cost = a.segment_cost;
  cut.align = a.align;
  cut.min_segment = a.min_segment;
  cut.lay(first_ptr, last_ptr, a.batch, ctas, a.min_portion);
  const unsigned x0 = cta * cut.portion, x1 = x0 + cut.portion;
  if (x0 >= cut.total) return;
  int b0 = 0, b1 = 0;
  auto count_past = [&](int b, unsigned p, unsigned e) {
    const unsigned past = b < a.batch ? cut.past_inner(cut.begin(b, p), e - p) : ~0u;
    b0 += __popc(__ballot_sync(~0u, past <= x0));
    b1 += __popc(__ballot_sync(~0u, past <= x1));
  };
  count_past(lane, near_ptr, near_end);
  for (int i = 32; i < a.batch; i += 32) {
    const int b = min(i + lane, a.batch - 1);
    count_past(i + lane, __ldg(a.kv_indptr + b), __ldg(a.kv_indptr + b + 1));
  }
  struct Part {  // of request b: rows beg..end - 1 of len, whose numbers begin at `list`
    int list, len, beg, end, token0, tokens;
    unsigned cost;  // where the request begins on the line of cost
  };
  auto part_of = [&](int b) {
    const bool is_near = b < 32;
    Part x;
    x.list = is_near ? __shfl_sync(~0u, near_ptr, b) : __ldg(a.kv_indptr + b);
    x.len = (is_near ? __shfl_sync(~0u, near_end, b) : __ldg(a.kv_indptr + b + 1)) - x.list;
    x.cost = cut.begin(b, x.list);
    x.beg = b == b0 ? min(cut.offset(x0, x.cost), x.len) : 0;
    x.end = b == b1 ? min(cut.offset(x1, x.cost), x.len) : x.len;
    x.token0 = is_near ? __shfl_sync(~0u, near_token, b) : __ldg(a.qo_indptr + b);
    x.tokens = (is_near ? __shfl_sync(~0u, near_token_end, b) : __ldg(a.qo_indptr + b + 1)) - x.token0;
    return x;
  };
  if constexpr (way == kRing) {
    if (warp >= kWarps) {  // it copies a share of Q and of each tile's rows; those past the part's end, up to 32, repeat its last one
      constexpr int kAtOnce = 8, kQColumns = 8 / S::kCopyWarps, kFewTiles = 5;
      const int copier = warp - kWarps;
      Turn turn;
      unsigned q_phase = 0;
      for (int pass = 0; pass < k.passes; ++pass)
        for (int b = b0; b < a.batch && b <= b1; ++b) {
          const Part x = part_of(b);
          const int block0 = pass * NB, blocks = min((x.tokens << k.block_shift) - block0, NB);
          if (blocks <= 0 || x.beg >= x.end) continue;
          auto share_at = [&](int pos) { return (x.end - pos > kRows / 2 ? kRows : kRows / 2) / S::kCopyWarps; };
          auto ask_numbers = [&](int tile) {  // of the rows of a tile, if there is one; a batch in any case
            const int pos = x.beg + tile * kRows;
            if (pos < x.end && lane < kRows / S::kCopyWarps)
              copy_number(sm.numbers[copier][tile & 1], lane, a.kv_indices + x.list + min(pos + copier * share_at(pos) + lane, x.end - 1));
            end_batch();
          };
          ask_numbers(0);
          end_batch();  // in the place of tile 1's: all batches but the newest one are awaited
          // Q comes the same way. Loads of it by the warps that compute would wait behind all rows that are on their way.
          await(sm.empty_q, q_phase ^ 1);
          q_phase ^= 1;
          if (lane == 0) arrive_expecting(sm.full_q, blocks * kQColumns * (int)sizeof(sm.raw_q[0]));
          __syncwarp();
          if (elected()) {
#pragma unroll
            for (int n = 0; n < NB; ++n) {
              if (n >= blocks) break;
              const int token = x.token0 + k.token_of(block0 + n), head = k.head_of(block0 + n) + kQColumns * copier;
#pragma unroll
              for (int i = 0; i < kQColumns; ++i) {
                uint4* const to = sm.raw_q[8 * n + kQColumns * copier + i];
                copy_bulk<2 * kLatent>(to, a.q_nope + token * a.q_nope_token_stride + (head + i) * a.q_nope_head_stride, sm.full_q);
                copy_bulk<2 * kRope>(to + kLatent / 8, a.q_rope + token * a.q_rope_token_stride + (head + i) * a.q_rope_head_stride, sm.full_q);
              }
            }
          }
          __syncwarp();
          // Row numbers take about as long to come as a tile, so within a segment they are asked for two tiles ahead. But what is asked for early delays
          // what other CTAs asked for before. So a CTA with few tiles, from within one request, fills its ring slower: for the first kStages tiles the
          // numbers of the next one are asked for after a tile's rows.
          const int slow_tiles = b0 == b1 && x.end - x.beg <= kFewTiles * kRows ? kStages : 1;
          int tile = 0;
#pragma unroll 1
          for (int pos = x.beg; pos < x.end; pos += kRows, ++tile) {
            const int share = share_at(pos);
            uint8_t* const to = sm.ring[turn.stage][copier * share];
            wait_for_batches_but<1>();
            __syncwarp();
            await(&sm.empty[turn.stage], turn.phase ^ 1);
            if (lane == 0) arrive_expecting(&sm.full[turn.stage], share * kRowBytes);
            __syncwarp();
#pragma unroll 1
            for (int i = 0; i < share; i += kAtOnce) {
              const uint4* const numbers = &sm.numbers[copier][tile & 1][i / 4];
              const uint4 low = numbers[0], high = numbers[1];
              if (elected()) {
#pragma unroll
                for (int r = 0; r < kAtOnce; ++r)
                  copy_row(to + (i + r) * S::kRow, a.pool + (uint64_t)word(r < 4 ? low : high, r & 3) * (unsigned)a.row_stride, &sm.full[turn.stage]);
              }
              __syncwarp();
            }
            if (tile < slow_tiles) ask_numbers(tile + 1);
            if (tile + 1 >= slow_tiles)
              ask_numbers(tile + 2);
            else
              end_batch();  // in the place of that tile's
            turn_on(turn, kStages);
          }
        }
      return;
    }
  }
  [[maybe_unused]] Turn turn;
  [[maybe_unused]] unsigned q_phase = 0;  // of `full_q`
  [[maybe_unused]] int buffer = 0;  // of what warps exchange: alternates through all tiles, so that one barrier a tile is enough

  // The ring's merge over CTAs is planned while rows are awaited.
  [[maybe_unused]] MergeCtas<NB, way> early{static_cast<Wire<NB>*>(k.spanning), (int)cta, {0, -1}, {0, -1}, {}, {}, Output<way>{k, 0}};
  [[maybe_unused]] typename MergeCtas<NB, way>::Plan plan{};
#pragma unroll 1
  for (int pass = 0; pass < k.passes; ++pass) {
  Wire<NB>* const spanning = static_cast<Wire<NB>*>(k.spanning) + (int64_t)(pass & 1) * ctas * 2;
  if (threadIdx.x == 0) sm.sharing[0] = sm.sharing[1] = Sharing{{0, -1}, {0, 0}};
  for (int b = b0; b < a.batch && b <= b1; ++b) {
    const Part part = part_of(b);
    if (b == b1 && part.end == part.beg) break;
    const int block0 = pass * NB, blocks = min((part.tokens << k.block_shift) - block0, NB);
    if (blocks <= 0) continue;
    const bool starts = part.beg == 0, ends = part.end == part.len;
    // What this CTA shares is left in shared memory: there are no registers to spare.
    auto share = [&] {
      if ((starts && ends) || (way != kRing && threadIdx.x != 0)) return;
      const Members members{cut.first_cta(part.cost), cut.last_cta(part.cost, part.len)};
      if (threadIdx.x == 0) sm.sharing[starts] = Sharing{members, {part.token0, blocks}};
      if constexpr (way == kRing) {
        if (starts)
          early.two = members;
        else
          early.one = members;
        plan = early.plan();
        plan.own.pieces = kept(plan.own.pieces);
        plan.own.members = kept(plan.own.members);
        plan.part = kept(plan.part);
        plan.parts = kept(plan.parts);
        early.units = kept(early.units);
        early.both = kept(early.both);
      }
    };
    if (way != kRing || part.beg == part.end) share();

    float o[NB][kGroups][4], l[NB][2], m[NB][2];
#pragma unroll
    for (int n = 0; n < NB; ++n) {
#pragma unroll
      for (int i = 0; i < kGroups; ++i) o[n][i][0] = o[n][i][1] = o[n][i][2] = o[n][i][3] = 0.f;
      l[n][0] = l[n][1] = 0.f;
      m[n][0] = m[n][1] = -INFINITY;
    }
    if (part.beg < part.end) {
      const Segment segment{a.kv_indices + part.list, part.beg, part.end, part.token0, block0, blocks, part.len - part.tokens + 1};
      if constexpr (way == kRing)
        attend_ring<NB, kStages>(sm, k, segment, o, l, m, turn, buffer, q_phase, share);
      else if constexpr (way == kWarpgroups)
        attend_warpgroups<kStages>(sm, k, segment, o, l, m, turn);
      else
        attend_cp_async<kStages>(sm, k, segment, o, l, m);
    }

    // ---- where this segment goes. o[n][i]: columns 2 t, 2 t + 1 and of the warp's 64 latents those at latent_of + 0, 1
    if (starts && ends) {
#pragma unroll
      for (int n = 0; n < NB; ++n) {
        if (n >= blocks) break;
        const int block = block0 + n, token = part.token0 + k.token_of(block), head = k.head_of(block) + 2 * t;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float scale = normalizer(l[n][c], a.out_scale);
          uint16_t* out = a.out + ((int64_t)token * a.heads + head + c) * kLatent;
#pragma unroll
          for (int i = 0; i < kGroups; ++i)
            *reinterpret_cast<uint32_t*>(out + latent_of<way>(kGroups * warp + i, g)) = pack_bf16(o[n][i][c] * scale, o[n][i][c + 2] * scale);
          if (a.lse && warp == 0 && g == 0) a.lse[(int64_t)token * a.heads + head + c] = natural(lse_of(m[n][c], l[n][c]));
        }
      }
      continue;
    }
#pragma unroll
    for (int n = 0; n < NB; ++n) {
      // The compiler is not to know these, lest it computes addresses ahead of the loop over rows and keeps them through it.
      const unsigned unit = kept(64u * kGroups * warp + lane);
      Wire<NB>& wire = spanning[kept(cta) * 2 + starts];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float scale = normalizer(l[n][c], 1.f), lse = lse_of(m[n][c], l[n][c]);
        auto pair = [&](int i) { return make_float2(o[n][i][c] * scale, o[n][i][c + 2] * scale); };
        if constexpr (Wire<NB>::kPairs == 1) {
          Piece* const to = wire.piece[n] + unit + 32 * c;
#pragma unroll
          for (int i = 0; i < kGroups; ++i) send(to + 64 * i, piece_bits(pair(i), lse));
        } else {
          static_assert(Wire<NB>::kPairs == kGroups);
          const unsigned piece = (2 * kept(warp) + c) * 32 + lane;
          auto packed = [&](int i) { return pack_f16(pair(i).x, pair(i).y); };
          send(&wire.piece[n][piece], make_uint4(packed(0), packed(1), packed(2), packed(3)));
          if ((lane & 15) < 4) send(&wire.lse[n][piece >> 4][t], __float_as_uint(lse));
        }
      }
    }
  }

  // ---- merge over CTAs: each takes a slice of every request that it shares
  cta_barrier();
  const Sharing first = sm.sharing[0], last = sm.sharing[1];
  if (first.members.first <= first.members.last || last.members.first <= last.members.last) {
    if (way == kRing && plan.parts) {
      early.one = first.members, early.two = last.members, early.to_one = first.target, early.to_two = last.target;
      early.merge_planned(sm.reduce, plan);
    } else {
      MergeCtas<NB, way>{spanning, (int)cta, first.members, last.members, first.target, last.target, Output<way>{k, pass * NB}}.run(sm.reduce);
    }
  }
  if constexpr (way != kRing) {  // a ring takes one pass
    cta_barrier();  // the next pass writes the shared memory that this one read (behind the last pass, too: otherwise the compiler spills)
    // The pass after the next writes where this one read: its writers have then seen pieces of the next pass from here.
    if (pass + 1 < k.passes) __threadfence();
  }
  }
}
}  // namespace

// ---- C interface
namespace {
constexpr int kMaxDevices = 64;
constexpr int kSm120Shared = 99 * 1024;
enum Code { kOk = 0, kNoDevice = 1, kHeads = 2, kNotPrepared = 3, kNoRoom = 4, kDeviceNumber = 5, kCut = 6, kCuda = 1000 };

struct Variant {
  const void* function;
  int nb, threads, shared, wire, stretches;  // wire: bytes
};
template <int NB, Way way, int kStages>
Variant variant() {
  using S = Shape<NB, way, kStages>;
  return Variant{(const void*)mla_decode<NB, way, kStages>, NB, kThreads + 32 * S::kCopyWarps, (int)sizeof(typename S::Shared), (int)sizeof(Wire<NB>),
                 MergeCtas<NB, way>::kStretches};
}
struct Device {
  Variant one, two, four;  // by the column blocks a pass
  int ctas;
  bool ready;
};
Device devices[kMaxDevices];

template <int NB, Way way, int kStages>
constexpr bool fits_sm120() {
  return sizeof(typename Shape<NB, way, kStages>::Shared) <= kSm120Shared;
}
static_assert(fits_sm120<1, kRing, 2>() && fits_sm120<4, kCpAsync, 3>());

int code_of(cudaError_t e) { return e == cudaSuccess ? kOk : kCuda + (int)e; }

void set_variants(Device& d, int most_shared) {
  d.one = variant<1, kRing, 3>();
  d.two = variant<2, kRing, 3>();
  d.four = variant<4, kWarpgroups, 4>();
  // What fits an SM120 card, also run on SM90 if it has no more shared memory, as tests make it.
  if (d.one.shared > most_shared) d.one = variant<1, kRing, 2>();
  if (d.two.shared > most_shared) d.two = variant<4, kCpAsync, 3>();
  if (d.four.shared > most_shared) d.four = variant<4, kCpAsync, 3>();
}

int prepare_device(int device) {
  Device& d = devices[device];
  if (d.ready) return kOk;
  int most_shared;
  cudaError_t e = cudaDeviceGetAttribute(&d.ctas, cudaDevAttrMultiProcessorCount, device);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&most_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (e != cudaSuccess) return code_of(e);
  // For tests: what a card with less shared memory uses, on one with more.
  if (const char* text = getenv("GLM5_MLA_SHARED_KB")) {
    const int bytes = atoi(text) * 1024;
    if (bytes < most_shared) most_shared = bytes;
  }
  set_variants(d, most_shared);
  for (const Variant* v : {&d.one, &d.two, &d.four}) {
    e = cudaFuncSetAttribute(v->function, cudaFuncAttributeMaxDynamicSharedMemorySize, v->shared);
    int resident = 0;
    if (e == cudaSuccess) e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, v->function, v->threads, v->shared);
    if (e != cudaSuccess) return code_of(e);
    if (resident < 1) return kNoRoom;
  }
  d.ready = true;
  return kOk;
}

const Variant& choose(const Device& d, int blocks) { return blocks <= 1 ? d.one : blocks == 2 ? d.two : d.four; }
// Words everywhere that are all ones while empty, as they are between calls, whatever the variant.
size_t workspace_bytes(const Device& d, int heads, int max_q_len) {
  size_t bytes = 0;
  for (int q = 1; q <= max_q_len; ++q) {
    const size_t size = (size_t)2 * d.ctas * 2 * choose(d, q * heads / 8).wire;
    if (size > bytes) bytes = size;
  }
  return bytes;
}
}  // namespace

int glm5_mla_abi(void) { return GLM5_MLA_ABI; }

int glm5_mla_prepare(int32_t heads, int32_t max_q_len, size_t* bytes) {
  if (heads < 8 || heads > 128 || (heads & (heads - 1))) return kHeads;
  int device;
  if (cudaGetDevice(&device) != cudaSuccess) return kNoDevice;
  if (device >= kMaxDevices) return kDeviceNumber;
  const int code = prepare_device(device);
  if (code != kOk) return code;
  *bytes = workspace_bytes(devices[device], heads, max_q_len);
  return kOk;
}

int glm5_mla_decode(const Glm5MlaArgs* args, void* stream) {
  int device;
  if (cudaGetDevice(&device) != cudaSuccess) return kNoDevice;
  if (device >= kMaxDevices || !devices[device].ready) return kNotPrepared;
  if (args->batch == 0) return kOk;
  const Device& d = devices[device];
  const int blocks = args->max_q_len * args->heads / 8;
  const Variant& v = choose(d, blocks);
  int ctas = glm5::grid_of(d.ctas, args->batch);
  if (args->ctas) ctas = (int)args->ctas < d.ctas ? args->ctas : d.ctas;
  Kernel k;
  k.a = *args;
  if (!k.a.align) k.a.align = 64;
  if (!k.a.min_segment) k.a.min_segment = 64;
  if (!k.a.segment_cost) k.a.segment_cost = 48;
  if (!k.a.min_portion) k.a.min_portion = 64;
  // A CTA within a request without rows of it would keep others waiting.
  if (k.a.align & (k.a.align - 1) || k.a.min_segment % k.a.align || k.a.min_portion < k.a.align) return kCut;
  k.passes = (blocks + v.nb - 1) / v.nb;
  // With more CTAs some could have nothing to merge. Such a one waits for nobody, and would write where the pass before the last wrote,
  // maybe before that is read.
  if (k.passes > 2 && ctas > v.stretches) ctas = v.stretches;
  k.block_shift = 0;
  while ((8 << k.block_shift) < args->heads) ++k.block_shift;
  k.spanning = args->workspace;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(ctas);
  config.blockDim = dim3(v.threads);
  config.dynamicSmemBytes = v.shared;
  config.stream = (cudaStream_t)stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;  // all CTAs are resident: they wait for one another
  attribute.val.cooperative = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  void* parameters[] = {&k};
  return code_of(cudaLaunchKernelExC(&config, v.function, parameters));
}

const char* glm5_mla_error(int code) {
  switch (code) {
    case kOk: return "no error";
    case kNoDevice: return "no CUDA device is current";
    case kHeads: return "the number of query heads must be 8, 16, 32, 64 or 128";
    case kNotPrepared: return "glm5_mla_prepare was not called on this device";
    case kNoRoom: return "a thread block does not fit on the device";
    case kDeviceNumber: return "device number above 63";
    case kCut: return "align must be a power of two, min_segment a multiple of it, and min_portion not below it";
    default: return code >= kCuda ? cudaGetErrorString((cudaError_t)(code - kCuda)) : "unknown code";
  }
}
