// The kernel's cut (cut.h) for the CPU: what each thread block would take of a batch.
#include "cut.h"

extern "C" {
struct Part {  // rows beg..end - 1 of a request, taken by a thread block
  int32_t cta, request, beg, end;
};
struct Ends {  // the thread blocks that would merge a request's partial results
  int32_t first, last;
};

int cut_grid(int sms, int batch) { return glm5::grid_of(sms, batch); }

// Writes the parts in the order of the blocks and returns their number, at most `room`; -1 if they are more.
int cut_parts(const int32_t* kv_indptr, int batch, unsigned ctas, unsigned min_portion, unsigned segment_cost, unsigned align, unsigned min_segment,
              Part* parts, int room, Ends* ends) {
  glm5::Cut cut;
  cut.segment_cost = segment_cost;
  cut.align = align;
  cut.min_segment = min_segment;
  cut.lay(kv_indptr[0], kv_indptr[batch], batch, ctas, min_portion);
  auto length = [&](int b) { return kv_indptr[b + 1] - kv_indptr[b]; };
  auto begin = [&](int b) { return cut.begin(b, kv_indptr[b]); };
  auto request_of = [&](unsigned x) {  // the first that does not lie before the cut x
    int b = 0;
    while (b < batch && cut.past_inner(begin(b), length(b)) <= x) ++b;
    return b;
  };
  int count = 0;
  for (unsigned cta = 0; cta < ctas; ++cta) {
    const unsigned x0 = cta * cut.portion, x1 = x0 + cut.portion;
    if (x0 >= cut.total) break;
    const int b0 = request_of(x0), b1 = request_of(x1);
    for (int b = b0; b < batch && b <= b1; ++b) {
      const Part part{(int32_t)cta, b, b == b0 ? std::min(cut.offset(x0, begin(b)), length(b)) : 0,
                      b == b1 ? std::min(cut.offset(x1, begin(b)), length(b)) : length(b)};
      if (b == b1 && part.beg == part.end) break;
      if (count == room) return -1;
      parts[count++] = part;
    }
  }
  for (int b = 0; b < batch; ++b) ends[b] = Ends{cut.first_cta(begin(b)), cut.last_cta(begin(b), length(b))};
  return count;
}
}
