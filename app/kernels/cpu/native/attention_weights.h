// Weights: the softmax of a tile's scores, as words, in the memory of the scores.
#pragma once

#include "attention.h"
#include "attention_words.h"

namespace quire::attending {

// Less than any score, and still a number when another is taken from it.
constexpr float NOTHING = -1e30f;

static inline float exp2_of(float x) {
  alignas(64) float lanes[LANES];
  store(lanes, exp2(all(x)));
  return lanes[0];
}

// The tokens that one row sees, within a tile.
struct Seen {
  int64_t first, last;

  // The lanes of `v`, which begins at token `t`, that are seen; `other` elsewhere.
  Floats only(Floats v, int64_t t, Floats other) const {
    if (t + LANES > last + 1) v = first_lanes(static_cast<int>(last + 1 - t), v, other);
    if (t < first) v = first_lanes(static_cast<int>(first - t), other, v);
    return v;
  }
};

struct Softened {
  float largest;  // score, of all tiles so far
  float sum;      // of 2^(score - largest)
  float scale;    // of the weights' words, with INT8 caches
};

// Caps the scores of seen tokens, which are in units of log2: those of `soften`.
static inline void cap_scores(float *scores, Seen seen, float softcap) {
  const Capping capped(softcap * LOG2_E);
  for (int64_t t = seen.first / LANES * LANES; t <= seen.last; t += LANES) store(scores + t, capped(load(scores + t)));
}

// Turns `size` scores, a multiple of GROUP, into weights 2^(score - largest), 0 where they are not seen. `before` is
// the largest score of earlier tiles. With INT8 caches each weight is multiplied by its value's scale.
template <class T>
static inline Softened soften(float *scores, Seen seen, int64_t size, float before, const float *value_scales) {
  constexpr int PER_WORD = Stored<T>::Family::PER_WORD;
  int32_t *words = reinterpret_cast<int32_t *>(scores);
  if (seen.first > seen.last) {
    std::fill_n(words, size / PER_WORD, 0);
    return {before, 0.0f, 0.0f};
  }
  const int64_t begin = seen.first / LANES * LANES, end = seen.last / LANES * LANES + LANES;
  Floats most = all(before);
  for (int64_t t = begin; t < end; t += LANES) most = max(seen.only(load(scores + t), t, all(NOTHING)), most);
  const float top = largest(most);
  std::fill_n(words, begin / PER_WORD, 0);
  Floats sums = zeros(), heaviest = zeros();
  for (int64_t t = begin; t < end; t += LANES) {
    Floats weight = seen.only(exp2(load(scores + t) - all(top)), t, zeros());
    sums = sums + weight;
    if constexpr (Stored<T>::HAS_SCALE) {
      weight = weight * load(value_scales + t);
      heaviest = max(weight, heaviest);
    }
    // Words are no longer than scores: this writes over no score that is still to be read.
    if constexpr (std::is_same_v<T, bf16>) store(reinterpret_cast<bf16 *>(scores) + t, weight);
    else store(scores + t, weight);
  }
  const float scale = std::fmax(largest(heaviest), 1e-30f) / 32767.0f;
  if constexpr (Stored<T>::HAS_SCALE)
    for (int64_t t = begin; t < end; t += LANES)
      store_shorts(reinterpret_cast<int16_t *>(scores) + t, to_ints(load(scores + t) * all(1.0f / scale)));
  std::fill_n(words + end / PER_WORD, (size - end) / PER_WORD, 0);
  return {top, sum(sums), scale};
}

}  // namespace quire::attending
