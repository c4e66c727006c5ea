// Weighted values: the products of a tile's weights and values, in the order of tokens.
#pragma once

#include "attention.h"
#include "attention_words.h"

namespace quire::attending {

constexpr int WEIGHED = 4;       // query heads whose sums are kept in registers together,
constexpr int WIDE = LANES / 4;  // and the vectors of each

// Two vectors of words for each step of PER_WORD tokens: a lane is a dimension, in the order that `reorder` undoes.
template <class T> static inline void load_step(const char *value, int64_t stride, Words &low, Words &high) {
  if constexpr (Stored<T>::Family::PER_WORD == 2) {
    const Words a = Stored<T>::load(value), b = Stored<T>::load(value + stride);
    low = low_shorts(a, b), high = high_shorts(a, b);
  } else {
    low = Stored<T>::load(value), high = Stored<T>::load(value + VECTOR_BYTES<T>);
  }
}

// A tile's weights and values, for the query heads of one key head, and the sums they are added to.
struct Weighing {
  const char *const *runs;  // of RUN values each, `stride` bytes apart
  int64_t num_runs, stride;
  const int32_t *weights;      // words [count, TILE]
  const float *weight_scales;  // [count], of INT8 caches
  int64_t count, padded;
  const float *fading;  // [count]: what the sums so far are multiplied by; null: there are none
  float *out;           // [count, padded]
};

// For Q query heads from `q` on, and V vectors of dimensions from vector `first` on.
template <class T, int Q, int V, class Meanwhile>
static inline void weigh_few(const Weighing &w, int64_t q, int64_t first, Meanwhile meanwhile) {
  using Family = typename Stored<T>::Family;
  constexpr int STEPS = RUN / Family::PER_WORD;
  typename Family::Sum sums[Q][V];
#pragma GCC unroll 4
  for (int i = 0; i < Q; i++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) sums[i][v] = Family::zero();
  const int32_t *weights = w.weights + q * TILE;
  for (int64_t run = 0; run < w.num_runs; run++) {
    meanwhile();
    const char *value = w.runs[run] + first * LANES * static_cast<int64_t>(sizeof(T));
    for (int step = 0; step < STEPS; step++, value += Family::PER_WORD * w.stride, weights++) {
      Words values[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; v += 2)
        load_step<T>(value + v * LANES * static_cast<int64_t>(sizeof(T)), w.stride, values[v], values[v + 1]);
#pragma GCC unroll 4
      for (int i = 0; i < Q; i++) {
        const Words weight = word(weights + i * TILE);
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) sums[i][v] = Family::dot(sums[i][v], values[v], weight);
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < Q; i++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
      float *out = w.out + (q + i) * w.padded + (first + v) * LANES;
      Floats sum = floats_of(sums[i][v]);
      if constexpr (Stored<T>::HAS_SCALE) sum = sum * all(w.weight_scales[q + i]);
      store(out, w.fading == nullptr ? sum : fma(load(out), all(w.fading[q + i]), sum));
    }
}

template <class T, int Q, class Meanwhile> static void weigh_all(const Weighing &w, int64_t q, Meanwhile meanwhile) {
  int64_t first = 0;
  for (; (first + WIDE) * LANES <= w.padded; first += WIDE) weigh_few<T, Q, WIDE>(w, q, first, meanwhile);
  if (WIDE > 2 && first * LANES < w.padded) weigh_few<T, Q, 2>(w, q, first, meanwhile);
}

// `meanwhile()` is called before each run of values.
template <class T, class Meanwhile> static inline void weigh(const Weighing &w, Meanwhile meanwhile) {
  for (int64_t q = 0; q < w.count; q += WEIGHED) {
    switch (std::min<int64_t>(WEIGHED, w.count - q)) {
      case 1: weigh_all<T, 1>(w, q, meanwhile); break;
      case 2: weigh_all<T, 2>(w, q, meanwhile); break;
      case 3: weigh_all<T, 3>(w, q, meanwhile); break;
      default: weigh_all<T, WEIGHED>(w, q, meanwhile);
    }
  }
}

}  // namespace quire::attending
