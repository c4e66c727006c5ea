// Draws one token for each output row: the lowest id among the largest logits, or temperature, top-k, top-p, min-p and
// Gumbel-max. The engine's sampler and noise do the same in Python.
//
// Nothing is sorted. Each filter comes down to a threshold: what has at least that score stays, so equals stay
// together. Thresholds are found by bisection; the winner, by adding noise only to what could still win. Both go over
// blocks of scores and pass by those whose largest one, the peak, is too small: nearly all of them in what trained
// models give.
//
// Rows are shared out among the threads; a row's token depends on that row alone.
#include <cfloat>
#include <limits>

#include "record.h"
#include "simd.h"

namespace quire {
namespace {

constexpr int BLOCK = SAMPLE_BLOCK;
constexpr float IMPOSSIBLE = -std::numeric_limits<float>::infinity();

// As many integers without a sign as a vector has lanes, with operators.
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));

// Calls `body(i)` for the first lane of each vector of a block.
template <class Body> void each_vector(Body body) {
#pragma GCC unroll 8
  for (int i = 0; i < BLOCK; i += LANES) body(i);
}

// --- Noise --------------------------------------------------------------------------------------------------------

uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

template <class Word> Word lowbias32(Word x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// Standard Gumbel noise of every token, for one position of one sequence.
class Noise {
 public:
  static constexpr float MOST = 23.0f;  // it is at most 33 ln 2

  Noise(const Draw &draw, int64_t position) {
    const uint64_t place = static_cast<uint64_t>(draw.choice) << 32 | static_cast<uint64_t>(position);
    const uint64_t key = splitmix64(draw.seed ^ splitmix64(place));
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

// --- Scores -------------------------------------------------------------------------------------------------------

// Returns the block of `logits` that starts there; `padded` holds it if it reaches beyond the width.
const float *block_of(const float *logits, int64_t start, int64_t width, float *padded) {
  if (start + BLOCK <= width) return logits + start;
  for (int i = 0; i < BLOCK; i++) padded[i] = start + i < width ? logits[start + i] : IMPOSSIBLE;
  return padded;
}

// The scores of a row, logits over the temperature, and what of them stays.
class Scores {
 public:
  // Scratch for one row: scores, weights and peaks.
  static int64_t size(int64_t width) { return 3 * padded(width); }

  Scores(const float *logits, int64_t width, float temperature, float *scratch)
      : width_(padded(width)), scores_(scratch), weights_(scores_ + width_), peaks_(weights_ + width_) {
    float tail[BLOCK];
    for (int64_t start = 0; start < width_; start += BLOCK) {
      const float *block = block_of(logits, start, width, tail);
      Floats peak = all(IMPOSSIBLE);
      each_vector([&](int i) {
        // A NaN is impossible: of a NaN and a number, max gives what comes second.
        const Floats score = min(max(load(block + i) / all(temperature), all(IMPOSSIBLE)), all(FLT_MAX));
        store(scores_ + start + i, score);
        peak = max(peak, score);
      });
      peaks_[start / BLOCK] = largest(peak);
      top_ = std::fmax(top_, peaks_[start / BLOCK]);
    }
  }

  void keep_top_k(int64_t k) { least_ = threshold<false>(static_cast<double>(k)); }

  void keep_top_p(float p) {
    each_block(least_, [&](int64_t start) {
      each_vector([&](int i) {
        store(weights_ + start + i, exp2((load(scores_ + start + i) - all(top_)) * all(LOG2_E)));
      });
    });
    least_ = threshold<true>(p * mass<true>(least_).amount);
  }

  void keep_min_p(float p) {
    least_ = std::fmax(least_, top_ + static_cast<float>(std::log(static_cast<double>(p))));
  }

  // The token whose score and noise together are the largest; the lowest id of equals.
  int64_t draw(const Noise &noise) const {
    // With the likeliest token to beat, most others need no noise.
    Best best{first_top(), 0};
    best.value = top_ + noise.of(static_cast<uint32_t>(best.id));
    float bounds[BLOCK];
    each_block(least_, [&](int64_t start) {
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
        if (bounds[i] >= best.value && score >= least_)
          best.offer(start + i, score + noise.of(static_cast<uint32_t>(start + i)));
      }
    });
    return best.id;
  }

 private:
  struct Best {
    int64_t id;
    float value;
    void offer(int64_t other, float other_value) {
      if (other_value > value || (other_value == value && other < id)) *this = {other, other_value};
    }
  };

  // How many scores reach some value, and what they amount to: their weights, or their number again.
  struct Mass {
    int64_t count;
    double amount;
  };

  static int64_t padded(int64_t width) { return (width + BLOCK - 1) / BLOCK * BLOCK; }

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

  template <bool IS_WEIGHTED> Mass mass(float least) const {
    constexpr int CHAINS = 4;
    Words counts{};
    Floats amounts[CHAINS] = {zeros(), zeros(), zeros(), zeros()};
    each_block(least, [&](int64_t start) {
      each_vector([&](int i) {
        const Words reaches = reinterpret_cast<Words>(load(scores_ + start + i) >= all(least));
        counts -= reaches;
        if constexpr (IS_WEIGHTED) {
          const Words weights = reinterpret_cast<Words>(load(weights_ + start + i));
          Floats &amount = amounts[i / LANES % CHAINS];
          amount = amount + reinterpret_cast<Floats>(reaches & weights);
        }
      });
    });
    int64_t count = 0;
    for (int i = 0; i < LANES; i++) count += counts[i];
    if constexpr (!IS_WEIGHTED) return {count, static_cast<double>(count)};
    return {count, static_cast<double>(sum((amounts[0] + amounts[1]) + (amounts[2] + amounts[3])))};
  }

  // The largest threshold that is reached by at least `amount` of what there is: no other score lies between it and the
  // smallest one that stays.
  template <bool IS_WEIGHTED> float threshold(double amount) const {
    float low = top_, high = top_;  // reached by enough, and not
    Mass at_low = mass<IS_WEIGHTED>(low), at_high = at_low;
    for (float step = 1.0f; at_low.amount < amount; step *= 2.0f) {
      high = low, at_high = at_low;
      low = std::fmax(top_ - step, least_);
      at_low = mass<IS_WEIGHTED>(low);
    }
    while (at_low.count - at_high.count > 1) {
      const float middle = low / 2.0f + high / 2.0f;
      if (!(low < middle && middle < high)) break;
      const Mass at_middle = mass<IS_WEIGHTED>(middle);
      if (at_middle.amount >= amount) low = middle, at_low = at_middle;
      else high = middle, at_high = at_middle;
    }
    return low;
  }

  int64_t width_;  // whole blocks; behind the real ones all are impossible
  float *scores_, *weights_, *peaks_;
  float top_ = IMPOSSIBLE, least_ = IMPOSSIBLE;  // the largest score, and the least one that stays
};

// --- Rows ---------------------------------------------------------------------------------------------------------

// The lowest id among the largest logits; a NaN is not among them.
int64_t greedy(const float *logits, int64_t width) {
  float best = IMPOSSIBLE, tail[BLOCK];
  int64_t best_start = 0;
  for (int64_t start = 0; start < width; start += BLOCK) {
    const float *block = block_of(logits, start, width, tail);
    Floats peak = all(IMPOSSIBLE);
    each_vector([&](int i) { peak = max(load(block + i), peak); });
    if (largest(peak) > best) best = largest(peak), best_start = start;
  }
  int64_t id = best_start;
  while (id < width && logits[id] != best) id++;
  return id < width ? id : 0;
}

int64_t draw_token(const Sample &s, int64_t row, float *scratch) {
  const Draw &draw = s.draws[s.state_rows[row]];
  if (draw.is_on_host) return -1;
  const float *logits = static_cast<const float *>(s.logits.data) + row * s.logits.stride;
  if (draw.temperature == 0.0f) return greedy(logits, s.width);
  Scores scores(logits, s.width, draw.temperature, scratch);
  if (0 < draw.top_k && draw.top_k < s.width) scores.keep_top_k(draw.top_k);
  if (draw.top_p < 1.0f) scores.keep_top_p(draw.top_p);
  if (draw.min_p > 0.0f) scores.keep_min_p(draw.min_p);
  return scores.draw(Noise(draw, s.positions[s.output_rows[row]] + 1));
}

}  // namespace

void sample(const Sample &s, int64_t num_rows, Worker worker) {
  float *scratch = s.scratch + worker.index * Scores::size(s.width);
  worker.each(num_rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) s.token_ids[row] = draw_token(s, row, scratch);
  });
}

}  // namespace quire
