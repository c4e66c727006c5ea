// How the products of a tile are computed: with vectors, or with AMX where that is there.
#pragma once

#include "attention.h"
#include "attention_amx.h"
#include "attention_scores.h"
#include "attention_values.h"

namespace quire::attending {

// For any cache, on any machine. The queries are used as they were prepared.
template <class T> class VectorProducts {
 public:
  static constexpr int64_t STEP = GROUP;          // tiles begin and end at multiples of it,
  static constexpr int64_t WEIGHED_TOKENS = RUN;  // and the values of so many tokens are added together
  static constexpr int64_t QUERIES = 1;           // query heads of a key head are padded to a multiple of it

  VectorProducts(const Workspace &w, int64_t padded) : prepared_(w.queries), padded_(padded) {}

  void take_queries(int64_t, int64_t) {}
  // Those of the `head`th key head, which has `each`.
  const int32_t *queries(int64_t head, int64_t each) const { return prepared_ + head * each * padded_; }

  template <class Meanwhile> void score(const Scoring &s, Meanwhile meanwhile) { attending::score<T>(s, meanwhile); }
  void finish_scores() {}

  // How often each run of values is read.
  static int64_t passes(int64_t each, int64_t padded) {
    return round_up(each, WEIGHED) / WEIGHED * std::max<int64_t>(1, padded / (WIDE * LANES));
  }
  template <class Meanwhile> void weigh(const Weighing &w, Meanwhile meanwhile) { attending::weigh<T>(w, meanwhile); }
  void finish_values() {}

 private:
  const int32_t *const prepared_;
  const int64_t padded_;
};

template <class Products> struct Chosen {
  using Type = Products;
};

// Calls `body` with the products for heads of T that are `padded` wide.
template <class T, class Body> static inline void with_products([[maybe_unused]] int64_t padded, Body body) {
#ifdef QUIRE_AMX
  if (std::is_same_v<T, bf16> && padded <= MAX_AMX_DIM) return body(Chosen<AmxProducts>{});
#endif
  body(Chosen<VectorProducts<T>>{});
}

}  // namespace quire::attending
