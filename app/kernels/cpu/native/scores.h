// The scores of one output (logits / temperature), and a sample of the tokens that top-k, top-p and min-p keep.
//
// Nothing is sorted. Each filter is a threshold: tokens of at least that score are kept, equal ones together.
//
// - Top-k's threshold is found by bisection, min-p's is known.
// - Top-p keeps a token if the probability of all likelier ones is below p. Only the sampled token is tested: if it is
//   not kept, neither is any less likely one, and sampling is repeated among the likelier ones. The noise of a token is
//   always the same, so the first sampled token that is kept is the one that sampling among the kept ones gives. The
//   first one is kept with probability p.
//
// Blocks whose largest score, the peak, is below the threshold are skipped: nearly all of them with trained models, and
// most of them where a grammar allows few tokens.
#pragma once

#include <cfloat>
#include <cmath>
#include <limits>

#include "noise.h"
#include "record.h"
#include "simd.h"

namespace quire {

constexpr int BLOCK = SAMPLE_BLOCK;
constexpr float IMPOSSIBLE = -std::numeric_limits<float>::infinity();

// Calls `body(i)` for the first lane of each vector of a block.
template <class Body> static inline void each_vector(Body body) {
#pragma GCC unroll 8
  for (int i = 0; i < BLOCK; i += LANES) body(i);
}

static inline int64_t num_blocks(int64_t width) { return (width + BLOCK - 1) / BLOCK; }

// Returns the block of `logits` that starts there; `padded` holds it if it reaches beyond the width.
static inline const float *block_of(const float *logits, int64_t start, int64_t width, float *padded) {
  if (start + BLOCK <= width) return logits + start;
  for (int i = 0; i < BLOCK; i++) padded[i] = start + i < width ? logits[start + i] : IMPOSSIBLE;
  return padded;
}

// The tokens that may be sampled: a bit for each, or all of them.
class Allowed {
 public:
  explicit Allowed(const uint32_t *words) : words_(words) {}

  bool is_everything() const { return words_ == nullptr; }
  bool has(int64_t id) const { return words_ == nullptr || (words_[id / 32] >> (id % 32) & 1u) != 0; }
  // Whether a block, which takes two words, has none.
  bool has_none(int64_t start) const { return words_ != nullptr && (words_[start / 32] | words_[start / 32 + 1]) == 0; }

  // The logits of the tokens from `id` on, impossible where they are not allowed.
  Floats only(Floats logits, int64_t id) const {
    if (words_ == nullptr) return logits;
    const Words bits = (Words{} + words_[id / 32]) >> (lanes() + static_cast<uint32_t>(id % 32));
    const Words mask = reinterpret_cast<Words>((bits & 1u) != 0);
    const Words kept = reinterpret_cast<Words>(logits) & mask;
    return reinterpret_cast<Floats>(kept | (reinterpret_cast<Words>(all(IMPOSSIBLE)) & ~mask));
  }

 private:
  static Words lanes() {
    Words ids;
    for (int i = 0; i < LANES; i++) ids[i] = static_cast<uint32_t>(i);
    return ids;
  }

  const uint32_t *words_;
};

class Scores {
 public:
  // Scratch for one output: scores and peaks.
  static int64_t size(int64_t width) { return num_blocks(width) * (BLOCK + 1); }

  // `logits` may be the beginning of `scratch`.
  Scores(const float *logits, int64_t width, float temperature, const Allowed &allowed, float *scratch)
      : width_(num_blocks(width) * BLOCK), scores_(scratch), peaks_(scores_ + width_) {
    float tail[BLOCK];
    for (int64_t start = 0; start < width_; start += BLOCK) {
      if (allowed.has_none(start)) {
        each_vector([&](int i) { store(scores_ + start + i, all(IMPOSSIBLE)); });
        peaks_[start / BLOCK] = IMPOSSIBLE;
        continue;
      }
      const float *block = block_of(logits, start, width, tail);
      Floats peak = all(IMPOSSIBLE);
      each_vector([&](int i) {
        const Floats logit = allowed.only(load(block + i), start + i);
        // A NaN is impossible: of a NaN and a number, max gives what comes second.
        const Floats score = min(max(logit / all(temperature), all(IMPOSSIBLE)), all(FLT_MAX));
        store(scores_ + start + i, score);
        peak = max(peak, score);
      });
      peaks_[start / BLOCK] = largest(peak);
      top_ = std::fmax(top_, peaks_[start / BLOCK]);
    }
  }

  void keep_top_k(int64_t k) { least_ = top_k_threshold(k); }

  // The kept token whose score + noise is the largest; the lowest id of equals.
  int64_t sample(float top_p, float min_p, const Noise &noise) const {
    if (top_ == IMPOSSIBLE) return -1;
    float least = least_;
    if (min_p > 0.0f) least = std::fmax(least, top_ + static_cast<float>(std::log(static_cast<double>(min_p))));
    int64_t sampled = best(least, noise);
    if (top_p >= 1.0f) return sampled;
    const double enough = top_p * mass(least_);  // of the tokens that top-k keeps
    while (true) {
      const float above = std::nextafter(scores_[sampled], FLT_MAX);
      if (scores_[sampled] == top_ || mass(above) < enough) return sampled;
      sampled = best(std::fmax(least, above), noise);
    }
  }

 private:
  struct Best {
    int64_t id;
    float value;
    void offer(int64_t other, float other_value) {
      if (other_value > value || (other_value == value && other < id)) *this = {other, other_value};
    }
  };

  static Words tokens(int64_t first) {
    Words ids;
    for (int i = 0; i < LANES; i++) ids[i] = static_cast<uint32_t>(i);
    return ids + static_cast<uint32_t>(first);
  }

  // Calls `body(start)` for each block in which some score reaches `least`.
  template <class Body> void each_block(float least, Body body) const {
    for (int64_t start = 0; start < width_; start += BLOCK)
      if (peaks_[start / BLOCK] >= least) body(start);
  }

  int64_t first_top() const {
    int64_t block = 0;
    while (peaks_[block] != top_) block++;
    int64_t id = block * BLOCK;
    while (scores_[id] != top_) id++;
    return id;
  }

  int64_t best(float least, const Noise &noise) const {
    // Compared with the likeliest token first, most others need no noise.
    Best best{first_top(), 0};
    best.value = top_ + noise.of(static_cast<uint32_t>(best.id));
    float bounds[BLOCK];
    each_block(least, [&](int64_t start) {
      if (peaks_[start / BLOCK] + Noise::MOST < best.value) return;
      Floats most = all(IMPOSSIBLE);
      each_vector([&](int i) {
        const Floats bound = load(scores_ + start + i) + noise.bound(tokens(start + i));
        store(bounds + i, bound);
        most = max(most, bound);
      });
      if (largest(most) < best.value) return;
      for (int i = 0; i < BLOCK; i++) {
        const float score = scores_[start + i];
        if (bounds[i] >= best.value && score >= least)
          best.offer(start + i, score + noise.of(static_cast<uint32_t>(start + i)));
      }
    });
    return best.id;
  }

  // The sum of the weights of the scores that reach `least`; the weight of the top one is 1.
  double mass(float least) const {
    WideSum total;
    each_block(least, [&](int64_t start) {
      Floats weights = zeros();
      each_vector([&](int i) {
        const Floats score = load(scores_ + start + i);
        const Words reaches = reinterpret_cast<Words>(score >= all(least));
        const Words weight = reinterpret_cast<Words>(exp2((score - all(top_)) * all(LOG2_E)));
        weights = weights + reinterpret_cast<Floats>(reaches & weight);
      });
      total.add(weights);
    });
    return total.total();
  }

  int64_t count(float least) const {
    Words counts{};
    each_block(least, [&](int64_t start) {
      each_vector([&](int i) { counts -= reinterpret_cast<Words>(load(scores_ + start + i) >= all(least)); });
    });
    return sum(counts);
  }

  // The largest threshold that at least `k` scores reach: no other score lies between it and the smallest kept
  // one.
  float top_k_threshold(int64_t k) const {
    float low = top_, high = top_;  // reached by at least k, and by fewer
    int64_t at_low = count(low), at_high = at_low;
    for (float step = 1.0f; at_low < k; step *= 2.0f) {
      high = low, at_high = at_low;
      low = std::fmax(top_ - step, IMPOSSIBLE);
      at_low = count(low);
    }
    while (at_low - at_high > 1) {
      const float middle = low / 2.0f + high / 2.0f;
      if (!(low < middle && middle < high)) break;
      const int64_t at_middle = count(middle);
      if (at_middle >= k) low = middle, at_low = at_middle;
      else high = middle, at_high = at_middle;
    }
    return low;
  }

  int64_t width_;  // whole blocks; the scores behind the last token are impossible
  float *scores_, *peaks_;
  float top_ = IMPOSSIBLE, least_ = IMPOSSIBLE;  // the largest score, and the least one that top-k keeps
};

}  // namespace quire
