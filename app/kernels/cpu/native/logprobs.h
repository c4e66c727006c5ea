// Log-probabilities of the sampled token and of the best ones: the log-softmax of the raw logits.
//
// What is no finite number would break the sum for all: it counts as the largest or the smallest one there is. The order
// among tokens is that of their logits, the lowest id first among equals.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "record.h"
#include "scores.h"
#include "simd.h"

namespace quire {

// The largest values offered so far, largest first, the first offered first among equals.
class Largest {
 public:
  explicit Largest(int capacity) : capacity_(capacity) {}

  // What a value must be above to be among them.
  float bar() const { return count_ < capacity_ ? IMPOSSIBLE : values[count_ - 1]; }

  void offer(float value, int64_t id) {
    if (count_ == capacity_ && value <= bar()) return;
    int rank = count_ < capacity_ ? count_++ : count_ - 1;
    for (; rank > 0 && values[rank - 1] < value; rank--)
      values[rank] = values[rank - 1], ids[rank] = ids[rank - 1];
    values[rank] = value, ids[rank] = static_cast<int32_t>(id);
  }

  int count() const { return count_; }

  float values[MAX_LOGPROBS];
  int32_t ids[MAX_LOGPROBS];

 private:
  int capacity_, count_ = 0;
};

class Logprobs {
 public:
  // `peaks` is scratch: the largest logit of each block.
  Logprobs(const float *logits, int64_t width, int64_t sampled, float *peaks)
      : logits_(logits), width_(width), sampled_(finite(logits[sampled])), peaks_(peaks) {
    find_peaks();
    add_up();
  }

  void write(int num_best, float *values, int32_t *ids) const {
    values[0] = logprob(sampled_);
    ids[0] = static_cast<int32_t>(num_above_) + 1;
    const Largest best = largest_logits(num_best);
    for (int rank = 0; rank < num_best; rank++) {
      const bool exists = rank < best.count();
      values[1 + rank] = exists ? logprob(best.values[rank]) : IMPOSSIBLE;
      ids[1 + rank] = exists ? best.ids[rank] : -1;
    }
  }

 private:
  // Of a NaN and a number, max gives what comes second.
  static Floats finite(Floats x) { return min(max(x, all(-FLT_MAX)), all(FLT_MAX)); }
  static float finite(float x) { return std::fmin(std::fmax(x, -FLT_MAX), FLT_MAX); }

  // Calls `body(start, block)` for each block; behind the width it is minus infinity.
  template <class Body> void each_block(Body body) const {
    float tail[BLOCK];
    for (int64_t start = 0; start < width_; start += BLOCK) body(start, block_of(logits_, start, width_, tail));
  }

  void find_peaks() {
    Words broken{};
    each_block([&](int64_t start, const float *block) {
      Floats peak = all(-FLT_MAX);
      each_vector([&](int i) {
        const Floats raw = load(block + i);
        broken -= reinterpret_cast<Words>(!(raw < all(-IMPOSSIBLE)));
        peak = max(peak, finite(raw));
      });
      peaks_[start / BLOCK] = largest(peak);
      top_ = std::fmax(top_, peaks_[start / BLOCK]);
    });
    is_broken_ = sum(broken) > 0 || top_ == -FLT_MAX;
  }

  void add_up() {
    WideSum total;
    Words above{};
    each_block([&](int64_t, const float *block) {
      Floats weights = zeros();
      each_vector([&](int i) {
        const Floats logit = finite(load(block + i));
        weights = weights + exp2((logit - all(top_)) * all(LOG2_E));
        above -= reinterpret_cast<Words>(logit > all(sampled_));
      });
      total.add(weights);
    });
    // What lies behind the width counts as the smallest number.
    const double behind = std::exp2(std::fmax((-FLT_MAX - top_) * LOG2_E, -126.0f));
    log_total_ = std::log(total.total() - behind * static_cast<double>(num_blocks(width_) * BLOCK - width_));
    num_above_ = sum(above);
  }

  // What was minus infinity stays so, unless the row is broken.
  float logprob(float logit) const {
    if (logit == -FLT_MAX && !is_broken_) return IMPOSSIBLE;
    return static_cast<float>(static_cast<double>(logit) - static_cast<double>(top_) - log_total_);
  }

  Largest largest_logits(int count) const {
    Largest best(count);
    if (count == 0) return best;
    // As many blocks have a peak that reaches the lowest of these, so what does not is not among the best.
    Largest peaks(count);
    for (int64_t block = 0; block < num_blocks(width_); block++) peaks.offer(peaks_[block], block);
    const float bar = peaks.bar();
    for (int64_t start = 0; start < width_; start += BLOCK) {
      if (peaks_[start / BLOCK] < std::fmax(bar, best.bar())) continue;
      for (int64_t id = start; id < std::min(start + BLOCK, width_); id++) {
        const float logit = finite(logits_[id]);
        if (logit >= bar) best.offer(logit, id);
      }
    }
    return best;
  }

  const float *logits_;
  int64_t width_;
  float sampled_, *peaks_;
  float top_ = -FLT_MAX;
  int64_t num_above_;  // the sampled token's logit
  double log_total_;
  bool is_broken_;  // there is a NaN or an infinity, or nothing but minus infinity
};

}  // namespace quire
