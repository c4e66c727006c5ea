// Standard Gumbel noise, keyed by (seed, choice, position, token): bit by bit the engine's (execute/noise.py).
#pragma once

#include <cmath>

#include "record.h"
#include "simd.h"

namespace quire {

static inline uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

template <class Word> static inline Word lowbias32(Word x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// Standard Gumbel noise of every token, for one position of one sequence.
class Noise {
 public:
  static constexpr float MOST = 23.0f;  // it is at most 33 ln 2

  Noise(const SamplingSettings &settings, int64_t position) {
    const uint64_t sample = static_cast<uint64_t>(settings.choice) << 32 | static_cast<uint64_t>(position);
    const uint64_t key = splitmix64(settings.seed ^ splitmix64(sample));
    low_ = static_cast<uint32_t>(key);
    high_ = static_cast<uint32_t>(key >> 32);
  }

  // All in float32 but the logarithms, which are rounded to it. Minus infinity where u rounds to 1.
  float of(uint32_t token) const {
    const float u = (static_cast<float>(bits(token)) + 0.5f) * 0x1p-32f;
    return -log(u < 1e-3f ? u * (1.0f + u * (0.5f + u / 3.0f)) : -log(1.0f - u));
  }

  // At least the noise of these tokens, mostly by less than 0.1 too much: noise is at most -ln u, and the bits of a
  // float are, as a number, at most its binary logarithm.
  Floats bound(Words tokens) const {
    constexpr float LN_2 = 0.693147181f, ROUNDING = 1e-3f;
    const Ints u = as_ints(to_floats(reinterpret_cast<Ints>(bits(tokens) >> 8)));  // times 2^24, rounded down
    return fma(to_floats(u), all(-LN_2 * 0x1p-23f), all((127 + 24) * LN_2 + ROUNDING));
  }

 private:
  template <class Word> Word bits(Word tokens) const { return lowbias32<Word>(lowbias32<Word>(tokens ^ low_) ^ high_); }
  static float log(float x) { return static_cast<float>(std::log(static_cast<double>(x))); }

  uint32_t low_, high_;
};

}  // namespace quire
