// MLA decode over an FP8 (e4m3) latent KV pool, read as it is: no cast pass.
//
//   scores = (q_nope . row[:512] + q_rope . row[512:]) * sm_scale * kv_scale,  out = softmax(scores) . row[:512] * kv_scale
//
// Roofline. A row is 576 bytes and takes 2 * (576 + 512) = 2,176 FLOP a head: 30 FLOP/B at 8 heads. An H200 (4.3 TB/s,
// 790 TFLOP/s dense BF16) balances at 184 FLOP/B, so one layer takes rows * 576 B / 4.3 TB/s at best, provided that little
// of the matrix unit's work is padding. Hence the operands are swapped: 16 KV rows are the M of mma.m16n8k16 and 8 columns
// (query token, head) its N. Nothing is padded at 8 heads.
//
// Tiling. One CTA an SM; its teams of warps walk contiguous ranges of rows in tiles of 16 MT rows. For one or two column blocks
// (NB) a team has 4 warps, whose rows are not staged: a warp owns 128 of the 512 latents of every row (and a quarter of the rotary
// part) in both products, so a row's bytes go from global memory straight into the registers of the one warp that uses them:
//   S^T (rows x columns)   partial sums over the warp's own latents. A fragments are the loaded bytes as they lie: the k
//                          order is free as long as Q's is the same. The four warps' sums meet in shared memory, with one
//                          barrier a tile; every warp then does the same softmax on the total.
//   O^T (latents x columns) += V^T P^T for the warp's own latents. V^T fragments come from the same registers through
//                          movmatrix (transposes 8x8 pairs of bytes inside the warp) and one byte permutation.
// The next tile's latents are asked for when the tile begins and waited for when it ends, one batch at a time: a warp has
// few scoreboards, so with two batches on their way the wait for the older one was seen to include the newer one.
//
// Four column blocks have four times the work a byte, and what every warp of such a team would do for itself (the whole
// softmax; scores of all columns) would be most of it. There one team of 8 warps is the CTA, rows are copied to a ring in shared
// memory, and each product is shared out in the way that suits it: on SM90 with wgmma and bulk copies, tiles of 64 rows
// (`attend_warpgroups`); elsewhere with mma and cp.async, tiles of 32 (`attend`). wgmma takes 16 cycles for 64 x N x 16 even where N is
// 8, so that it gains nothing with fewer blocks.
//
// Numbers. e4m3 -> f16 is exact; q is scaled by a power of two per column (and warp, in a team of 4) and rounded to f16; P is kept as
// f16(2^(s - m + 11)): with a running maximum that may lag by 2^4 it stays below 65504, and weights down to 2^-25 of the
// largest keep full precision. Sums are float32.
//
// Budget a thread in 32-bit registers, teams of 4 warps: O 32 NB, row bytes 2 * 16 MT (in work and on their way) + rotary 2 MT,
// Q 16 + 2 MT (NB = 1; in shared memory otherwise), scores 4 MT NB to 8 MT NB. NB = 1: 168 registers, 3 teams of MT = 2, or 255 and
// 2 teams of MT = 4: 55 or 73 KB of rows on their way an SM, where 4 TB/s and a latency of 1 us need 30. Shared memory a
// team: the exchange of scores (4 KB MT NB) or, later in the same place, the result (16 KB NB). The team of 8 warps: O 64, Q 72,
// row bytes 32, scores 16, P 16, and what the scores need at a time, in 255. Shared memory: 18.5 KB a tile of the ring (3 tiles), scores
// or the last merge 32, P 4. With wgmma: O 64, scores 16, fragments of A 64 to 72, P and column factors 32, in 255; shared memory:
// 37 KB a tile of the ring (4 tiles), Q 37, P 4, scores 8, the last merge 12. The variants that SM120 uses fit its 99 KB.
//
// Split-KV. No host plan and no host read: each team computes its range from kv_indptr. Requests are laid on one line of
// cost (rows + segment_cost each), cut in equal portions, cuts near a request's end moved to it. A request inside one team
// is written at once. Otherwise teams leave partial results in shared memory, where their CTA merges them; a request that
// spans CTAs goes through global memory: each of its CTAs sends its partial in pieces and merges one slice of all. A CTA that has
// a part of one such request and nothing else takes a short way there (`Lone`). What travels tells by itself whether it is there (see
// `Piece`, `Wire`), so nobody counts arrivals and no fence is needed. All CTAs are resident (one an SM, cooperative launch), so the
// wait for a piece ends; should it not, the launch fails after kSpinLimit polls.
// The order of every sum is fixed: results are bit-identical from run to run.
//
// At small shapes a chain of latencies is all there is, and code that runs once a launch takes 4 to 8 cycles an instruction. So the
// common case has a short way through the merges (`Lone`), and what does not depend on rows is worked out while they are awaited.
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdlib.h>

#include "mla_decode.h"

namespace {

constexpr int kLatent = 512, kRowBytes = 576;
constexpr int kWarps = 4, kThreads = 32 * kWarps;  // of a team whose rows go through registers
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
  Piece* first;     // [cta][team][NB][kUnits] partials of a team's first request, if the team goes on with others; none for one team

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
// Row bytes are read once: past L1. Volatile keeps the loads where they are written, well before their use.
__device__ __forceinline__ void load_row16_pair(const uint8_t* p, uint4& v, uint4& w) {  // at p and p + 64
  asm volatile(
      "ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%8];\n\t"
      "ld.global.nc.L1::no_allocate.v4.u32 {%4,%5,%6,%7},[%8+64];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w), "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
      : "l"(p));
}
__device__ __forceinline__ uint4 load_row16(const uint8_t* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
__device__ __forceinline__ uint2 load_row8(const uint8_t* p) {
  uint2 v;
  asm volatile("ld.global.nc.v2.u32 {%0,%1},[%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
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
__device__ __forceinline__ void end_batch() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void wait_for_batches_but() {  // all of this thread's but the newest N
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
struct Turn {  // of a ring: a stage, and the phase of its mbarrier
  int stage = 0;
  unsigned phase = 0;
};
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)  // ---- what `attend_warpgroups` needs
template <int N>
__device__ __forceinline__ void init_mbarriers(uint64_t (&bars)[N], int arrivals) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(in_shared(bars + i)), "r"(arrivals) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// A whole row into shared memory, by the copy engine; `full` counts its bytes.
__device__ __forceinline__ void copy_row(void* to, const uint8_t* from, uint64_t* full) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(in_shared(to)), "l"(from), "n"(kRowBytes),
               "r"(in_shared(full))
               : "memory");
}
__device__ __forceinline__ void arrive_expecting(uint64_t* at, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(in_shared(at)), "r"(bytes) : "memory");
}
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
__device__ __forceinline__ void store_transposed(void* row, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0],{%1,%2,%3,%4};" ::"r"(in_shared(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
__device__ __forceinline__ void turn_on(Turn& turn, int stages) {
  if (++turn.stage == stages) {
    turn.stage = 0;
    turn.phase ^= 1;
  }
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
__device__ __forceinline__ void team_barrier(int team) { asm volatile("bar.sync %0,%1;" ::"r"(team + 1), "n"(kThreads) : "memory"); }
__device__ __forceinline__ uint32_t word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
__device__ __forceinline__ uint32_t word(const uint2& v, int i) { return i == 0 ? v.x : v.y; }

// ---- The cut of the batch into ranges. Positions on the line of cost; see the top of the file.
struct Cut {
  unsigned base, segment_cost, align, min_segment, total, portion;  // portion: cost a CTA

  __device__ __forceinline__ unsigned begin(unsigned b, unsigned ptr) const { return ptr - base + segment_cost * b; }
  // Cuts in [first_inner, past_inner) lie inside the request, earlier ones before it, later ones behind it. None lies beyond the line.
  __device__ __forceinline__ unsigned first_inner(unsigned begin) const { return begin + segment_cost + min_segment; }
  __device__ __forceinline__ unsigned past_inner(unsigned begin, unsigned len) const {
    return min(begin + segment_cost + max(len + 1 - min(len + 1, min_segment), min_segment), total);
  }
  __device__ __forceinline__ int offset(unsigned x, unsigned begin) const {  // rows of the request before the cut x
    return x < first_inner(begin) ? 0 : (int)((x - begin - segment_cost) & ~(align - 1));
  }
  __device__ __forceinline__ int cta_of(unsigned x) const { return (int)(min(x, total - 1) / portion); }
  __device__ __forceinline__ int first_cta(unsigned begin) const { return cta_of(first_inner(begin) - 1); }
  __device__ __forceinline__ int last_cta(unsigned begin, unsigned len) const { return cta_of(past_inner(begin, len) - 1); }
};

// ---- Merging partial results: o relative to 2^m, l the sum of weights. Finished ones are (o / l, lse): m = lse, l = 1.
// A team's partials: its first request, if that began in an earlier range; its last, if that begins here and goes on.
constexpr int kGoesOn = 1;       // the first request goes through the whole range
constexpr int kFlushed = 2;      // the first's partial is in `Kernel::first`
constexpr int kFirstInSlot = 4;  // the first's / last's partial is in `Kernel::spanning` already
constexpr int kLastInSlot = 8;

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
// A request that spans CTAs and is all that this CTA works on: the common case with few requests. What its merge needs is worked
// out while the team waits for its first rows.
enum Parts { kNone, kInSlot, kInTeams };  // of it: this team has none; all, in `Kernel::spanning`; some, and other teams have too
struct __align__(16) Lone {
  int first_cta, last_cta;
  Target to;
};

// NB column blocks of 8; tiles of 16 MT rows; G teams a CTA. kStages > 0: one team of 8 warps, with a ring of as many tiles in
// shared memory, `attend` for MT = 2, `attend_warpgroups` for 4; 0: teams of 4 warps, whose rows go through registers.
template <int NB, int MT, int G, int kStages>
struct Shape {
  static_assert(NB == 4 && MT == 2 && G == 1 && kStages >= 2, "the work on a tile is shared out for these");
  static constexpr int kTeamWarps = 8, kAll = 32 * kTeamWarps;  // of a team; threads of a CTA
  static constexpr bool kWarpgroups = false;
  static constexpr int kOwned = MT * 2 * 32;                     // pieces of 16 latents that a warp owns of a tile
  struct Tile {
    uint4 latents[kTeamWarps][kOwned + 4];  // each lane's own 16 of a row's, by owning warp; 64 bytes between warps' spread a row over the banks
    uint4 rope[4][16 * MT];                // by k step and row, see `rope_slot`
  };
  struct Shared {
    union {
      float4 scores[2][kTeamWarps][NB][32];  // partial ones; this and the next two double buffered
      Partial<Wire<NB>::kPairs> reduce[kAll];
    };
    uint4 weights[2][NB][32];              // P, as the fragments that a lane needs of a tile
    float shrink[2][8 * NB];               // what a column's earlier weights are to be multiplied by
    uint32_t largest[8 * NB][4];           // of |q|, by column and quarter of the latents
    float2 sums[8 * NB];                   // m and l of a column when the segment ends
    Tile ring[kStages];
  };
};
template <int NB, int kStages>
struct Shape<NB, 4, 1, kStages> {  // two warpgroups: `attend_warpgroups`
  static_assert(NB == 4);
  static constexpr int kTeamWarps = 8, kAll = 32 * kTeamWarps;
  static constexpr bool kWarpgroups = true;
  static constexpr int kRow = kRowBytes + 16;   // in the ring: rows spread over the banks
  static constexpr int kQStep = NB * 256 + 16;  // bytes of a k step of Q, likewise
  struct Shared {
    __align__(128) uint8_t ring[kStages][64][kRow];
    __align__(16) uint8_t q[36 * kQStep];
    uint4 p[4][2][NB][8];               // by k step of 16 rows, half of it, column block, column: 8 rows
    float2 half[kTeamWarps][NB][32];    // scores for the other warpgroup to add
    float by_warp[kTeamWarps][8 * NB];  // maxima or sums of a column's weights
    float factor[8 * NB];               // of a column's scores
    uint64_t full[kStages];
    Partial<Wire<NB>::kPairs> reduce[kAll];
  };
};
template <int NB, int MT, int G>
struct Shape<NB, MT, G, 0> {
  static constexpr int kTeamWarps = kWarps, kAll = kThreads * G;
  static constexpr bool kWarpgroups = false;
  static constexpr bool kQInShared = NB > 1;
  struct Scores {
    float4 s[2][kWarps][NB * MT][32];                                       // partial scores, double buffered
    uint4 q[kQInShared ? kWarps : 1][NB][kQInShared ? 4 + MT / 2 : 1][32];  // Q fragments, two k steps each
    float q_inverse[kQInShared ? kWarps : 1][NB][8];  // a column's score factor
  };
  struct Result {
    float2 o[NB][kUnits];
    float lse[NB][8];
  };
  union Team {
    Scores scores;
    Result result;
  };
  struct Shared {
    Team team[G];
    int4 desc[G];
    Lone lone;  // if there is one: see `parts`
    __align__(16) int parts[4];  // `Parts`, by team
    Partial<Wire<NB>::kPairs> reduce[kAll];
  };
};

template <int MT>
struct Rows {  // a tile's bytes as this lane holds them: rows 16 i + 8 h + g
  uint4 kv[MT][2][2];
};

struct Output {
  uint16_t* out;
  float* lse;
  int heads, block_shift, block0;
  float out_scale;
  bool straight;  // where o's latents lie: as `attend_warpgroups` leaves them

  __device__ __forceinline__ void write(const Target& to, int n, int unit, float2 o, float m, float l) const {
    if (n >= to.blocks) return;
    const int block = block0 + n, lane = unit & 31, i = unit >> 6 & 7, warp = unit >> 9;  // unit = ((8 warp + i) * 2 + c) * 32 + lane, 4 warps
    const int latent = straight ? 16 * (unit >> 6) + 2 * (lane >> 2) : 128 * warp + 64 * (i >> 2) + 16 * (lane >> 3) + 4 * (i & 3) + 2 * (lane >> 2 & 1);
    const int head = (block & ((1 << block_shift) - 1)) * 8 + column_of(unit);
    const int64_t row = (int64_t)(to.token0 + (block >> block_shift)) * heads + head;
    const float scale = normalizer(l, out_scale);
    *reinterpret_cast<uint32_t*>(out + row * kLatent + latent) = pack_bf16(o.x * scale, o.y * scale);
    if (lse && latent == 0) lse[row] = natural(lse_of(m, l));
  }
};
struct Members {  // the CTAs that share a request; none if last < first
  int first, last;
};

// Merges over CTAs what this one, `me`, shares with others: one slice of each of two requests. All loops and waits are those of
// whole warps: divergent ones were seen to cost the loop over rows its registers.
template <int NB, int kAll>
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
  const Output output;
  int units = 0, both = 0;  // of the slice of `one`; of both slices

  // The quotient of small numbers, rounded down; half a unit keeps the approximation on the right side.
  static __device__ __forceinline__ int divide(int x, int y) { return (int)__fdividef(x + 0.5f, (float)y); }
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
  // Leaves the pieces that merge_members took empty. Nothing waits for it, so it comes last. Four lanes empty the logarithms of sixteen:
  // all have them, since the vote that ended the wait was on what they read.
  __device__ __forceinline__ void empty_members(const Unit& own, int from, int step) const {
#pragma unroll 1
    for (; from < own.members; from += step) {
      const int64_t offset = (int64_t)from * kStep + (from == 0 ? kToLast : 0);
      empty_again(own.pieces + offset);
      if (kPairs > 1 && (own.piece & 15) < 4) send(own.lse + offset * 4, kEmpty);
    }
  }
  __device__ __forceinline__ void write(const Unit& u, const Sum& x) const {
    const Target to{u.second ? to_two.token0 : to_one.token0, u.second ? to_two.blocks : to_one.blocks};
#pragma unroll
    for (int p = 0; p < kPairs; ++p) output.write(to, u.n, kPairs == 1 ? u.piece : (u.piece >> 6) * 256 + p * 64 + (u.piece & 63), x.o[p], x.m, x.l);
  }

  __device__ __forceinline__ void run(Sum* reduce) {
    units = units_of(one);
    both = units + units_of(two);
    if (both == 0) return;  // more members than stretches
    const int longest = max(one.last - one.first, two.last - two.first) + 1;
    if (both > kAll) {
#pragma unroll 1
      for (int base = 0; base < both; base += kUnitsAhead * kAll) {
        Unit own[kUnitsAhead];
        Sum x[kUnitsAhead];
#pragma unroll
        for (int u = 0; u < kUnitsAhead; ++u) {
          const int flat = base + u * kAll + threadIdx.x;
          own[u] = unit_of(flat, flat < both);
        }
        merge_members<kUnitsAhead, 6>(x, own, 0, 1, longest);
#pragma unroll
        for (int u = 0; u < kUnitsAhead; ++u)
          if (own[u].members) write(own[u], x[u]);
#pragma unroll
        for (int u = 0; u < kUnitsAhead; ++u) empty_members(own[u], 0, 1);
      }
      return;
    }
    // `parts` threads share a unit and each takes every parts-th member. Then four lanes share the parts.
    const int parts = divide(kAll, both), part = divide(threadIdx.x, both), flat = threadIdx.x - part * both;
    const Unit own[1] = {unit_of(flat, part < parts)};
    Sum x[1];
    merge_members<1, kMostAtOnce * 16 / kAll>(x, own, part, parts, longest);
    if (parts > 1) {
      reduce[threadIdx.x] = x[0];
      __syncthreads();
    }
    if (parts < 4) {
#pragma unroll 1
      for (int p = 1; p < parts && part == 0; ++p) x[0] = merge(x[0], reduce[flat + p * both]);
      if (part == 0) write(own[0], x[0]);
    } else if (threadIdx.x < 4 * both) {  // whole warps: both is a multiple of 16
      const int lane_part = threadIdx.x & 3, mine = threadIdx.x >> 2;
      Sum y[kAll / 16 / 4];  // both >= 16, so parts <= kAll / 16
#pragma unroll
      for (int j = 0; j < kAll / 16 / 4; ++j) {
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
    empty_members(own[0], part, parts);
  }
};

// Merges what the teams with has[i] left in shared memory of column block n, and sends it to where CTAs look for it.
template <typename Team, int G>
__device__ __forceinline__ void send_merged(const Team (&team)[G], const bool (&has)[G], int n, Piece* slot) {
  constexpr int kAll = kThreads * G, kPer = (kUnits + kAll - 1) / kAll;
  const int column = column_of(threadIdx.x);  // the same for all units of the thread
  const auto is_unit = [](int u) { return (u + 1) * kAll <= kUnits || threadIdx.x + u * kAll < kUnits; };
  float w[G], lse[G], largest = -INFINITY, l = 0.f;
  float2 o[kPer][G];
#pragma unroll
  for (int i = 0; i < G; ++i) lse[i] = has[i] ? team[i].result.lse[n][column] : -INFINITY;
#pragma unroll
  for (int u = 0; u < kPer; ++u)
#pragma unroll
    for (int i = 0; i < G; ++i)
      o[u][i] = has[i] && is_unit(u) ? team[i].result.o[n][threadIdx.x + u * kAll] : make_float2(0.f, 0.f);
#pragma unroll
  for (int i = 0; i < G; ++i) largest = fmaxf(largest, lse[i]);
#pragma unroll
  for (int i = 0; i < G; ++i) {
    w[i] = weight(lse[i], largest);
    l += w[i];
  }
  const float scale = __fdividef(1.f, l), common = lse_of(largest, l);
#pragma unroll
  for (int i = 0; i < G; ++i) w[i] *= scale;
#pragma unroll
  for (int u = 0; u < kPer; ++u) {
    float2 x = make_float2(0.f, 0.f);
#pragma unroll
    for (int i = 0; i < G; ++i) {
      x.x += w[i] * o[u][i].x;
      x.y += w[i] * o[u][i].y;
    }
    if (is_unit(u)) send(slot + threadIdx.x + u * kAll, piece_bits(x, common));
  }
}

struct Segment {  // what a team takes of a request
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
__device__ __forceinline__ float sum_over_rows(float x) {
  x += __shfl_xor_sync(~0u, x, 4);
  x += __shfl_xor_sync(~0u, x, 8);
  return x + __shfl_xor_sync(~0u, x, 16);
}
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
// Hides from the compiler how x comes about: it keeps x in a register, and does not compute it anew or ahead of time.
template <class T>
__device__ __forceinline__ T kept(T x) {
  if constexpr (sizeof(T) == 8)
    asm volatile("" : "+l"(x));
  else
    asm volatile("" : "+r"(x));
  return x;
}

// ---- Attention over one segment by a team of 8 warps, which is the whole CTA. Leaves o as a team of 4 would, but for 64 latents
// a warp, and m and l. Each piece of work on a tile is shared out over the warps in the way that suits it:
//   scores   warp w takes latents 128 (w / 2) + 0..127, a quarter of the rotary part and rows 16 (w % 2) + 0..15, all columns.
//   softmax  warp w adds up and weighs 4 columns of all rows, and alone keeps their maximum and sum.
//   output   warp w takes latents 64 w + 0..63, all rows and columns.
// One barrier a tile: what stands between two is the softmax of tile i, the output of tile i - 1 and the scores of tile i + 1.
// None of these waits for another, so the chains of one fill the gaps of the others; hence one turn of the loop for all, and
// scores and weights double buffered.
template <int NB, int MT, int kStages>
__device__ __forceinline__ void attend(typename Shape<NB, MT, 1, kStages>::Shared& shared, const Kernel& k, const Segment& segment, float (&o)[NB][4][4],
                                       float (&l)[NB][2], float (&m)[NB][2]) {
  using S = Shape<NB, MT, 1, kStages>;
  constexpr int kRows = 16 * MT;
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
  static_assert(kStages <= 8 && kRows == 4 * S::kTeamWarps);
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
  __syncthreads();
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
  constexpr int kScores = NB * 32, kScoreBuffer = S::kTeamWarps * kScores;  // from a warp's to the next's, from a buffer to the other
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
  __syncthreads();
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
    __syncthreads();

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
  __syncthreads();
#pragma unroll
  for (int n = 0; n < NB; ++n)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float2 v = sm.sums[8 * n + 2 * t + c];
      m[n][c] = v.x;
      l[n][c] = v.y;
    }
}

// ---- Attention over one segment by two warpgroups, which are the whole CTA (SM90: wgmma, bulk copies). As `attend`, it shares out each
// piece of work on a tile, of 64 rows here, in the way that suits it, and leaves o, m and l as that does, but for where o's latents lie:
//   scores   warpgroup v takes latents 256 v + 0..255 and half of the rotary part, all rows; its warp w rows 16 w + 0..15 of them.
//   softmax  of these rows the warps of both warpgroups weigh eight each, all columns. The maximum is common to all.
//   output   warp w takes latents 64 w + 0..63, all rows.
// Fragments of A are the rows' bytes in registers, as for mma; B (Q, then P) lies in shared memory as core matrices of 8 columns x 16 bytes.
template <int NB, int kStages>
__device__ __forceinline__ void attend_warpgroups(typename Shape<NB, 4, 1, kStages>::Shared& sm, const Kernel& k, const Segment& segment, float (&o)[NB][4][4],
                                                  float (&l)[NB][2], float (&m)[NB][2], Turn& turn) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using S = Shape<NB, 4, 1, kStages>;
  constexpr int kRows = 64, kRow = S::kRow;
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
  __syncthreads();
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
#pragma unroll
      for (int j = 0; j < 2; ++j) f16_of(f[j], word(u, j), word(x, j));
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
    __syncthreads();
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
    if (__syncthreads_or(grows) || pos == beg) {
#pragma unroll
      for (int n = 0; n < NB; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float x = max_over_rows(s[n][c]);
          if (g == 0) sm.by_warp[warp][8 * n + 2 * t + c] = x;
        }
      __syncthreads();
#pragma unroll
      for (int n = 0; n < NB; ++n) {
        float2 top = make_float2(-INFINITY, -INFINITY);
#pragma unroll
        for (int i = 0; i < S::kTeamWarps; ++i) {
          const float2 x = *reinterpret_cast<const float2*>(&sm.by_warp[i][8 * n + 2 * t]);
          top = make_float2(fmaxf(top.x, x.x), fmaxf(top.y, x.y));
        }
#pragma unroll
        for (int c = 0; c < 2; ++c) raise_maximum(c ? top.y : top.x, m[n][c], l[n][c], o[n], c);
      }
      weigh();
      __syncthreads();
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
  __syncthreads();
#pragma unroll
  for (int n = 0; n < NB; ++n) {
    l[n][0] = l[n][1] = 0.f;
#pragma unroll
    for (int i = 0; i < S::kTeamWarps; ++i) {
      const float2 x = *reinterpret_cast<const float2*>(&sm.by_warp[i][8 * n + 2 * t]);
      l[n][0] += x.x;
      l[n][1] += x.y;
    }
  }
#else
  __trap();
#endif
}

template <int NB, int MT, int G, int kStages>
__global__ void __launch_bounds__(Shape<NB, MT, G, kStages>::kAll, 1) mla_decode(const __grid_constant__ Kernel k) {
  using S = Shape<NB, MT, G, kStages>;
  static_assert(MT == 2 || MT == 4, "the rotary part is shared out for 2 or 4 row blocks a tile");
  constexpr int kRows = 16 * MT;
  constexpr int kSplit = NB * MT < 4 ? 2 : 1;  // independent accumulators of a score, to have enough chains
  extern __shared__ __align__(128) char smem_raw[];
  typename S::Shared& sm = *reinterpret_cast<typename S::Shared*>(smem_raw);
  const int lane = threadIdx.x & 31, cta_warp = __shfl_sync(~0u, (int)threadIdx.x >> 5, 0), team = cta_warp / S::kTeamWarps, warp = cta_warp % S::kTeamWarps;
  const int g = lane >> 2, t = lane & 3;
  const Glm5MlaArgs& a = k.a;
  const unsigned cta = blockIdx.x, ctas = gridDim.x;

  // ---- this team's range: from the cut x0 (offset p of request b0) to the cut x1
  // Everything about the first 32 requests is asked for at once: one latency before the row numbers can be.
  const int near = min(lane, a.batch - 1);
  const int first_ptr = load_here(a.kv_indptr), last_ptr = load_here(a.kv_indptr + a.batch);
  const int near_ptr = load_here(a.kv_indptr + near), near_end = load_here(a.kv_indptr + near + 1);
  const int near_token = load_here(a.qo_indptr + near), near_token_end = load_here(a.qo_indptr + near + 1);
  Cut cut;
  cut.segment_cost = a.segment_cost;
  cut.align = a.align;
  cut.min_segment = a.min_segment;
  cut.base = first_ptr;
  const unsigned total = cut.total = last_ptr - first_ptr + a.segment_cost * a.batch;
  cut.portion = max((total + ctas - 1) / ctas, a.min_portion);
  if (cta * cut.portion >= total) return;
  const unsigned share = max((cut.portion + G - 1) / G, a.min_share);
  const unsigned x0 = cta * cut.portion + min(team * share, cut.portion), x1 = cta * cut.portion + (team == G - 1 ? cut.portion : min((team + 1) * share, cut.portion));
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
  const bool empty = x0 == x1;
  [[maybe_unused]] Turn turn;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (S::kWarpgroups) {
    if (threadIdx.x == 0) init_mbarriers(sm.full, S::kTeamWarps);
    __syncthreads();
  }
#endif

  [[maybe_unused]] int buffer = 0;  // of the score exchange: alternates through all tiles of the team, so that one barrier a tile is enough
#pragma unroll 1
  for (int pass = 0; pass < k.passes; ++pass) {
  const int parity = pass & 1;
  Wire<NB>* const spanning = static_cast<Wire<NB>*>(k.spanning) + (int64_t)parity * ctas * 2;
  auto wire_of = [&](int c, bool inherited) -> Wire<NB>& { return spanning[c * 2 + !inherited]; };
  if constexpr (G > 1) {
    if (warp == 0 && lane == 0) sm.parts[team] = kNone;
  }
  int4 desc = make_int4(-1, 0, -1, 0);  // first request or -1, flags, last request or -1
  for (int b = b0; !empty && b < a.batch && b <= b1; ++b) {
    const bool is_near = b < 32;
    const int begin_ptr = is_near ? __shfl_sync(~0u, near_ptr, b) : __ldg(a.kv_indptr + b);
    const int len = (is_near ? __shfl_sync(~0u, near_end, b) : __ldg(a.kv_indptr + b + 1)) - begin_ptr;
    const unsigned cost = cut.begin(b, begin_ptr);
    const int beg = b == b0 ? min(cut.offset(x0, cost), len) : 0, end = b == b1 ? min(cut.offset(x1, cost), len) : len;
    if (b == b1 && end == beg) break;
    const int token0 = is_near ? __shfl_sync(~0u, near_token, b) : __ldg(a.qo_indptr + b);
    const int tokens = (is_near ? __shfl_sync(~0u, near_token_end, b) : __ldg(a.qo_indptr + b + 1)) - token0;
    const int block0 = pass * NB, blocks = min((tokens << k.block_shift) - block0, NB);
    if (blocks <= 0) continue;

    constexpr int kGroups = 32 / S::kTeamWarps;  // of 16 latents a warp
    float o[NB][kGroups][4], l[NB][2], m[NB][2];
#pragma unroll
    for (int n = 0; n < NB; ++n) {
#pragma unroll
      for (int i = 0; i < kGroups; ++i) o[n][i][0] = o[n][i][1] = o[n][i][2] = o[n][i][3] = 0.f;
      l[n][0] = l[n][1] = 0.f;
      m[n][0] = m[n][1] = -INFINITY;
    }

    const bool starts = beg == 0, ends = end == len;
    bool alone = G == 1, to_global = false;  // a CTA's only team shares a request with other CTAs alone
    if constexpr (kStages > 0) {
      const Segment segment{a.kv_indices + begin_ptr, beg, end, token0, block0, blocks, len - tokens + 1};
      if (beg < end) {
        if constexpr (S::kWarpgroups)
          attend_warpgroups<NB, kStages>(sm, k, segment, o, l, m, turn);
        else
          attend<NB, MT, kStages>(sm, k, segment, o, l, m);
      }
    } else if (beg < end) {
      typename S::Team& sh = sm.team[team];
      // Lane r holds the number of the tile's row r; rows past the end repeat the last one. Tiles of 64: rows r and r + 32.
      constexpr int kIdx = MT / 2;
      struct Index { int v[kIdx]; };
      const int* list = a.kv_indices + begin_ptr;
      const int rope_block = warp & (MT - 1);
      auto load_index = [&](int pos) {
        Index x;
#pragma unroll
        for (int i = 0; i < kIdx; ++i) x.v[i] = __ldg(list + min(pos + 32 * i + lane, end - 1));
        return x;
      };
      const uint8_t* nope_base = a.pool + 128 * warp + 16 * t;
      const uint8_t* rope_base = a.pool + kLatent + (MT == 4 ? 16 * t : 32 * (warp >> 1) + 8 * t);
      const unsigned stride = a.row_stride;
      auto load_block = [&](Rows<MT>& r, int i, const Index& x) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const unsigned row = __shfl_sync(~0u, x.v[i / 2], (16 * i + 8 * h + g) & 31);
          const uint8_t* p = nope_base + (uint64_t)row * stride;
          load_row16_pair(p, r.kv[i][h][0], r.kv[i][h][1]);
        }
      };
      auto load_rope = [&](uint32_t (&rope)[2][MT], const Index& x) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int from = MT == 4 && rope_block >= 2 ? x.v[kIdx - 1] : x.v[0];
          const unsigned row = __shfl_sync(~0u, from, (16 * rope_block + 8 * h + g) & 31);
          const uint8_t* p = rope_base + (uint64_t)row * stride;
          if constexpr (MT == 4) {
            const uint4 v = load_row16(p);
#pragma unroll
            for (int j = 0; j < 4; ++j) rope[h][j] = word(v, j);
          } else {
            const uint2 v = load_row8(p);
#pragma unroll
            for (int j = 0; j < 2; ++j) rope[h][j] = word(v, j);
          }
        }
      };
      auto load_tile = [&](Rows<MT>& r, const Index& x) {
#pragma unroll
        for (int i = 0; i < MT; ++i) load_block(r, i, x);
      };
      Rows<MT> next;         // the latents of the tile on its way while another is in work
      uint32_t rope[2][MT];  // the rotary values need no second set: the next ones are asked for when these are used
      Index idx = load_index(beg);

      // ---- Q fragments: lane (g, t) holds column g, latents 128 warp + 64 c + 16 t + 0..15 (c = 0, 1) and its rotary share
      uint32_t qf[S::kQInShared ? 1 : 8 + MT][2];
      float q_inverse[S::kQInShared ? 1 : NB][2];
#pragma unroll
      for (int n = 0; n < NB; ++n) {
        const int block = block0 + n, token = token0 + k.token_of(block), head = k.head_of(block) + g;
        uint4 raw[4], raw_rope[MT / 2];
        const bool used = n < blocks;
        const uint16_t* qn = a.q_nope + token * a.q_nope_token_stride + head * a.q_nope_head_stride + 128 * warp + 16 * t;
        const uint16_t* qr = a.q_rope + token * a.q_rope_token_stride + head * a.q_rope_head_stride + (MT == 4 ? 16 * t : 32 * (warp >> 1) + 8 * t);
#pragma unroll
        for (int i = 0; i < 4; ++i) raw[i] = used ? __ldg(reinterpret_cast<const uint4*>(qn + 64 * (i >> 1)) + (i & 1)) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < MT / 2; ++i) raw_rope[i] = used ? __ldg(reinterpret_cast<const uint4*>(qr) + i) : make_uint4(0, 0, 0, 0);
        if (n == 0) {  // the first tile is asked for as soon as its row numbers are here
          load_tile(next, idx);
          load_rope(rope, idx);
          idx = load_index(beg + kRows);
        }
        uint32_t largest = 0;  // of |q|, as two bf16: without their signs they compare as integers do
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) largest = __vmaxu2(largest, word(raw[i], j) & 0x7fff7fff);
#pragma unroll
        for (int i = 0; i < MT / 2; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) largest = __vmaxu2(largest, word(raw_rope[i], j) & 0x7fff7fff);
        largest = __vmaxu2(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = __vmaxu2(largest, __shfl_xor_sync(~0u, largest, 2));
        const int e = q_exponent(max(largest >> 16, largest & 0xffff));
        const float scale = q_scale(e);
        // 1 / scale is a power of two, too. For long tiles it is left to a division: with it the same loop was measured 2 to 3 %
        // faster with many requests, and nobody knows why.
        const float inverse = MT == 4 ? a.score_scale / scale : a.score_scale * q_unscale(e);
        if constexpr (!S::kQInShared) {
          q_inverse[n][0] = __shfl_sync(~0u, inverse, 8 * t);
          q_inverse[n][1] = __shfl_sync(~0u, inverse, 8 * t + 4);
        }
        auto half2 = [&](uint32_t x) { return scaled_f16(x, scale); };
        // k step 4 c + j of the latents: words 8 c + 2 j and + 1 of the 16; of the rotary part: words 2 j and + 1
        if constexpr (S::kQInShared) {
          if (n == 0) team_barrier(team);  // earlier readers of this memory
          if (t == 0) sh.scores.q_inverse[warp][n][g] = inverse;
#pragma unroll
          for (int i = 0; i < 4; ++i)
            sh.scores.q[warp][n][i][lane] = make_uint4(half2(raw[i].x), half2(raw[i].y), half2(raw[i].z), half2(raw[i].w));
#pragma unroll
          for (int i = 0; i < MT / 2; ++i)
            sh.scores.q[warp][n][4 + i][lane] = make_uint4(half2(raw_rope[i].x), half2(raw_rope[i].y), half2(raw_rope[i].z), half2(raw_rope[i].w));
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) qf[2 * i + (j >> 1)][j & 1] = half2(word(raw[i], j));
#pragma unroll
          for (int i = 0; i < MT / 2; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) qf[8 + 2 * i + (j >> 1)][j & 1] = half2(word(raw_rope[i], j));
        }
      }
      __syncwarp();
      // The team's last partial stays in shared memory; the end of its first request makes room for the start of another.
      bool another = b + 1 < a.batch && b < b1;
      if (another && b + 1 == b1) another = cut.offset(x1, cut.begin(b1, __ldg(a.kv_indptr + b1))) > 0;
      // What no other team of the CTA has a part of goes straight to where other CTAs look for it.
      const unsigned cta_x0 = cta * cut.portion, cta_x1 = cta_x0 + cut.portion;
      const int cta_beg = min(cut.offset(cta_x0, cost), len), cta_end = cta_x1 >= cut.past_inner(cost, len) ? len : cut.offset(cta_x1, cost);
      alone = beg == cta_beg && end == cta_end;
      to_global = !starts && another && !alone;
      const bool from_here = b == 0 || cta_x0 >= cut.first_inner(cost), to_here = b == a.batch - 1 || cta_x1 < cut.past_inner(cost, len);
      if (from_here && to_here && (cta_beg > 0 || cta_end < len) && warp == 0 && lane == 0) {
        sm.parts[team] = alone ? kInSlot : kInTeams;
        if (beg == cta_beg) sm.lone = Lone{cut.first_cta(cost), cut.last_cta(cost, len), Target{token0, blocks}};
      }
      // Column n * 8 + .. sees rows before limit(n): all of them, but for the newest tokens of a longer query.
      auto limit = [&](int n) { return len - tokens + 1 + k.token_of(block0 + n); };
      const bool masks_early = limit(0) < end;  // some row of this segment is hidden from some column
#pragma unroll 1
      for (int pos = beg; pos < end; pos += kRows) {
        // The only wait for memory: all that was asked for a tile ago. Then the next tile is asked for at once.
        const Rows<MT> r = next;
        const bool more = pos + kRows < end;
        if (more) load_tile(next, idx);
        // ---- S^T, this warp's part
        float acc[kSplit][NB][MT][4];
#pragma unroll
        for (int s = 0; s < kSplit; ++s)
#pragma unroll
          for (int n = 0; n < NB; ++n)
#pragma unroll
            for (int i = 0; i < MT; ++i) acc[s][n][i][0] = acc[s][n][i][1] = acc[s][n][i][2] = acc[s][n][i][3] = 0.f;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          uint4 kv[MT][2];
#pragma unroll
          for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) kv[i][h] = r.kv[i][h][c];
#pragma unroll
          for (int s2 = 2 * c; s2 < 2 * c + 2; ++s2) {  // pairs of k steps
            uint4 qp[NB];
            if constexpr (S::kQInShared) {
#pragma unroll
              for (int n = 0; n < NB; ++n) qp[n] = sh.scores.q[warp][n][s2][lane];
            } else {
              qp[0] = make_uint4(qf[2 * s2][0], qf[2 * s2][1], qf[2 * s2 + 1][0], qf[2 * s2 + 1][1]);
            }
#pragma unroll
            for (int s1 = 0; s1 < 2; ++s1) {
              const int j = (s2 & 1) * 2 + s1;
#pragma unroll
              for (int i = 0; i < MT; ++i) {
                const uint32_t u = word(kv[i][0], j), v = word(kv[i][1], j);
                const uint32_t a0 = e4m3_low(u), a1 = e4m3_low(v), a2 = e4m3_high(u), a3 = e4m3_high(v);
#pragma unroll
                for (int n = 0; n < NB; ++n) mma(acc[s1 % kSplit][n][i], a0, a1, a2, a3, word(qp[n], 2 * s1), word(qp[n], 2 * s1 + 1));
              }
            }
          }
        }
#pragma unroll
        for (int i = 0; i < MT; ++i) {
          if (i != rope_block) continue;  // uniform in the warp
#pragma unroll
          for (int s2 = 0; s2 < MT / 2; ++s2) {
            uint4 qp[NB];
            if constexpr (S::kQInShared) {
#pragma unroll
              for (int n = 0; n < NB; ++n) qp[n] = sh.scores.q[warp][n][4 + s2][lane];
            } else {
              qp[0] = make_uint4(qf[8 + 2 * s2][0], qf[8 + 2 * s2][1], qf[9 + 2 * s2][0], qf[9 + 2 * s2][1]);
            }
#pragma unroll
            for (int s1 = 0; s1 < 2; ++s1) {
              const uint32_t u = rope[0][2 * s2 + s1], v = rope[1][2 * s2 + s1];
              const uint32_t a0 = e4m3_low(u), a1 = e4m3_low(v), a2 = e4m3_high(u), a3 = e4m3_high(v);
#pragma unroll
              for (int n = 0; n < NB; ++n) mma(acc[s1 % kSplit][n][i], a0, a1, a2, a3, word(qp[n], 2 * s1), word(qp[n], 2 * s1 + 1));
            }
          }
        }
        if (more) {
          load_rope(rope, idx);
          idx = load_index(pos + 2 * kRows);
        }

        // ---- the four warps' parts meet; every warp adds them in the same pairs, so all hold the same bits
        float s[NB][MT][4];
#pragma unroll
        for (int n = 0; n < NB; ++n) {
          float2 factor;
          if constexpr (S::kQInShared)
            factor = *reinterpret_cast<const float2*>(&sh.scores.q_inverse[warp][n][2 * t]);
          else
            factor = make_float2(q_inverse[n][0], q_inverse[n][1]);
#pragma unroll
          for (int i = 0; i < MT; ++i) {
#pragma unroll
            for (int x = 0; x < 4; ++x)
              s[n][i][x] = (kSplit == 2 ? acc[0][n][i][x] + acc[kSplit - 1][n][i][x] : acc[0][n][i][x]) * (x & 1 ? factor.y : factor.x);
            sh.scores.s[buffer][warp][n * MT + i][lane] = make_float4(s[n][i][0], s[n][i][1], s[n][i][2], s[n][i][3]);
          }
        }
        team_barrier(team);
#pragma unroll
        for (int n = 0; n < NB; ++n)
#pragma unroll
          for (int i = 0; i < MT; ++i) {
            const float4 u = sh.scores.s[buffer][warp ^ 1][n * MT + i][lane], v = sh.scores.s[buffer][warp ^ 2][n * MT + i][lane],
                         w = sh.scores.s[buffer][warp ^ 3][n * MT + i][lane];
            s[n][i][0] = (s[n][i][0] + u.x) + (v.x + w.x);
            s[n][i][1] = (s[n][i][1] + u.y) + (v.y + w.y);
            s[n][i][2] = (s[n][i][2] + u.z) + (v.z + w.z);
            s[n][i][3] = (s[n][i][3] + u.w) + (v.w + w.w);
          }
        buffer ^= 1;
        if (pos + kRows > end || masks_early) {
#pragma unroll
          for (int n = 0; n < NB; ++n) {
            const int visible = min(end, limit(n)) - pos;
#pragma unroll
            for (int i = 0; i < MT; ++i)
#pragma unroll
              for (int x = 0; x < 4; ++x)
                if (16 * i + 8 * (x >> 1) + g >= visible) s[n][i][x] = -INFINITY;
          }
        }

        // ---- softmax: the maximum moves only when a score exceeds it by 2^kMaxLag
        bool grows = false;
        float top[NB][2];
#pragma unroll
        for (int n = 0; n < NB; ++n)
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            top[n][c] = fmaxf(s[n][0][c], s[n][0][c + 2]);
#pragma unroll
            for (int i = 1; i < MT; ++i) top[n][c] = fmaxf(top[n][c], fmaxf(s[n][i][c], s[n][i][c + 2]));
            grows |= top[n][c] > m[n][c] + (kScoreBias + kMaxLag);
          }
        if (__any_sync(~0u, grows)) {
#pragma unroll
          for (int n = 0; n < NB; ++n)
#pragma unroll
            for (int c = 0; c < 2; ++c) raise_maximum(max_over_rows(top[n][c]), m[n][c], l[n][c], o[n], c);
        }
        uint32_t p[NB][MT][2];
#pragma unroll
        for (int n = 0; n < NB; ++n) {
          const float m0 = m[n][0] == -INFINITY ? 0.f : m[n][0], m1 = m[n][1] == -INFINITY ? 0.f : m[n][1];
#pragma unroll
          for (int i = 0; i < MT; ++i) {
            const float p0 = exp2_approx(s[n][i][0] - m0), p1 = exp2_approx(s[n][i][1] - m1), p2 = exp2_approx(s[n][i][2] - m0),
                        p3 = exp2_approx(s[n][i][3] - m1);
            l[n][0] += p0 + p2;
            l[n][1] += p1 + p3;
            p[n][i][0] = transpose8x8(pack_f16(p0, p1));
            p[n][i][1] = transpose8x8(pack_f16(p2, p3));
          }
        }

        // ---- O^T += V^T P^T
#pragma unroll
        for (int i = 0; i < MT; ++i) {
          uint4 vt[2][2];
#pragma unroll
          for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              const uint4 v = r.kv[i][h][c];
              vt[h][c] = make_uint4(transpose8x8(v.x), transpose8x8(v.y), transpose8x8(v.z), transpose8x8(v.w));
            }
#pragma unroll
          for (int c = 0; c < 2; ++c)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              const uint32_t u = __byte_perm(word(vt[0][c], j), 0, 0x3120), v = __byte_perm(word(vt[1][c], j), 0, 0x3120);
              const uint32_t a0 = e4m3_low(u), a1 = e4m3_high(u), a2 = e4m3_low(v), a3 = e4m3_high(v);
#pragma unroll
              for (int n = 0; n < NB; ++n) mma(o[n][4 * c + j], a0, a1, a2, a3, p[n][i][0], p[n][i][1]);
            }
        }
      }
#pragma unroll
      for (int n = 0; n < NB; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) l[n][c] = sum_over_rows(l[n][c]);
    }

    // ---- where this segment goes. o[n][4 c + j]: columns 2 t, 2 t + 1 and the warp's latents 64 c + 16 (g / 2) + 4 j + 2 (g % 2) + 0, 1
    if (starts && ends) {
#pragma unroll
      for (int n = 0; n < NB; ++n) {
        if (n >= blocks) break;
        const int block = block0 + n, token = token0 + k.token_of(block), head = k.head_of(block) + 2 * t;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float scale = normalizer(l[n][c], a.out_scale);
          uint16_t* out = a.out + ((int64_t)token * a.heads + head + c) * kLatent + 16 * kGroups * warp + (S::kWarpgroups ? 2 * g : 16 * (g >> 1) + 2 * (g & 1));
#pragma unroll
          for (int i = 0; i < kGroups; ++i)
            *reinterpret_cast<uint32_t*>(out + (S::kWarpgroups ? 16 * i : 64 * (i >> 2) + 4 * (i & 3))) = pack_bf16(o[n][i][c] * scale, o[n][i][c + 2] * scale);
          if (a.lse && warp == 0 && g == 0) a.lse[(int64_t)token * a.heads + head + c] = natural(lse_of(m[n][c], l[n][c]));
        }
      }
      continue;
    }
    if (starts) {
      desc.z = b;
      desc.y |= alone ? kLastInSlot : 0;
    } else {
      desc.x = b;
      desc.y = (ends ? 0 : kGoesOn) | (to_global ? kFlushed : 0) | (alone ? kFirstInSlot : 0);
    }
    if (G > 1 && !to_global && !alone) team_barrier(team);  // the scores in the same memory are read
#pragma unroll
    for (int n = 0; n < NB; ++n) {
      const float lse[2] = {lse_of(m[n][0], l[n][0]), lse_of(m[n][1], l[n][1])}, scale[2] = {normalizer(l[n][0], 1.f), normalizer(l[n][1], 1.f)};
      // The compiler is not to know these, lest it computes the addresses ahead of the loop over rows and keeps them through it.
      const unsigned unit = kept(64u * kGroups * warp + lane), from_cta = kept(cta);
      const auto each = [&](auto&& put) {
#pragma unroll
        for (int i = 0; i < kGroups; ++i)
#pragma unroll
          for (int c = 0; c < 2; ++c) put((2 * i + c) * 32, make_float2(o[n][i][c] * scale[c], o[n][i][c + 2] * scale[c]), lse[c]);
      };
      if (alone) {
        auto& wire = wire_of(from_cta, !starts);
        if constexpr (Wire<NB>::kPairs == 1) {
          each([&](int i, float2 x, float y) { send(wire.piece[n] + unit + i, piece_bits(x, y)); });
        } else {
          static_assert(Wire<NB>::kPairs == kGroups);
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const unsigned piece = (2 * kept(warp) + c) * 32 + lane;
            auto pair = [&](int i) { return pack_f16(o[n][i][c] * scale[c], o[n][i][c + 2] * scale[c]); };
            send(&wire.piece[n][piece], make_uint4(pair(0), pair(1), pair(2), pair(3)));
            if ((lane & 15) < 4) send(&wire.lse[n][piece >> 4][t], __float_as_uint(lse[c]));
          }
        }
      } else if constexpr (G > 1) {
        if (to_global) {
          Piece* dst = k.first + ((int64_t)(from_cta * G + team) * NB + n) * kUnits + unit;
          each([&](int i, float2 x, float y) { send(dst + i, piece_bits(x, y)); });
        } else {
          typename S::Result& result = sm.team[team].result;
          float2* dst = result.o[n] + unit;
          each([&](int i, float2 x, float) { dst[i] = x; });
          if (warp == 0 && g == 0) {
            result.lse[n][2 * t] = lse[0];
            result.lse[n][2 * t + 1] = lse[1];
          }
        }
      }
    }
  }

  // ---- merge inside the CTA what its teams share
  const Output output{a.out, a.lse, a.heads, k.block_shift, pass * NB, a.out_scale, S::kWarpgroups};
  auto target_of = [&](int b) {
    const int token0 = __ldg(a.qo_indptr + b);
    return Target{token0, ((__ldg(a.qo_indptr + b + 1) - token0) << k.block_shift) - pass * NB};
  };
  int shared_request[2] = {-1, -1};  // requests that earlier / only later CTAs share, and the CTAs of each
  Members members[2] = {{0, -1}, {0, -1}};
  Target to[2] = {};
  if constexpr (G > 1) {
    if (warp == 0 && lane == 0) sm.desc[team] = desc;
    __syncthreads();
    const Lone lone = sm.lone;
    const int4 all_parts = *reinterpret_cast<const int4*>(sm.parts);
    const int parts[3] = {all_parts.x, all_parts.y, all_parts.z};
    int parts_of_lone = parts[0];
#pragma unroll
    for (int i = 1; i < G; ++i) parts_of_lone |= parts[i];
    if (parts_of_lone != kNone) {
      members[0] = Members{lone.first_cta, lone.last_cta};
      to[0] = lone.to;
    }
    if (parts_of_lone == kInTeams) {
      bool has[G];
#pragma unroll
      for (int i = 0; i < G; ++i) has[i] = parts[i] != kNone;
#pragma unroll 1
      for (int n = 0; n < NB; ++n) send_merged(sm.team, has, n, wire_of(cta, (int)cta != lone.first_cta).piece[n]);
    } else if (parts_of_lone == kNone) {
      int4 descs[G];
#pragma unroll
      for (int i = 0; i < G; ++i) descs[i] = sm.desc[i];
#pragma unroll
      for (int i = 0; i < G; ++i) {
        if (descs[i].y & kFirstInSlot) shared_request[0] = descs[i].x;
        if (descs[i].y & kLastInSlot) shared_request[1] = descs[i].z;
      }
      // A request that several teams have parts of is closed by the team that ends it, or by the end of the CTA's range.
      bool merges = false;
#pragma unroll
      for (int i = 0; i < G; ++i) merges |= (descs[i].x >= 0 && !(descs[i].y & kFirstInSlot)) || (descs[i].z >= 0 && !(descs[i].y & kLastInSlot));
      int open = -1;
      bool inherited = false;
#pragma unroll 1
      for (int closing = merges ? 0 : G + 1; closing <= G; ++closing) {
        const bool last = closing == G;
        const int4 d = last ? make_int4(-1, 0, -1, 0) : sm.desc[closing];
        const bool has_first = d.x >= 0 && !(d.y & kFirstInSlot), has_last = d.z >= 0 && !(d.y & kLastInSlot);
        if (has_first && open < 0) {
          open = d.x;
          inherited = true;
        }
        if (open >= 0 && (last || (has_first && !(d.y & kGoesOn)))) {
          const bool goes_on = last, whole = !inherited && !goes_on;
          const int column = column_of(threadIdx.x);  // the same for all units of the thread
#pragma unroll 1
          for (int n = 0; n < NB; ++n) {
            // Of each team: its partial of this request, if it has one.
            Piece* flushed[G];
            bool has[G], any_flushed = false;
#pragma unroll
            for (int i = 0; i < G; ++i) {
              const bool mine = descs[i].x == open || descs[i].z == open, is_flushed = (descs[i].y & kFlushed) && descs[i].x == open;
              flushed[i] = is_flushed ? k.first + ((int64_t)(cta * G + i) * NB + n) * kUnits + threadIdx.x : nullptr;
              any_flushed |= is_flushed;
              has[i] = mine && !is_flushed;
            }
            Piece* slot = wire_of(cta, inherited).piece[n];
            if (!whole && !any_flushed) {
              send_merged(sm.team, has, n, slot);
              continue;
            }
            float w[G], lse[G], largest = -INFINITY, l = 0.f;
#pragma unroll
            for (int i = 0; i < G; ++i) {
              lse[i] = flushed[i] ? __uint_as_float(flushed[i]->lse) : has[i] ? sm.team[i].result.lse[n][column] : -INFINITY;
              largest = fmaxf(largest, lse[i]);
            }
#pragma unroll
            for (int i = 0; i < G; ++i) {
              w[i] = weight(lse[i], largest);
              l += w[i];
            }
            const float scale = __fdividef(1.f, l), common = lse_of(largest, l);
            const Target target = target_of(open);
            slot += threadIdx.x;
#pragma unroll 1
            for (int unit = threadIdx.x; unit < kUnits; unit += S::kAll) {
              float2 x = make_float2(0.f, 0.f);
#pragma unroll
              for (int i = 0; i < G; ++i) {
                float2 o = has[i] ? sm.team[i].result.o[n][unit] : make_float2(0.f, 0.f);
                if (flushed[i]) {
                  o = piece_o(receive(flushed[i]));
                  empty_again(flushed[i]);
                  flushed[i] += S::kAll;
                }
                x.x += w[i] * o.x;
                x.y += w[i] * o.y;
              }
              if (whole)
                output.write(target, n, unit, x, largest, l);
              else
                send(slot, piece_bits(make_float2(x.x * scale, x.y * scale), common));
              slot += S::kAll;
            }
          }
          if (inherited) shared_request[0] = open; else if (goes_on) shared_request[1] = open;
          open = -1;
        }
        if (has_last) {
          open = d.z;
          inherited = false;
        }
      }
    }
  } else {
    if (desc.y & kFirstInSlot) shared_request[0] = desc.x;
    if (desc.y & kLastInSlot) shared_request[1] = desc.z;
  }
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    if (shared_request[e] < 0) continue;
    to[e] = target_of(shared_request[e]);
    const int ptr = __ldg(a.kv_indptr + shared_request[e]), len = __ldg(a.kv_indptr + shared_request[e] + 1) - ptr;
    const unsigned cost = cut.begin(shared_request[e], ptr);
    members[e] = Members{cut.first_cta(cost), cut.last_cta(cost, len)};
  }

  // ---- merge over CTAs: each takes a slice of every request that it shares
  if (members[0].first <= members[0].last || members[1].first <= members[1].last) {
    MergeCtas<NB, S::kAll>{spanning, (int)cta, members[0], members[1], to[0], to[1], output}
        .run(sm.reduce);
  }
  __syncthreads();  // the next pass writes the shared memory that this one read
  // The pass after the next writes where this one read: its writers have then seen pieces of the next pass from here.
  if (pass + 1 < k.passes) __threadfence();
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
  int nb, teams, threads, shared, wire, stretches;  // wire: bytes
};
template <int NB, int MT, int G, int kStages>
Variant variant() {
  using S = Shape<NB, MT, G, kStages>;
  return Variant{(const void*)mla_decode<NB, MT, G, kStages>, NB, G, S::kAll, (int)sizeof(typename S::Shared), (int)sizeof(Wire<NB>),
                 MergeCtas<NB, S::kAll>::kStretches};
}
struct Device {
  Variant one, one_batched, two, four;  // by the column blocks a pass
  int ctas;
  bool ready;
};
Device devices[kMaxDevices];

template <int NB, int MT, int G, int kStages>
constexpr bool fits_sm120() {
  return sizeof(typename Shape<NB, MT, G, kStages>::Shared) <= kSm120Shared;
}
static_assert(fits_sm120<1, 2, 3, 0>() && fits_sm120<1, 4, 2, 0>() && fits_sm120<2, 2, 2, 0>() && fits_sm120<4, 2, 1, 3>());

int code_of(cudaError_t e) { return e == cudaSuccess ? kOk : kCuda + (int)e; }

void set_variants(Device& d, int most_shared) {
  // Three teams with short tiles answer a single request soonest, two with longer ones move more bytes of a batch.
  d.one = variant<1, 2, 3, 0>();
  d.one_batched = variant<1, 4, 2, 0>();
  d.two = variant<2, 2, 2, 0>();
  d.four = variant<4, 4, 1, 4>();  // no SM120 card has the room for it
  if (d.four.shared > most_shared) d.four = variant<4, 2, 1, 3>();
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
  for (const Variant* v : {&d.one, &d.one_batched, &d.two, &d.four}) {
    e = cudaFuncSetAttribute(v->function, cudaFuncAttributeMaxDynamicSharedMemorySize, v->shared);
    int resident = 0;
    if (e == cudaSuccess) e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, v->function, v->threads, v->shared);
    if (e != cudaSuccess) return code_of(e);
    if (resident < 1) return kNoRoom;
  }
  d.ready = true;
  return kOk;
}

const Variant& choose(const Device& d, int blocks, int batch) {
  constexpr int kBatched = 4;
  return blocks <= 1 ? (batch < kBatched ? d.one : d.one_batched) : blocks == 2 ? d.two : d.four;
}
// Words everywhere that are all ones while empty, as they are between calls, whatever the variant.
struct Layout {
  size_t first, end;
  Layout(const Variant& v, int ctas) {
    first = (size_t)2 * ctas * 2 * v.wire;
    end = first + (v.teams > 1 ? ctas * v.teams * sizeof(Piece) * kUnits * v.nb : 0);
  }
};
size_t workspace_bytes(const Device& d, int heads, int max_q_len) {
  size_t bytes = 0;
  for (int q = 1; q <= max_q_len; ++q)
    for (int batch : {1, 1 << 20}) {
      const size_t end = Layout(choose(d, q * heads / 8, batch), d.ctas).end;
      if (end > bytes) bytes = end;
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
  const Variant& v = choose(d, blocks, args->batch);
  int ctas = args->ctas && (int)args->ctas < d.ctas ? args->ctas : d.ctas;
  Kernel k;
  k.a = *args;
  if (!k.a.align) k.a.align = 32;
  if (!k.a.min_segment) k.a.min_segment = 32;
  if (!k.a.segment_cost) k.a.segment_cost = 160;
  if (!k.a.min_portion) k.a.min_portion = 32;
  if (!k.a.min_share) k.a.min_share = 64;
  // A CTA within a request without rows of it would keep others waiting.
  if (k.a.align & (k.a.align - 1) || k.a.min_segment % k.a.align || k.a.min_portion < k.a.align) return kCut;
  k.passes = (blocks + v.nb - 1) / v.nb;
  // With more CTAs some could have nothing to merge. Such a one waits for nobody, and would write where the pass before the last wrote,
  // maybe before that is read.
  if (k.passes > 2 && ctas > v.stretches) ctas = v.stretches;
  k.block_shift = 0;
  while ((8 << k.block_shift) < args->heads) ++k.block_shift;
  const Layout layout(v, d.ctas);
  k.spanning = args->workspace;
  k.first = (Piece*)((char*)args->workspace + layout.first);
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
