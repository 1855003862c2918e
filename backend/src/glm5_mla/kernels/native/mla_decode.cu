// MLA decode over an FP8 (e4m3) latent KV pool, read as it is: no cast pass, and no staging of the rows on their way.
//
//   scores = (q_nope . row[:512] + q_rope . row[512:]) * sm_scale * kv_scale,  out = softmax(scores) . row[:512] * kv_scale
//
// Roofline. A row is 576 bytes and takes 2 * (576 + 512) = 2,176 FLOP a head: 30 FLOP/B at 8 heads. An H200 (4.3 TB/s,
// 790 TFLOP/s dense BF16) balances at 184 FLOP/B, so one layer takes rows * 576 B / 4.3 TB/s at best, provided that little
// of the matrix unit's work is padding. Hence the operands are swapped: 16 KV rows are the M of mma.m16n8k16 and 8 columns
// (query token, head) its N. Nothing is padded at 8 heads.
//
// Tiling. One CTA an SM; its teams of 4 warps walk contiguous ranges of rows in tiles of 16 MT rows. A warp owns 128 of the
// 512 latents of every row (and a quarter of the rotary part) in both products, so a row's bytes go from global memory
// straight into the registers of the one warp that uses them:
//   S^T (rows x columns)   partial sums over the warp's own latents. A fragments are the loaded bytes as they lie: the k
//                          order is free as long as Q's is the same. The four warps' sums meet in shared memory, with one
//                          barrier a tile; every warp then does the same softmax on the total.
//   O^T (latents x columns) += V^T P^T for the warp's own latents. V^T fragments come from the same registers through
//                          movmatrix (transposes 8x8 pairs of bytes inside the warp) and one byte permutation.
// The next tile's latents are asked for when the tile begins and waited for when it ends, one batch at a time: a warp has
// few scoreboards, so with two batches on their way the wait for the older one was seen to include the newer one.
//
// Numbers. e4m3 -> f16 is exact; q is scaled by a power of two per warp and column and rounded to f16; P is kept as
// f16(2^(s - m + 11)): with a running maximum that may lag by 2^4 it stays below 65504, and weights down to 2^-25 of the
// largest keep full precision. Sums are float32.
//
// Budget a thread in 32-bit registers: O 32 NB, row bytes 2 * 16 MT (in work and on their way) + rotary 2 MT, Q 16 + 2 MT
// (NB = 1; in shared memory otherwise), scores 4 MT NB to 8 MT NB. NB = 1: 168 registers, 3 teams of MT = 2, or 255 and
// 2 teams of MT = 4: 55 or 73 KB of rows on their way an SM, where 4 TB/s and a latency of 1 us need 30. Shared memory a
// team: the exchange of scores (4 KB MT NB) or, later in the same place, the result (16 KB NB). The variants that SM120
// uses fit its 99 KB.
//
// Split-KV. No host plan and no host read: each team computes its range from kv_indptr. Requests are laid on one line of
// cost (rows + segment_cost each), cut in equal pieces, cuts near a request's end moved to it. A request inside one team
// is written at once. Otherwise teams leave partial results in shared memory, where their CTA merges them; a request that
// spans CTAs goes through global memory: its CTAs count arrivals and each merges one slice once all are there. All CTAs
// are resident (one an SM, cooperative launch), so the wait ends; should it not, the launch fails after kSpinLimit polls.
// The order of every sum is fixed: results are bit-identical from run to run.
#include <cuda_runtime.h>
#include <stdint.h>

#include "mla_decode.h"

namespace {

constexpr int kLatent = 512, kWarps = 4, kThreads = 32 * kWarps;  // of a team
constexpr float kScoreBias = 11.f;  // P = 2^(s - m + bias)
constexpr float kMaxLag = 4.f;      // the running maximum may lag behind the true one by this many powers of two
constexpr int kUnits = 2048, kSlot = kUnits + 8;  // float2 a column block: O in fragment order, then (m, l) a column
constexpr unsigned kSpinLimit = 1u << 24;         // polls of another CTA's arrival, seconds: then the launch fails


struct Kernel {  // by value in constant memory
  Glm5MlaArgs a;
  int passes;          // over the query's column blocks, NB at a time
  int block_shift;     // log2 of the column blocks a token has: heads / 8
  float2* spanning;    // [2: pass parity][cta][2: first, last request][NB][kSlot] partials of requests that span CTAs
  float2* first;       // [cta][team][NB][kSlot] partials of a team's first request, if the team goes on with others
  unsigned* counter;   // [2: pass parity][cta] arrivals at a request that begins in the CTA
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
__device__ __forceinline__ void team_barrier(int team) { asm volatile("bar.sync %0,%1;" ::"r"(team + 1), "n"(kThreads) : "memory"); }
__device__ __forceinline__ uint32_t word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
__device__ __forceinline__ uint32_t word(const uint2& v, int i) { return i == 0 ? v.x : v.y; }

// ---- The cut of the batch into ranges. Positions on the line of cost; see the top of the file.
struct Cut {
  unsigned base, segment_cost, align, min_segment, piece, last;  // piece: cost a CTA; last: the last CTA with work

  __device__ __forceinline__ unsigned begin(unsigned b, unsigned ptr) const { return ptr - base + segment_cost * b; }
  // Cuts in [first_inner, past_inner) lie inside the request, earlier ones before it, later ones behind it.
  __device__ __forceinline__ unsigned first_inner(unsigned begin) const { return begin + segment_cost + min_segment; }
  __device__ __forceinline__ unsigned past_inner(unsigned begin, unsigned len) const {
    return begin + segment_cost + max(len + 1 - min(len + 1, min_segment), min_segment);
  }
  __device__ __forceinline__ int offset(unsigned x, unsigned begin) const {  // rows of the request before the cut x
    return x < first_inner(begin) ? 0 : (int)((x - begin - segment_cost) & ~(align - 1));
  }
  __device__ __forceinline__ int first_cta(unsigned begin) const { return (int)min((first_inner(begin) - 1) / piece, last); }
  __device__ __forceinline__ int last_cta(unsigned begin, unsigned len) const {
    return (int)min((past_inner(begin, len) - 1) / piece, last);
  }
};

// ---- Merging partial results: o relative to 2^m, l the sum of weights.
// A team's partials: its first request, if that began in an earlier range; its last, if that begins here and goes on.
constexpr int kGoesOn = 1;       // the first request goes through the whole range
constexpr int kFlushed = 2;      // the first's partial is in `Kernel::first`
constexpr int kFirstInSlot = 4;  // the first's / last's partial is in `Kernel::spanning` already
constexpr int kLastInSlot = 8;

struct Partial {
  float2 o;
  float m, l;
};
__device__ __forceinline__ float weight(float m, float largest) { return m == largest ? 1.f : exp2_approx(m - largest); }
__device__ __forceinline__ Partial merge(const Partial& x, const Partial& z) {
  const float m = fmaxf(x.m, z.m), p = weight(x.m, m), q = weight(z.m, m);
  return Partial{make_float2(x.o.x * p + z.o.x * q, x.o.y * p + z.o.y * q), m, x.l * p + z.l * q};
}
template <int N>
__device__ __forceinline__ Partial merge_all(const float2 (&o)[N], const float2 (&ml)[N]) {
  Partial x{make_float2(0.f, 0.f), ml[0].x, 0.f};
#pragma unroll
  for (int i = 1; i < N; ++i) x.m = fmaxf(x.m, ml[i].x);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float p = weight(ml[i].x, x.m);
    x.o.x += o[i].x * p;
    x.o.y += o[i].y * p;
    x.l += ml[i].y * p;
  }
  return x;
}
__device__ __forceinline__ int column_of(int unit) { return 2 * (unit & 3) + (unit >> 5 & 1); }
__device__ __forceinline__ float normalizer(float l, float out_scale) { return l == 0.f ? 0.f : __fdividef(out_scale, l); }  // no row seen: zero
__device__ __forceinline__ float natural_lse(float m, float l) { return (m + __log2f(l)) * 0.69314718056f; }

// NB column blocks of 8; tiles of 16 MT rows; G teams a CTA; kStage: the tile in work lies in shared memory, not in registers.
template <int NB, int MT, int G, bool kStage>
struct Shape {
  static constexpr bool kQInShared = NB > 1;
  struct Scores {
    float4 s[2][kWarps][NB * MT][32];                                       // partial scores, double buffered
    uint4 q[kQInShared ? kWarps : 1][NB][kQInShared ? 4 + MT / 2 : 1][32];  // Q fragments, two k steps each
    float q_inverse[kQInShared ? kWarps : 1][NB][8];  // a column's score factor
  };
  struct Result {
    float2 o[NB][kUnits];
    float2 ml[NB][8];
  };
  union Team {
    Scores scores;
    Result result;
  };
  struct Shared {
    Team team[G];
    uint4 rows[kStage ? kWarps * G : 1][kStage ? 4 * MT : 1][32];  // the tile in work: each lane's own bytes
    int4 desc[G];
    float4 reduce[2][kThreads * G];
  };
};

template <int MT>
struct Rows {  // a tile's bytes as this lane holds them: rows 16 i + 8 h + g
  uint4 kv[MT][2][2];
};

template <int NB, int MT, int G, bool kStage>
__global__ void __launch_bounds__(kThreads * G, 1) mla_decode(const __grid_constant__ Kernel k) {
  using S = Shape<NB, MT, G, kStage>;
  static_assert(MT == 2 || MT == 4, "the rotary part is shared out for 2 or 4 row blocks a tile");
  constexpr int kRows = 16 * MT;
  constexpr int kSplit = NB * MT < 4 ? 2 : 1;  // independent accumulators of a score, to have enough chains
  extern __shared__ __align__(128) char smem_raw[];
  typename S::Shared& sm = *reinterpret_cast<typename S::Shared*>(smem_raw);
  const int lane = threadIdx.x & 31, cta_warp = __shfl_sync(~0u, (int)threadIdx.x >> 5, 0), team = cta_warp / kWarps, warp = cta_warp % kWarps;
  const int g = lane >> 2, t = lane & 3;
  typename S::Team& sh = sm.team[team];
  const Glm5MlaArgs& a = k.a;
  const unsigned cta = blockIdx.x, ctas = gridDim.x;

  // ---- this team's range: from the cut x0 (offset p of request b0) to the cut x1
  // Everything about the first 32 requests is asked for at once: one latency before the row numbers can be.
  const int near = min(lane, a.batch - 1);
  const int near_ptr = __ldg(a.kv_indptr + near), near_end = __ldg(a.kv_indptr + near + 1);
  const int near_token = __ldg(a.qo_indptr + near), near_token_end = __ldg(a.qo_indptr + near + 1);
  Cut cut;
  cut.segment_cost = a.segment_cost;
  cut.align = a.align;
  cut.min_segment = a.min_segment;
  cut.base = __ldg(a.kv_indptr);
  const unsigned total = __ldg(a.kv_indptr + a.batch) - cut.base + a.segment_cost * a.batch;
  cut.piece = max((total + ctas - 1) / ctas, a.min_piece);
  cut.last = (total - 1) / cut.piece;
  if (cta > cut.last) return;
  const unsigned share = max((cut.piece + G - 1) / G, a.min_share);
  const unsigned x0 = cta * cut.piece + min(team * share, cut.piece), x1 = cta * cut.piece + (team == G - 1 ? cut.piece : min((team + 1) * share, cut.piece));
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
  if (x0 >= total) b0 = a.batch;
  if (x1 >= total) b1 = a.batch;
  const bool empty = x0 == x1;

  int buffer = 0;  // of the score exchange: alternates through all tiles of the team, so that one barrier a tile is enough
#pragma unroll 1
  for (int pass = 0; pass < k.passes; ++pass) {
  const int parity = pass & 1;
  auto spanning_slot = [&](int c, bool inherited, int n) {
    return k.spanning + ((((int64_t)parity * ctas + c) * 2 + !inherited) * NB + n) * kSlot;
  };
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

    float o[NB][8][4], l[NB][2], m[NB][2];
#pragma unroll
    for (int n = 0; n < NB; ++n) {
#pragma unroll
      for (int i = 0; i < 8; ++i) o[n][i][0] = o[n][i][1] = o[n][i][2] = o[n][i][3] = 0.f;
      l[n][0] = l[n][1] = 0.f;
      m[n][0] = m[n][1] = -INFINITY;
    }

    if (beg < end) {
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
        const int block = block0 + n, token = token0 + (block >> k.block_shift), head = (block & ((1 << k.block_shift) - 1)) * 8 + g;
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
        float largest = 0.f;
        auto widest = [&](uint32_t x) { largest = fmaxf(largest, fmaxf(fabsf(__uint_as_float(x << 16)), fabsf(__uint_as_float(x & 0xffff0000u)))); };
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) widest(word(raw[i], j));
#pragma unroll
        for (int i = 0; i < MT / 2; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) widest(word(raw_rope[i], j));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        // A power of two that brings the largest into [2^7, 2^8): f16 then loses only what is 2^-32 times smaller.
        const int e = min(max((int)(__float_as_uint(largest) >> 23), 7), 254);
        const float scale = __uint_as_float((uint32_t)(261 - e) << 23);
        const float inverse = a.score_scale / scale;
        if constexpr (!S::kQInShared) {
          q_inverse[n][0] = __shfl_sync(~0u, inverse, 8 * t);
          q_inverse[n][1] = __shfl_sync(~0u, inverse, 8 * t + 4);
        }
        auto half2 = [&](uint32_t x) { return pack_f16(__uint_as_float(x << 16) * scale, __uint_as_float(x & 0xffff0000u) * scale); };
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
      // Column n * 8 + .. sees rows before limit(n): all of them, but for the newest tokens of a longer query.
      auto limit = [&](int n) { return len - tokens + 1 + ((block0 + n) >> k.block_shift); };
      const bool masks_early = limit(0) < end;  // some row of this segment is hidden from some column
#pragma unroll 1
      for (int pos = beg; pos < end; pos += kRows) {
        // The only wait for memory: all that was asked for a tile ago. Then the next tile is asked for at once.
        [[maybe_unused]] Rows<MT> r = {};
        if constexpr (kStage) {
#pragma unroll
          for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
              for (int c = 0; c < 2; ++c) sm.rows[cta_warp][(2 * i + h) * 2 + c][lane] = next.kv[i][h][c];
        } else {
          r = next;
        }
        const bool more = pos + kRows < end;
        if (more) load_tile(next, idx);
        auto row_bytes = [&](int i, int h, int c) { return kStage ? sm.rows[cta_warp][(2 * i + h) * 2 + c][lane] : r.kv[i][h][c]; };
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
            for (int h = 0; h < 2; ++h) kv[i][h] = row_bytes(i, h, c);
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
            for (int c = 0; c < 2; ++c) {
              float x = top[n][c];
              x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
              x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
              x = fmaxf(x, __shfl_xor_sync(~0u, x, 16));
              const float next = fmaxf(m[n][c], x - kScoreBias), shrink = m[n][c] == next ? 1.f : exp2_approx(m[n][c] - next);
              m[n][c] = next;
              l[n][c] *= shrink;
#pragma unroll
              for (int i = 0; i < 8; ++i) {
                o[n][i][c] *= shrink;
                o[n][i][c + 2] *= shrink;
              }
            }
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
              const uint4 v = row_bytes(i, h, c);
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
        for (int c = 0; c < 2; ++c) {
          l[n][c] += __shfl_xor_sync(~0u, l[n][c], 4);
          l[n][c] += __shfl_xor_sync(~0u, l[n][c], 8);
          l[n][c] += __shfl_xor_sync(~0u, l[n][c], 16);
        }
    }

    // ---- where this segment goes. o[n][4 c + j]: columns 2 t, 2 t + 1 and latents 128 warp + 64 c + 16 (g / 2) + 4 j + 2 (g % 2) + 0, 1
    const bool starts = beg == 0, ends = end == len;
    if (starts && ends) {
#pragma unroll
      for (int n = 0; n < NB; ++n) {
        if (n >= blocks) break;
        const int block = block0 + n, token = token0 + (block >> k.block_shift), head = (block & ((1 << k.block_shift) - 1)) * 8 + 2 * t;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float scale = normalizer(l[n][c], a.out_scale);
          uint16_t* out = a.out + ((int64_t)token * a.heads + head + c) * kLatent + 128 * warp + 16 * (g >> 1) + 2 * (g & 1);
#pragma unroll
          for (int i = 0; i < 8; ++i)
            *reinterpret_cast<uint32_t*>(out + 64 * (i >> 2) + 4 * (i & 3)) = pack_bf16(o[n][i][c] * scale, o[n][i][c + 2] * scale);
          if (a.lse && warp == 0 && g == 0) a.lse[(int64_t)token * a.heads + head + c] = natural_lse(m[n][c], l[n][c]);
        }
      }
      continue;
    }
    // The team's last partial stays in shared memory; the end of its first request makes room for the start of another.
    bool another = b + 1 < a.batch && b < b1;
    if (another && b + 1 == b1) another = cut.offset(x1, cut.begin(b1, __ldg(a.kv_indptr + b1))) > 0;
    // What no other team of the CTA has a part of goes straight to where other CTAs look for it.
    const unsigned cta_x0 = cta * cut.piece, cta_x1 = cta_x0 + cut.piece;
    const int cta_beg = min(cut.offset(cta_x0, cost), len), cta_end = cta_x1 >= cut.past_inner(cost, len) ? len : cut.offset(cta_x1, cost);
    const bool alone = beg == cta_beg && end == cta_end;
    const bool to_global = !starts && another && !alone;
    if (starts) {
      desc.z = b;
      desc.y |= alone ? kLastInSlot : 0;
    } else {
      desc.x = b;
      desc.y = (ends ? 0 : kGoesOn) | (to_global ? kFlushed : 0) | (alone ? kFirstInSlot : 0);
    }
    if (!to_global && !alone) team_barrier(team);  // the scores in the same memory are read
#pragma unroll
    for (int n = 0; n < NB; ++n) {
      float2* dst = alone ? spanning_slot(cta, !starts, n) : to_global ? k.first + ((int64_t)(cta * G + team) * NB + n) * kSlot : sh.result.o[n];
      float2* ml = to_global || alone ? dst + kUnits : sh.result.ml[n];
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int c = 0; c < 2; ++c) dst[((8 * warp + i) * 2 + c) * 32 + lane] = make_float2(o[n][i][c], o[n][i][c + 2]);
      if (warp == 0 && g == 0) {
        ml[2 * t] = make_float2(m[n][0], l[n][0]);
        ml[2 * t + 1] = make_float2(m[n][1], l[n][1]);
      }
    }
  }

  // ---- merge inside the CTA what its teams share
  if (warp == 0 && lane == 0) sm.desc[team] = desc;
  __syncthreads();
  struct Target {  // of a request: where its tokens begin and how many column blocks this pass has of them
    int token0, blocks;
  };
  auto target_of = [&](int b) {
    const int token0 = __ldg(a.qo_indptr + b);
    return Target{token0, ((__ldg(a.qo_indptr + b + 1) - token0) << k.block_shift) - pass * NB};
  };
  auto write_out = [&](const Target& to, int n, int unit, const Partial& x) {
    if (n >= to.blocks) return;
    const int block = pass * NB + n, u_lane = unit & 31, u_i = unit >> 6 & 7, u_warp = unit >> 9;  // unit = ((8 warp + i) * 2 + c) * 32 + lane
    const int latent = 128 * u_warp + 64 * (u_i >> 2) + 16 * (u_lane >> 3) + 4 * (u_i & 3) + 2 * (u_lane >> 2 & 1);
    const int head = (block & ((1 << k.block_shift) - 1)) * 8 + column_of(unit);
    const int64_t row = (int64_t)(to.token0 + (block >> k.block_shift)) * a.heads + head;
    const float scale = normalizer(x.l, a.out_scale);
    *reinterpret_cast<uint32_t*>(a.out + row * kLatent + latent) = pack_bf16(x.o.x * scale, x.o.y * scale);
    if (a.lse && latent == 0) a.lse[row] = natural_lse(x.m, x.l);
  };
  int shared_request[2] = {-1, -1};  // requests that earlier / only later CTAs share
  int4 descs[G];
#pragma unroll
  for (int i = 0; i < G; ++i) descs[i] = sm.desc[i];
  auto merge_teams = [&](int b, bool inherited, bool goes_on) {
    const Target to = target_of(b);
#pragma unroll 1
    for (int n = 0; n < NB; ++n) {
      // Of each team: its partial of this request, if it has one, and the weight for the common maximum.
      const float2* src[G];
      bool has[G];
      float w[G], largest = -INFINITY, l = 0.f;
      float2 ml[G];
      const int column = column_of(threadIdx.x);  // the same for all units of the thread
#pragma unroll
      for (int i = 0; i < G; ++i) {
        const bool flushed = (descs[i].y & kFlushed) && descs[i].x == b;
        has[i] = descs[i].x == b || descs[i].z == b;
        src[i] = flushed ? k.first + ((int64_t)(cta * G + i) * NB + n) * kSlot : sm.team[i].result.o[n];
        ml[i] = has[i] ? (flushed ? src[i] + kUnits : sm.team[i].result.ml[n])[column] : make_float2(-INFINITY, 0.f);
        largest = fmaxf(largest, ml[i].x);
      }
#pragma unroll
      for (int i = 0; i < G; ++i) {
        w[i] = weight(ml[i].x, largest);
        l += w[i] * ml[i].y;
      }
      float2* slot = spanning_slot(cta, inherited, n);
      constexpr int kPer = (kUnits + kThreads * G - 1) / (kThreads * G);
      float2 o[kPer][G];
#pragma unroll
      for (int u = 0; u < kPer; ++u)
#pragma unroll
        for (int i = 0; i < G; ++i) {
          const int unit = u * kThreads * G + threadIdx.x;
          o[u][i] = has[i] && unit < kUnits ? src[i][unit] : make_float2(0.f, 0.f);
        }
#pragma unroll
      for (int u = 0; u < kPer; ++u) {
        const int unit = u * kThreads * G + threadIdx.x;
        if (unit >= kUnits) break;
        Partial x{make_float2(0.f, 0.f), largest, l};
#pragma unroll
        for (int i = 0; i < G; ++i) {
          x.o.x += w[i] * o[u][i].x;
          x.o.y += w[i] * o[u][i].y;
        }
        if (!inherited && !goes_on)
          write_out(to, n, unit, x);
        else
          __stcg(slot + unit, x.o);
      }
      if ((inherited || goes_on) && threadIdx.x < 64 && lane < 4) __stcg(slot + kUnits + column, make_float2(largest, l));
    }
    if (inherited) shared_request[0] = b; else if (goes_on) shared_request[1] = b;
  };
  bool merges = false;
#pragma unroll
  for (int i = 0; i < G; ++i) {
    if (descs[i].y & kFirstInSlot) shared_request[0] = descs[i].x;
    if (descs[i].y & kLastInSlot) shared_request[1] = descs[i].z;
    merges |= (descs[i].x >= 0 && !(descs[i].y & kFirstInSlot)) || (descs[i].z >= 0 && !(descs[i].y & kLastInSlot));
  }
  if (merges) {
    int open = -1;
    bool inherited = false;
#pragma unroll 1
    for (int i = 0; i < G; ++i) {
      const int4 d = sm.desc[i];
      if (d.x >= 0 && !(d.y & kFirstInSlot)) {
        if (open < 0) {
          open = d.x;
          inherited = true;
        }
        if (!(d.y & kGoesOn)) {
          merge_teams(open, inherited, false);
          open = -1;
        }
      }
      if (d.z >= 0 && !(d.y & kLastInSlot)) {
        open = d.z;
        inherited = false;
      }
    }
    if (open >= 0) merge_teams(open, inherited, true);
  }

  // ---- merge over CTAs: each takes a slice of every request that it shares, once all have arrived
  if (shared_request[0] >= 0 || shared_request[1] >= 0) {
    int c0[2], c1[2];
    Target to[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      c0[e] = c1[e] = 0;
      if (shared_request[e] < 0) continue;
      to[e] = target_of(shared_request[e]);
      const int ptr = __ldg(a.kv_indptr + shared_request[e]), len = __ldg(a.kv_indptr + shared_request[e] + 1) - ptr;
      const unsigned cost = cut.begin(shared_request[e], ptr);
      c0[e] = cut.first_cta(cost);
      c1[e] = cut.last_cta(cost, len);
    }
    // A member CTA of n takes every n-th stretch of 16 units. Threads (part, local) share a unit: each merges every
    // `parts`-th member, then the first of them merges the parts. All indices are ready before the wait.
    constexpr int kUse = G >= 4 ? 512 : G >= 2 ? 256 : 128, kStretches = NB * kUnits / 16, kAhead = 9;
    int units[2], shift[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int n = c1[e] - c0[e] + 1, me = cta - c0[e];
      units[e] = shared_request[e] < 0 ? 0 : (kStretches - me + n - 1) / n * 16;
      shift[e] = 32 - __clz(max(units[e], 16) - 1);
    }
    auto from_members = [&](int which, int local, int part, int parts, int* n, int* unit) {
      const int first = which ? c0[1] : c0[0], last = which ? c1[1] : c1[0];
      const int stretch = cta - first + (local >> 4) * (last - first + 1);
      *n = stretch / (kUnits / 16);
      *unit = stretch % (kUnits / 16) * 16 + (local & 15);
      const float2* base = k.spanning + ((int64_t)parity * ctas * 2 * NB + *n) * kSlot;
      const int ml_at = kUnits + column_of(*unit) - *unit;
      Partial x{make_float2(0.f, 0.f), -INFINITY, 0.f};
#pragma unroll 1
      for (int c = first + part; c <= last; c += kAhead * parts) {
        float2 o[kAhead], ml[kAhead];
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
          const int from = c + j * parts;
          o[j] = make_float2(0.f, 0.f);
          ml[j] = make_float2(-INFINITY, 0.f);
          if (from <= last) {
            const float2* at = base + (int64_t)((from * 2 + (from == first)) * NB) * kSlot + *unit;
            o[j] = __ldcg(at);
            ml[j] = __ldcg(at + ml_at);
          }
        }
        x = merge(x, merge_all(o, ml));
      }
      return x;
    };
    __syncthreads();
    const bool mine = threadIdx.x < 2 && (threadIdx.x & 1 ? shared_request[1] : shared_request[0]) >= 0;
    unsigned* counter = k.counter + parity * ctas + (threadIdx.x & 1 ? c0[1] : c0[0]);
    const unsigned members = threadIdx.x & 1 ? c1[1] - c0[1] + 1 : c1[0] - c0[0] + 1;
    if (mine) {
      asm volatile("red.release.gpu.global.add.u32 [%0],1;" ::"l"(counter) : "memory");
      unsigned arrived, spins = 0;
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0,[%1];" : "=r"(arrived) : "l"(counter) : "memory");
        if (++spins == kSpinLimit) __trap();
      } while (arrived < members);
    }
    __syncthreads();
    bool together = false;
#pragma unroll 1
    for (int e = 0; e < 2; ++e) {
      const int many = e ? units[1] : units[0], bits = e ? shift[1] : shift[0], parts = kUse >> bits;
      if (many == 0) continue;
      int n, unit;
      if (parts > 1) {
        const int local = threadIdx.x & ((1 << bits) - 1), part = threadIdx.x >> bits;
        if (local < many && part < parts) {
          const Partial x = from_members(e, local, part, parts, &n, &unit);
          sm.reduce[e][threadIdx.x] = make_float4(x.o.x, x.o.y, x.m, x.l);
        }
        together = true;
      } else {
#pragma unroll 1
        for (int local = threadIdx.x; local < many; local += kThreads * G) {
          const Partial x = from_members(e, local, 0, 1, &n, &unit);
          write_out(e ? to[1] : to[0], n, unit, x);
        }
      }
    }
    if (together) {
      __syncthreads();
#pragma unroll 1
      for (int e = 0; e < 2; ++e) {
        const int many = e ? units[1] : units[0], bits = e ? shift[1] : shift[0], parts = kUse >> bits, local = threadIdx.x;
        if (parts <= 1 || local >= many) continue;
        const int stretch = cta - (e ? c0[1] : c0[0]) + (local >> 4) * (e ? c1[1] - c0[1] + 1 : c1[0] - c0[0] + 1);
        Partial x{make_float2(0.f, 0.f), -INFINITY, 0.f};
#pragma unroll 1
        for (int p = 0; p < parts; p += 4) {
          float2 o[4], ml[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float4 v = p + j < parts ? sm.reduce[e][local + ((p + j) << bits)] : make_float4(0.f, 0.f, -INFINITY, 0.f);
            o[j] = make_float2(v.x, v.y);
            ml[j] = make_float2(v.z, v.w);
          }
          x = merge(x, merge_all(o, ml));
        }
        write_out(e ? to[1] : to[0], stretch / (kUnits / 16), stretch % (kUnits / 16) * 16 + (local & 15), x);
      }
    }
    if (mine) {
      // The last to leave puts the counter back for the next call; by then all have seen it full.
      if (atomicAdd(counter, 1) == 2 * members - 1) *counter = 0;
    }
  }
  __syncthreads();  // the next pass writes the memory that this one read
  }
}
}  // namespace

// ---- C interface
namespace {
constexpr int kMaxDevices = 64;
constexpr int kSm120Shared = 99 * 1024;
enum Code { kOk = 0, kNoDevice = 1, kHeads = 2, kNotPrepared = 3, kNoRoom = 4, kDeviceNumber = 5, kCuda = 1000 };

struct Variant {
  const void* function;
  int nb, teams, shared;
};
template <int NB, int MT, int G, bool kStage>
Variant variant() {
  return Variant{(const void*)mla_decode<NB, MT, G, kStage>, NB, G, (int)sizeof(typename Shape<NB, MT, G, kStage>::Shared)};
}
struct Device {
  Variant one, one_batched, two, four;  // by the column blocks a pass
  int ctas;
  bool ready;
};
Device devices[kMaxDevices];

template <int NB, int MT, int G, bool kStage>
constexpr bool fits_sm120() {
  return sizeof(typename Shape<NB, MT, G, kStage>::Shared) <= kSm120Shared;
}
static_assert(fits_sm120<1, 2, 3, false>() && fits_sm120<1, 4, 2, false>() && fits_sm120<2, 2, 2, false>() && fits_sm120<4, 2, 1, true>());

int code_of(cudaError_t e) { return e == cudaSuccess ? kOk : kCuda + (int)e; }

void set_variants(Device& d, int most_shared) {
  // Three teams with short tiles answer a single request soonest, two with longer ones move more bytes of a batch.
  d.one = variant<1, 2, 3, false>();
  d.one_batched = variant<1, 4, 2, false>();
  d.two = variant<2, 2, 2, false>();
  d.four = variant<4, 2, 2, true>();
  if (d.four.shared > most_shared) d.four = variant<4, 2, 1, true>();
}

int prepare_device(int device) {
  Device& d = devices[device];
  if (d.ready) return kOk;
  int most_shared;
  cudaError_t e = cudaDeviceGetAttribute(&d.ctas, cudaDevAttrMultiProcessorCount, device);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&most_shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (e != cudaSuccess) return code_of(e);
  set_variants(d, most_shared);
  for (const Variant* v : {&d.one, &d.one_batched, &d.two, &d.four}) {
    e = cudaFuncSetAttribute(v->function, cudaFuncAttributeMaxDynamicSharedMemorySize, v->shared);
    int resident = 0;
    if (e == cudaSuccess) e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, v->function, kThreads * v->teams, v->shared);
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
// The counters lie at the start whatever the variant: they are zero between calls, the rest is anything.
struct Layout {
  size_t spanning, first, end;
  Layout(const Variant& v, int ctas) {
    const size_t slot = sizeof(float2) * kSlot * v.nb;
    spanning = (2 * ctas * sizeof(unsigned) + 255) / 256 * 256;
    first = spanning + 2 * ctas * 2 * slot;
    end = first + ctas * v.teams * slot;
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
  const int ctas = args->ctas && (int)args->ctas < d.ctas ? args->ctas : d.ctas;
  Kernel k;
  k.a = *args;
  if (!k.a.align) k.a.align = 32;
  if (!k.a.min_segment) k.a.min_segment = 32;
  if (!k.a.segment_cost) k.a.segment_cost = 96;
  if (!k.a.min_piece) k.a.min_piece = 32;
  if (!k.a.min_share) k.a.min_share = 64;
  k.passes = (blocks + v.nb - 1) / v.nb;
  k.block_shift = 0;
  while ((8 << k.block_shift) < args->heads) ++k.block_shift;
  const Layout layout(v, d.ctas);
  k.counter = (unsigned*)args->workspace;
  k.spanning = (float2*)((char*)args->workspace + layout.spanning);
  k.first = (float2*)((char*)args->workspace + layout.first);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(ctas);
  config.blockDim = dim3(kThreads * v.teams);
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
    default: return code >= kCuda ? cudaGetErrorString((cudaError_t)(code - kCuda)) : "unknown code";
  }
}
