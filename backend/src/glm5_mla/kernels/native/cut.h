// How a batch is cut into ranges of rows, one for each thread block (CTA) of the decode kernel. Every CTA works it out for itself, from kv_indptr.
//
// Requests lie one behind the other on a line of cost: a request takes its rows, and half of segment_cost on either side of them. Half, so that each of
// two CTAs that share a request has half of its rows. The line is cut in equal portions. A cut that falls on a request's rows moves to the nearest of
// its tiles, `align` rows each; one that would leave less than min_segment rows before it, or that behind it (but for align / 2), moves to that end
// of the request.
//
// No CTA within a request is without rows of it, which would keep others waiting: cuts are align apart at least (min_portion >= align), so no two come
// to the same tile. tests/unit/backend/test_cut.py compiles this file for the CPU and holds it to that.
#pragma once
#include <stdint.h>

#ifdef __CUDACC__
#define GLM5_DEVICE __device__ __forceinline__
#else
#include <algorithm>
#define GLM5_DEVICE inline
#endif

namespace glm5 {
#ifndef __CUDACC__
using std::max;
using std::min;
inline float __fdividef(float x, float y) { return x / y; }
#endif

// The quotient of small numbers, rounded down; half a unit keeps the approximation on the right side.
GLM5_DEVICE int divide(int x, int y) { return (int)__fdividef(x + 0.5f, (float)y); }

// CTAs of the grid on a card of `sms`. Requests of the same length then have as many CTAs each, and no CTA has parts of two.
inline int grid_of(int sms, int batch) { return batch <= sms && sms % batch <= sms / 16 ? sms - sms % batch : sms; }

struct Cut {
  unsigned base, segment_cost, align, min_segment, total, portion;  // portion: cost a CTA

  // Lays out `batch` requests, whose row numbers are first_ptr..last_ptr - 1, for `ctas`. The other settings stand already.
  GLM5_DEVICE void lay(unsigned first_ptr, unsigned last_ptr, unsigned batch, unsigned ctas, unsigned min_portion) {
    base = first_ptr;
    total = last_ptr - first_ptr + segment_cost * batch;
    portion = max((total + ctas - 1) / ctas, min_portion);
    // What portions have in excess of the line goes to the requests: if they are equally long and each has as many CTAs, cuts fall between them.
    const unsigned excess = portion * ctas - total;
    if (excess < ctas) {
      const int each = divide(excess, batch);
      segment_cost += each;
      total += each * batch;
    }
  }
  // Where request b begins on the line.
  GLM5_DEVICE unsigned begin(unsigned b, unsigned ptr) const { return ptr - base + segment_cost * b; }
  // Cuts in [first_inner, past_inner) lie inside the request, earlier ones before it, later ones behind it. None lies beyond the line.
  GLM5_DEVICE unsigned first_row(unsigned begin) const { return begin + segment_cost / 2; }
  GLM5_DEVICE unsigned first_inner(unsigned begin) const { return first_row(begin) + min_segment - align / 2; }
  GLM5_DEVICE unsigned past_inner(unsigned begin, unsigned len) const {
    return min(max(first_row(begin) + len + 1 - min(len + 1, min_segment), first_inner(begin)), total);
  }
  GLM5_DEVICE int offset(unsigned x, unsigned begin) const {  // rows of the request before the cut x
    return x < first_inner(begin) ? 0 : (int)((x - first_row(begin) + align / 2) & ~(align - 1));
  }
  GLM5_DEVICE int cta_of(unsigned x) const { return (int)(min(x, total - 1) / portion); }
  GLM5_DEVICE int first_cta(unsigned begin) const { return cta_of(first_inner(begin) - 1); }
  GLM5_DEVICE int last_cta(unsigned begin, unsigned len) const { return cta_of(past_inner(begin, len) - 1); }
};
}  // namespace glm5
