// Products with quantized panels whose activations have one byte, see linear_groups.h.
#include "linear_groups.h"

#include "linear_decoded.h"
#include "linear_groups_amx.h"
#include "linear_product.h"

namespace quire {
namespace {

// `part` is all panels with a team, or a piece of them.
template <class Part> void multiply(const Linear &linear, int64_t num_rows, Part part) {
  with_kind(linear.weight.type, [&](auto kind) {
    using Kind = decltype(kind);
#ifdef QUIRE_AMX
    if (num_rows >= MIN_AMX_GROUPED_ROWS) return Product<AmxGroupTiles<Kind, 1>>(linear, num_rows).run(part);
#endif
#ifndef __AVX512VNNI__
    using Decoded = DecodedTiles<Kind, 1>;
    if (num_rows >= Decoded::MIN_ROWS) return Product<Decoded>(linear, num_rows).run(part);
#endif
    Product<VectorTiles<GroupLanes<Kind, 1>>>(linear, num_rows).run(part);
  });
}

}  // namespace

void multiply_bytes(const Linear &linear, int64_t num_rows, Worker worker) { multiply(linear, num_rows, worker); }
void multiply_bytes(const Linear &linear, int64_t num_rows, Piece piece) { multiply(linear, num_rows, piece); }

}  // namespace quire
