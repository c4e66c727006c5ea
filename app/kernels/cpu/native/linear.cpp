// Matrix products with packed weights: out = x · weightᵀ + bias, and what is fused behind it.
#include "linear_amx.h"
#include "linear_product.h"
#include "record.h"

namespace quire {
namespace {

template <class Lanes> void multiply(const Linear &linear, int64_t num_rows, Worker worker) {
  Product<VectorTiles<Lanes>>(linear, num_rows).run(worker);
}

void multiply_bf16(const Linear &linear, int64_t num_rows, Worker worker) {
#ifdef QUIRE_AMX
  if (AmxTiles::can_multiply(shape_of(linear.weight).num_steps))
    return Product<AmxTiles>(linear, num_rows).run(worker);
#endif
  multiply<BFloat16Lanes>(linear, num_rows, worker);
}

}  // namespace

void linear(const Linear &linear, int64_t num_rows, Worker worker) {
  if (num_rows == 0) return;
  switch (linear.weight.type) {
    case FLOAT32: return multiply<Float32Lanes>(linear, num_rows, worker);
    case FLOAT16: return multiply<Float16Lanes>(linear, num_rows, worker);
    case BFLOAT16: return multiply_bf16(linear, num_rows, worker);
    default: return (linear.quantized.num_planes == 1 ? multiply_bytes : multiply_words)(linear, num_rows, worker);
  }
}

}  // namespace quire
