// Mixtures of experts: which experts compute which tokens, and the products of each expert's tokens.
//
// What a record's threads share out must not depend on what the router says: a late thread may look when the next
// layer's router has spoken already (see team.h). So rows are shared out, and panels of all experts, whether these have
// rows or not; a thread that has claimed some may read what the router said.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "linear_product.h"
#include "record.h"

namespace quire {
namespace {

// Of weights that are claimed at once: most experts of a mixture have no rows in a small step, but are claimed too.
constexpr int64_t EXPERT_PIECE_BYTES = 256 << 10;

void softmax(float *x, int64_t count) {
  const float most = *std::max_element(x, x + count);
  float sum = 0.0f;
  for (int64_t i = 0; i < count; i++) sum += x[i] = std::exp(x[i] - most);
  for (int64_t i = 0; i < count; i++) x[i] /= sum;
}

// Writes the numbers of the `num` highest values, the lowest numbers of equal ones.
void highest(const float *values, int32_t count, int32_t num, int32_t *out) {
  for (int32_t i = 0; i < count; i++) {
    int32_t place = std::min(i, num);
    for (; place > 0 && values[i] > values[out[place - 1]]; place--) {
      if (place < num) out[place] = out[place - 1];
    }
    if (place < num) out[place] = i;
  }
}

// Makes the values of all groups but the best the lowest; `scores` is scratch memory for a number of each group.
void keep_best_groups(const Route &r, float *values, float *scores) {
  constexpr float LOWEST = -std::numeric_limits<float>::infinity();
  const int32_t size = r.count / r.num_groups;
  for (int32_t g = 0; g < r.num_groups; g++) {
    float best[2] = {LOWEST, LOWEST};
    for (int32_t e = g * size; e < (g + 1) * size; e++) {
      if (values[e] > best[0]) best[1] = std::exchange(best[0], values[e]);
      else best[1] = std::max(best[1], values[e]);
    }
    scores[g] = size > 1 ? best[0] + best[1] : best[0];
  }
  for (int32_t g = 0; g < r.num_groups; g++) {
    int32_t num_better = 0;
    for (int32_t other = 0; other < r.num_groups; other++)
      num_better += scores[other] > scores[g] || (scores[other] == scores[g] && other < g);
    if (num_better >= r.groups_per_token) std::fill(values + g * size, values + (g + 1) * size, LOWEST);
  }
}

void choose(const Route &r, int64_t row) {
  const int64_t num_products = r.count + r.has_shared_gate;
  float *scores = static_cast<float *>(r.products.data) + row * r.products.stride;
  float *ranked = scores + num_products, *groups = ranked + num_products;
  if (r.has_rest) {
    for (int64_t i = 0; i < num_products; i++) scores[i] += ranked[i];
  }
  const auto sigmoid = [](float x) { return 1.0f / (1.0f + std::exp(-x)); };
  r.shared[row] = r.has_shared_gate ? sigmoid(scores[r.count]) : 1.0f;
  if (r.kind == SOFTMAX) softmax(scores, r.count);
  if (r.kind == SIGMOID) std::transform(scores, scores + r.count, scores, sigmoid);
  for (int32_t e = 0; e < r.count; e++) ranked[e] = scores[e] + (r.correction != nullptr ? r.correction[e] : 0.0f);
  if (r.num_groups > 1) keep_best_groups(r, ranked, groups);
  int32_t *chosen = r.experts + row * r.per_token;
  float *out = r.scores + row * r.per_token;
  highest(ranked, r.count, r.per_token, chosen);
  std::sort(chosen, chosen + r.per_token);
  for (int32_t i = 0; i < r.per_token; i++) out[i] = scores[chosen[i]];
  if (r.kind == CHOSEN_SOFTMAX) softmax(out, r.per_token);
  float sum = 0.0f;
  for (int32_t i = 0; i < r.per_token; i++) sum += out[i];
  for (int32_t i = 0; i < r.per_token; i++) out[i] = (r.is_normalized ? out[i] / (sum + 1e-20f) : out[i]) * r.scale;
}

// Sorts the pairs by expert, by counting.
void sort(const Route &r, int64_t num_rows) {
  const int64_t num_pairs = num_rows * r.per_token;
  std::fill(r.starts, r.starts + r.count + 1, 0);
  for (int64_t pair = 0; pair < num_pairs; pair++) r.starts[r.experts[pair] + 1]++;
  for (int32_t e = 0; e < r.count; e++) r.starts[e + 1] += r.starts[e];
  for (int64_t pair = 0; pair < num_pairs; pair++) {
    const int32_t place = r.starts[r.experts[pair]]++;
    r.pairs[place] = static_cast<int32_t>(pair);
    r.places[pair] = place;
    r.tokens[place] = pair / r.per_token;
  }
  for (int32_t e = r.count; e > 0; e--) r.starts[e] = r.starts[e - 1];
  r.starts[0] = 0;
}

void *row_of(const Matrix &m, int64_t row) {
  return static_cast<char *>(m.data) + row * m.stride * (m.type == FLOAT32 ? 4 : 2);
}

// The product of an expert, whose rows begin at `first`.
Linear product_of(const Experts &x, int64_t expert, int64_t first) {
  Linear linear = {x.weights[expert], x.x, x.quantized, x.out, x.epilogue, 0};
  linear.x.data = row_of(x.x, first);
  linear.quantized.data += first * x.quantized.stride;
  linear.quantized.groups += first * x.quantized.num_groups;
  linear.out.data = row_of(x.out, first);
  return linear;
}

}  // namespace

void route(const Route &r, int64_t num_rows, Worker worker) {
  worker.each(num_rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) choose(r, row);
  });
  worker.each(num_rows > 0 ? 1 : 0, 1, [&](int64_t, int64_t) { sort(r, num_rows); });
}

// A thread has the same part of each expert's panels, so that their sizes and the router do not matter, and computes
// expert after expert: its part of one is a long stream of memory.
void experts(const Experts &x, int64_t num_pairs, Worker worker) {
  if (num_pairs == 0) return;
  const int64_t panels = num_panels(x.weights[0]);
  const int64_t size = piece_size(shape_of(x.weights[0]).panel_bytes, EXPERT_PIECE_BYTES);
  const auto count = [&](int owner) { return worker.end(panels, owner) - worker.begin(panels, owner); };
  const auto pieces = [&](int owner) { return num_pieces(count(owner), size); };
  worker.each_piece([&](int owner) { return x.count * pieces(owner); }, [&](int owner, int64_t piece) {
    const int64_t expert = piece / pieces(owner), index = piece % pieces(owner);
    const int64_t first = x.starts[expert], num_rows = x.starts[expert + 1] - first;
    if (num_rows == 0) return;
    linear_piece(product_of(x, expert, first), num_rows, {worker.begin(panels, owner), count(owner), size, index});
  });
}

}  // namespace quire
