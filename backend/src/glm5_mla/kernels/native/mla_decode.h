// C interface of the MLA decode kernel: raw pointers and a stream, so that it binds to no version of torch.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GLM5_MLA_ABI 3

// One layer's call. All pointers are device pointers; bf16 values travel as uint16_t; strides count elements.
typedef struct {
  const uint16_t* q_nope;      // [tokens, heads, 512] bf16; rows 16-byte aligned
  const uint16_t* q_rope;      // [tokens, heads, 64] bf16; rows 16-byte aligned
  const uint8_t* pool;         // [rows, 576] e4m3; rows 16-byte aligned
  const int32_t* qo_indptr;    // [batch + 1]
  const int32_t* kv_indptr;    // [batch + 1]
  const int32_t* kv_indices;   // row numbers
  uint16_t* out;               // [tokens, heads, 512] bf16, contiguous
  float* lse;                  // [tokens, heads], natural logarithm, or null
  void* workspace;             // glm5_mla_prepare's bytes, each 0xFF before the first call; one call at a time may use it
  int64_t q_nope_token_stride, q_nope_head_stride, q_rope_token_stride, q_rope_head_stride;
  int64_t row_stride;          // bytes, below 2^32
  int32_t batch, heads, max_q_len;
  float score_scale;           // sm_scale * kv_scale * log2(e)
  float out_scale;             // kv_scale
  // How the batch is cut; 0 takes the default.
  uint32_t ctas;               // of the grid, one an SM at most
  uint32_t min_portion;        // least cost (rows + segment_cost a request) of a CTA; align or more, below 2^24
  uint32_t segment_cost;       // what a further request costs a CTA, in rows; half of it lies on either side of its rows
  uint32_t align;              // cuts inside a request fall on multiples of this many rows; a power of two
  uint32_t min_segment;        // least rows before a cut inside a request, and behind it but for align / 2; a multiple of align
} Glm5MlaArgs;

// Readies the kernels on the current device and says how many bytes of workspace calls with these bounds need.
int glm5_mla_prepare(int32_t heads, int32_t max_q_len, size_t* workspace_bytes);

// Launches one layer on `stream`. Reads nothing back; may be captured in a graph. Returns 0 or an error code.
int glm5_mla_decode(const Glm5MlaArgs* args, void* stream);

// For benchmarks: reads rows of 576 bytes and does nothing with them.
int glm5_mla_read_rows(const uint8_t* pool, const int32_t* rows, int32_t n, uint32_t* sink, int32_t blocks_per_sm, void* stream);

// Static text for a code that the functions above returned.
const char* glm5_mla_error(int code);

int glm5_mla_abi(void);

#ifdef __cplusplus
}
#endif
