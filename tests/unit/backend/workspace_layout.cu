// What the CUDA kernel's host side decides without a card: the variant of a call, and where its workspace lies.
// Prints a line for every expectation that does not hold.
#include "mla_decode.cu"

#include <stdio.h>

static int failures = 0;
#define EXPECT(what)                                                                                              \
  do {                                                                                                            \
    if (!(what)) ++failures, printf("%s: ctas %d, %d heads, %d query tokens, batch %d\n", #what, d.ctas, heads, q, batch); \
  } while (0)

int main() {
  for (int shared : {99 << 10, 227 << 10})      // SM120, SM90
    for (int ctas : {1, 132, 188, 256}) {
      Device d = {};
      d.ctas = ctas;
      set_variants(d, shared);
      for (int heads = 8; heads <= 128; heads *= 2)
        for (int q = 1; q <= 8; ++q)
          for (int batch : {1, 3, 4, 64, 4096}) {
            const int blocks = q * heads / 8;
            const Variant& v = choose(d, blocks, batch);
            const Layout at(v, ctas);
            const size_t slot = sizeof(Piece) * kUnits * v.nb;  // of a team
            EXPECT(v.shared <= shared);
            EXPECT(v.nb <= blocks || blocks == 3);
            EXPECT(at.first == 2 * ctas * 2 * (v.nb == 4 ? 4 * (512 * 16 + 512) : slot));  // behind the spanning ones: parity, CTA, first or last request
            EXPECT(at.end - at.first == (v.teams > 1 ? ctas * v.teams * slot : 0));  // CTA, team
            EXPECT(at.end <= workspace_bytes(d, heads, q));
            EXPECT(at.end <= workspace_bytes(d, heads, 8));            // one workspace serves all query lengths
          }
    }
  return failures != 0;
}
