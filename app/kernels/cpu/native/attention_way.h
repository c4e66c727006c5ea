// How the products of a tile are computed: with vectors, or with AMX where that is there.
#pragma once

#include "attention.h"
#include "attention_amx.h"
#include "attention_scores.h"
#include "attention_values.h"

namespace quire::attending {

// Any cache, on any machine. The queries are used as they were prepared.
template <class T> class VectorWay {
 public:
  static constexpr int64_t STEP = GROUP;          // tiles begin and end at multiples of it,
  static constexpr int64_t WEIGHED_TOKENS = RUN;  // and so many tokens' values are taken in together
  static constexpr int64_t QUERIES = 1;           // query heads of a key head take room for a multiple of it

  VectorWay(const Workspace &w, int64_t padded) : prepared_(w.queries), padded_(padded) {}

  void take_queries(int64_t, int64_t) {}
  // Those of the `head`th key head, which has `each`.
  const int32_t *queries(int64_t head, int64_t each) const { return prepared_ + head * each * padded_; }

  template <class Meanwhile> void score(const Scoring &s, Meanwhile meanwhile) { attending::score<T>(s, meanwhile); }
  void finish_scores() {}

  // How often each run of values is gone through.
  static int64_t passes(int64_t each, int64_t padded) {
    return round_up(each, WEIGHED) / WEIGHED * std::max<int64_t>(1, padded / (WIDE * LANES));
  }
  template <class Meanwhile> void weigh(const Weighing &w, Meanwhile meanwhile) { attending::weigh<T>(w, meanwhile); }
  void finish_values() {}

 private:
  const int32_t *const prepared_;
  const int64_t padded_;
};

template <class Way> struct Chosen {
  using Type = Way;
};

// Calls `body` with the way that heads of T, `padded` wide, go.
template <class T, class Body> static inline void with_way([[maybe_unused]] int64_t padded, Body body) {
#ifdef __AMX_TILE__
  if (std::is_same_v<T, bf16> && padded <= MAX_AMX_DIM) return body(Chosen<AmxWay>{});
#endif
  body(Chosen<VectorWay<T>>{});
}

}  // namespace quire::attending
