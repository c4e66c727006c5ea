// Matrix products with packed weights: out = x · weightᵀ + bias, and what is fused behind it.
#include "linear_amx.h"
#include "linear_product.h"
#include "record.h"

namespace quire {
namespace {

// `part` is all panels with a team, or a piece of them.
template <class Lanes, class Part> void multiply(const Linear &linear, int64_t num_rows, Part part) {
  Product<VectorTiles<Lanes>>(linear, num_rows).run(part);
}

template <class Part> void multiply_bf16(const Linear &linear, int64_t num_rows, Part part) {
#ifdef QUIRE_AMX
  if (AmxTiles::can_multiply(shape_of(linear.weight).num_steps))
    return Product<AmxTiles>(linear, num_rows).run(part);
#endif
  multiply<BFloat16Lanes>(linear, num_rows, part);
}

template <class Part> void multiply_any(const Linear &linear, int64_t num_rows, Part part) {
  if (num_rows == 0) return;
  switch (linear.weight.type) {
    case FLOAT32: return multiply<Float32Lanes>(linear, num_rows, part);
    case FLOAT16: return multiply<Float16Lanes>(linear, num_rows, part);
    case BFLOAT16: return multiply_bf16(linear, num_rows, part);
    default:
      return linear.quantized.num_planes == 1 ? multiply_bytes(linear, num_rows, part)
                                              : multiply_words(linear, num_rows, part);
  }
}

}  // namespace

void linear(const Linear &linear, int64_t num_rows, Worker worker) { multiply_any(linear, num_rows, worker); }

void linear_piece(const Linear &linear, int64_t num_rows, Piece piece) { multiply_any(linear, num_rows, piece); }

}  // namespace quire
