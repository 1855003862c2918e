// What the CUDA kernel's host side decides without a card: the variant of a call, and where its workspace lies.
// Prints a line for every expectation that does not hold.
#include "mla_decode.cu"

#include <stdio.h>

static int failures = 0;
#define EXPECT(what)                                                                                              \
  do {                                                                                                            \
    if (!(what)) ++failures, printf("%s: ctas %d, %d heads, %d query tokens\n", #what, d.ctas, heads, q); \
  } while (0)

int main() {
  for (int shared : {99 << 10, 227 << 10})      // SM120, SM90
    for (int ctas : {1, 132, 188, 256}) {
      Device d = {};
      d.ctas = ctas;
      set_variants(d, shared);
      for (int heads = 8; heads <= 128; heads *= 2)
        for (int q = 1; q <= 8; ++q) {
          const int blocks = q * heads / 8;
          const Variant& v = choose(d, blocks);
          const size_t end = (size_t)2 * ctas * 2 * v.wire;  // pass parity, CTA, first or last request
          EXPECT(v.shared <= shared);
          EXPECT(v.nb <= blocks || v.nb == 4);
          EXPECT(v.wire == (v.nb == 4 ? 4 * (512 * 16 + 512) : (int)sizeof(Piece) * kUnits * v.nb));
          EXPECT(end <= workspace_bytes(d, heads, q));
          EXPECT(end <= workspace_bytes(d, heads, 8));  // one workspace serves all query lengths
        }
    }
  return failures != 0;
}
