// Samples one token for each output row: changes the logits as its sequence wants, forbids the tokens that its mask does
// not allow, then takes the lowest id among the largest ones, or applies temperature, top-k, top-p, min-p and Gumbel-max.
// The engine's sampler and noise do the same in Python. Where they are wanted, log-probabilities of the raw logits come
// with the token.
//
// A row without any number, NaN or -inf throughout, gives -1, as rows do that the host samples; one without a number
// among the allowed tokens gives -2.
//
// Rows are shared out among the threads; a row's token depends on that row alone.
#include "penalties.h"
#include "logprobs.h"
#include "noise.h"
#include "record.h"
#include "scores.h"
#include "simd.h"

namespace quire {
namespace {

// The lowest id among the largest allowed logits, -1 if there is no number among them.
int64_t greedy(const float *logits, int64_t width, const Allowed &allowed) {
  float best = IMPOSSIBLE, tail[BLOCK];
  int64_t best_start = 0;
  for (int64_t start = 0; start < width; start += BLOCK) {
    if (allowed.has_none(start)) continue;
    const float *block = block_of(logits, start, width, tail);
    Floats peak = all(IMPOSSIBLE);
    each_vector([&](int i) { peak = max(allowed.only(load(block + i), start + i), peak); });
    if (largest(peak) > best) best = largest(peak), best_start = start;
  }
  if (best == IMPOSSIBLE) return -1;
  int64_t id = best_start;
  while (logits[id] != best || !allowed.has(id)) id++;
  return id;
}

int64_t sample_token(const SamplingSettings &settings, const Output &output, const Allowed &allowed, float *scratch) {
  const float *logits = output.logits;
  if (settings.penalties != nullptr) {
    const PenaltyWriter writer(*settings.penalties, output);
    if (writer.changes_something()) writer.write(scratch), logits = scratch;
  }
  if (settings.temperature == 0.0f) return greedy(logits, output.width, allowed);
  Scores scores(logits, output.width, settings.temperature, allowed, scratch);
  if (0 < settings.top_k && settings.top_k < output.width) scores.keep_top_k(settings.top_k);
  return scores.sample(settings.top_p, settings.min_p, Noise(settings, output.position));
}

void sample_row(const Sample &s, int64_t row, float *scratch) {
  const SamplingSettings &settings = s.settings[s.state_rows[row]];
  s.token_ids[row] = -1;
  if (settings.is_on_host) return;
  const float *logits = static_cast<const float *>(s.logits.data) + row * s.logits.stride;
  const int64_t token_row = s.output_rows[row];
  const Output output{logits, s.width, s.positions[token_row] + 1, s.ids + token_row + 1};
  const int32_t mask = s.mask_rows[row];
  const Allowed allowed(mask == 0 ? nullptr : s.masks + (mask - 1) * s.mask_words);
  int64_t sampled = sample_token(settings, output, allowed, scratch);
  if (sampled < 0 && !allowed.is_everything() && greedy(logits, s.width, Allowed(nullptr)) >= 0) sampled = -2;
  s.token_ids[row] = sampled;
  if (sampled < 0 || settings.num_logprobs < 0) return;
  const int64_t first = row * (1 + MAX_LOGPROBS);
  Logprobs(logits, s.width, sampled, scratch).write(settings.num_logprobs, s.logprobs + first, s.logprob_ids + first);
}

}  // namespace

void sample(const Sample &s, int64_t num_rows, Worker worker) {
  float *scratch = s.scratch + worker.index * Scores::size(s.width);
  worker.each(num_rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) sample_row(s, row, scratch);
  });
}

}  // namespace quire
