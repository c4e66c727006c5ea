// Biases, penalties and a minimum length: what a sequence changes in its logits before it samples. The engine's sampler
// does the same in torch, with the same roundings.
#pragma once

#include <cstring>
#include <limits>

#include "record.h"

namespace quire {

// The logits of one output, and the position of the sequence that samples from them.
struct Output {
  const float *logits;
  int64_t width;
  int64_t position;     // of the sampled token
  const int64_t *later; // draft tokens of this step that come after the one sampled from, which `seen` counts too
};

class PenaltyWriter {
 public:
  PenaltyWriter(const Penalties &wanted, const Output &output) : wanted_(wanted), output_(output) {
    num_later_ = wanted.num_tokens - output.position;
    forbids_endings_ = output.position - wanted.num_prompt < wanted.min_tokens;
  }

  bool changes_something() const { return wanted_.num_biases > 0 || wanted_.num_seen > 0 || forbids_endings_; }

  // Writes the changed logits to `out`.
  void write(float *out) const {
    std::memcpy(out, output_.logits, sizeof(float) * static_cast<size_t>(output_.width));
    for (int32_t i = 0; i < wanted_.num_biases; i++)
      if (is_token(wanted_.bias_ids[i])) out[wanted_.bias_ids[i]] += wanted_.biases[i];
    for (int32_t i = 0; i < wanted_.num_seen; i++)
      if (is_token(wanted_.seen_ids[i])) penalize(wanted_.seen_ids[i], wanted_.seen[i], out);
    for (int32_t i = 0; forbids_endings_ && i < wanted_.num_endings; i++)
      if (is_token(wanted_.endings[i])) out[wanted_.endings[i]] = -std::numeric_limits<float>::infinity();
  }

 private:
  bool is_token(int32_t id) const { return 0 <= id && id < output_.width; }

  void penalize(int32_t id, int32_t seen, float *out) const {
    for (int64_t i = 0; i < num_later_; i++)
      if (output_.later[i] == id) seen -= 2;
    float x = out[id];
    if (seen > 0) x = x > 0.0f ? x / wanted_.repetition : x * wanted_.repetition;
    if (seen > 1) x -= wanted_.presence + wanted_.frequency * static_cast<float>(seen >> 1);
    out[id] = x;
  }

  const Penalties &wanted_;
  const Output &output_;
  int64_t num_later_;
  bool forbids_endings_;
};

}  // namespace quire
