// Scores: the products of queries and keys, GROUP tokens at a time, straight from the cache.
//
// Lane l sums words l, l + LANES, l + 2 LANES, ... of a head; then the lanes are added as `sums_across` does.
#pragma once

#include <type_traits>

#include "attention.h"
#include "attention_words.h"

namespace quire::attending {

// Query heads whose scores are computed together: their chains of sums overlap, and a key is loaded once for them.
constexpr int SCORED = 3;

// One query head as words, padded with zeros; returns what a score must be multiplied by.
template <class Family, class In>
static inline float prepare_query(const In *query, int64_t dim, int64_t padded, int32_t *out) {
  if constexpr (Stored<In>::Family::PER_WORD == Family::PER_WORD && !std::is_same_v<Family, ShortWords>) {
    std::memcpy(out, query, static_cast<size_t>(dim) * sizeof(In));
    std::memset(reinterpret_cast<In *>(out) + dim, 0, static_cast<size_t>(padded - dim) * sizeof(In));
    return 1.0f;
  } else {
    const auto value = [&](int64_t i) {
      return i + LANES <= dim ? load(query + i) : load_part(query + i, static_cast<int>(std::max<int64_t>(0, dim - i)));
    };
    Floats most = zeros();
    for (int64_t i = 0; i < padded; i += LANES) most = max(abs(value(i)), most);
    // What the 32-bit sum of `dim` products with keys of up to 127 can hold.
    const float limit = std::fmin(32767.0f, 2147483520.0f / (127.0f * static_cast<float>(dim)));
    const float scale = std::fmax(largest(most), 1e-30f) / limit;
    const Floats inverse = all(1.0f / scale);
    for (int64_t i = 0; i < padded; i += LANES)
      store_shorts(reinterpret_cast<int16_t *>(out) + i, to_ints(value(i) * inverse));
    return scale;
  }
}

// What the scores of GROUP tokens are computed from and where they go, for the query heads of one key head.
struct Scoring {
  const char *const *runs;  // two, of RUN keys each, `stride` bytes apart
  int64_t stride;
  const int32_t *queries;  // [count, padded] words
  int64_t padded, count;
  const float *scales;      // [count]
  const float *key_scales;  // [GROUP], of INT8 caches
  float *out;               // [count, TILE]
};

// For Q query heads from `q` on; a head is N vectors, or any number of them if N is 0.
template <class T, int N, int Q> static inline void score_few(const Scoring &s, int64_t q) {
  using Family = typename Stored<T>::Family;
  using Sum = typename Family::Sum;
  const int64_t n = N > 0 ? N : s.padded / VALUES<T>;
  const int32_t *queries = s.queries + q * s.padded;
  for (int half = 0; half < GROUP / LANES; half++) {
    Words fours[Q][LANES / 4];
#pragma GCC unroll 4
    for (int four = 0; four < LANES / 4; four++) {
      const char *keys = s.runs[(half * LANES + four * 4) / RUN] + four % 2 * 4 * s.stride;
      Sum sums[Q][4];
#pragma GCC unroll 4
      for (int i = 0; i < Q; i++)
#pragma GCC unroll 4
        for (int t = 0; t < 4; t++) sums[i][t] = Family::zero();
#pragma GCC unroll 4
      for (int64_t v = 0; v < n; v++)
#pragma GCC unroll 4
        for (int t = 0; t < 4; t++) {
          const Words key = Stored<T>::load(keys + t * s.stride + v * VECTOR_BYTES<T>);
#pragma GCC unroll 4
          for (int i = 0; i < Q; i++)
            sums[i][t] = Family::dot(sums[i][t], key, load_ints(queries + i * s.padded + v * LANES));
        }
#pragma GCC unroll 4
      for (int i = 0; i < Q; i++) fours[i][four] = sums_of_four(sums[i]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < Q; i++) {
      Floats factor = all(s.scales[q + i]);
      if constexpr (Stored<T>::HAS_SCALE) factor = factor * load(s.key_scales + half * LANES);
      store(s.out + (q + i) * TILE + half * LANES, floats_of(sums_across<Sum>(fours[i])) * factor);
    }
  }
}

// `meanwhile(n)` is called before the scores of each `n` query heads.
// Not inlined: its loops need all registers.
template <class T, int N, class Meanwhile>
static __attribute__((noinline)) void score_all(const Scoring &s, Meanwhile meanwhile) {
  for (int64_t q = 0; q < s.count;) {
    const int64_t left = s.count - q, now = left == SCORED + 1 ? 2 : std::min<int64_t>(left, SCORED);
    meanwhile(now);
    switch (now) {
      case 1: score_few<T, N, 1>(s, q); break;
      case 2: score_few<T, N, 2>(s, q); break;
      default: score_few<T, N, SCORED>(s, q);
    }
    q += now;
  }
}

template <class T, class Meanwhile> static inline void score(const Scoring &s, Meanwhile meanwhile) {
  switch (s.padded / VALUES<T>) {
    case 2: return score_all<T, 2>(s, meanwhile);
    case 4: return score_all<T, 4>(s, meanwhile);
    default: return score_all<T, 0>(s, meanwhile);
  }
}

}  // namespace quire::attending
