// One thread's attention over caches of T: tile by tile, part by part.
#pragma once

#include <type_traits>

#include "attention.h"
#include "attention_ahead.h"
#include "attention_plan.h"
#include "attention_products.h"
#include "attention_weights.h"

namespace quire::attending {

// `Products` does the products: `VectorProducts<T>`, or `AmxProducts`.
template <class T, class Products> class Attender {
 public:
  Attender(const Attention &a, const Heads &heads, const Workspace &w)
      : a_(a),
        heads_(heads),
        w_(w),
        padded_(heads.padded),
        products_(w, heads.padded),
        head_bytes_(heads.dim * static_cast<int64_t>(sizeof(T)) + HEAD_TRAILER<T>),
        token_bytes_(heads.num_kv * head_bytes_) {}

  // Chooses key heads of a strip: `first` and as many up to `last` as the workspace holds; returns where it ended. The
  // query heads of one key head then stand side by side, by rows.
  int64_t choose(const Strip &strip, int64_t first, int64_t last) {
    strip_ = &strip;
    each_ = strip.count * heads_.repeats;
    const int64_t each = round_up(each_, Products::QUERIES);
    first_ = first, last_ = std::min(last, first + std::max<int64_t>(1, heads_.together / each));
    each_query([this](int64_t q, int64_t row, int64_t head) {
      const int64_t at = row * a_.queries.stride + head * heads_.dim;
      w_.query_scales[q] = a_.scale * LOG2_E * prepare(at, w_.queries + q * padded_);
    });
    products_.take_queries(last_ - first_, each_);
    return last_;
  }

  // Computes one part. `after` comes after the last of the strip's tokens; it is loaded ahead.
  void attend(int64_t part, const Partial &out, Tokens after) {
    std::fill_n(out.largest, count(), NOTHING);
    std::fill_n(out.sum, count(), 0.0f);
    const int64_t begin = strip_->part_begin(part), end = strip_->part_end(part);
    for (int64_t at = begin, next; at < end; at = next) {
      next = std::min(end, at / TILE * TILE + TILE);
      const Tokens ahead{strip_->table, next, std::min(strip_->end, next + TILE)};
      tile({strip_->table, at, next}, out, at == begin, next < strip_->end ? ahead : after);
    }
  }

  int64_t count() const { return (last_ - first_) * each_; }

  // Calls `body(q, row, head)` for each chosen query head.
  template <class Body> void each_query(Body body) const {
    int64_t q = 0;
    for (int64_t head = first_; head < last_; head++)
      for (int64_t row = 0; row < strip_->count; row++)
        for (int64_t i = 0; i < heads_.repeats; i++) body(q++, strip_->row + row, head * heads_.repeats + i);
  }

 private:
  float prepare(int64_t at, int32_t *out) const {
    using Family = typename Stored<T>::Family;
    const auto *floats = static_cast<const float *>(a_.queries.data) + at;
    const auto *halves = static_cast<const bf16 *>(a_.queries.data) + at;
    if constexpr (std::is_same_v<Family, FloatWords>) return prepare_query<Family>(floats, heads_.dim, padded_, out);
    if constexpr (std::is_same_v<Family, BfloatWords>) return prepare_query<Family>(halves, heads_.dim, padded_, out);
    if constexpr (std::is_same_v<Family, ShortWords>)
      return a_.queries.type == BFLOAT16 ? prepare_query<Family>(halves, heads_.dim, padded_, out)
                                         : prepare_query<Family>(floats, heads_.dim, padded_, out);
  }

  void tile(Tokens tokens, const Partial &out, bool is_first, Tokens next) {
    from_ = tokens.begin / Products::STEP * Products::STEP;
    size_ = round_up(tokens.end - from_, Products::STEP);
    locate();
    if constexpr (Stored<T>::HAS_SCALE) take_scales(a_.keys, w_.key_scales);
    score_tile(tokens);
    if constexpr (Stored<T>::HAS_SCALE) take_scales(a_.values, w_.value_scales);
    soften_tile(tokens, out);
    weigh_tile(tokens, out, is_first, next);
  }

  // Where the runs of a tile lie in the cache. The first and last run of tokens that are seen stand for those around
  // them, which may have no block any more, or not yet.
  void locate() {
    const int64_t size = a_.paged_rows.block_size, block_bytes = a_.keys.block_stride * static_cast<int64_t>(sizeof(T));
    const int shift = __builtin_ctzll(static_cast<uint64_t>(size));
    const int64_t low = strip_->begin / RUN * RUN, high = (strip_->end - 1) / RUN * RUN;
    for (int64_t r = 0; r < size_ / RUN; r++) {
      const int64_t token = std::clamp(from_ + r * RUN, low, high);
      offsets_[r] = strip_->table[token >> shift] * block_bytes + (token & (size - 1)) * token_bytes_;
    }
  }

  const char *head_at(const Cache &cache, int64_t head, int64_t run) const {
    return static_cast<const char *>(cache.data) + offsets_[run] + head * head_bytes_;
  }

  // Finds `count` runs of a key head; returns the bytes between their tokens. Heads of ragged width are copied.
  int64_t find_runs(const Cache &cache, int64_t head, int64_t first, int64_t count, const char **runs) {
    for (int64_t r = 0; r < count; r++) runs[r] = head_at(cache, head, first + r);
    if (heads_.dim == padded_) return token_bytes_;
    const int64_t bytes = heads_.dim * static_cast<int64_t>(sizeof(T));
    const int64_t stride = padded_ * static_cast<int64_t>(sizeof(T));
    char *copy = reinterpret_cast<char *>(w_.copies);
    for (int64_t r = 0; r < count; r++) {
      const char *token = runs[r];
      runs[r] = copy;
      for (int64_t t = 0; t < RUN; t++, token += token_bytes_, copy += stride) {
        std::memcpy(copy, token, static_cast<size_t>(bytes));
        std::memset(copy + bytes, 0, static_cast<size_t>(stride - bytes));
      }
    }
    return stride;
  }

  void take_scales(const Cache &cache, float *out) const {
    for (int64_t head = first_; head < last_; head++, out += TILE)
      for (int64_t r = 0; r < size_ / RUN; r++) {
        const char *scale = head_at(cache, head, r) + heads_.dim;
        for (int64_t t = 0; t < RUN; t++) std::memcpy(out + r * RUN + t, scale + t * token_bytes_, sizeof(float));
      }
  }

  Layout layout(const Cache &cache) const {
    return {static_cast<const char *>(cache.data) + first_ * head_bytes_,
            cache.block_stride * static_cast<int64_t>(sizeof(T)), token_bytes_, (last_ - first_) * head_bytes_,
            a_.paged_rows.block_size};
  }

  void score_tile(Tokens tokens) {
    Ahead values(layout(a_.values), tokens);
    const int64_t share = values.lines() / (size_ / GROUP * count()) + 1;
    for (int64_t t = 0; t < size_; t += GROUP)
      for (int64_t head = first_; head < last_; head++) {
        const int64_t q = (head - first_) * each_;
        const char *runs[GROUP / RUN];
        Scoring s{};
        s.runs = runs, s.stride = find_runs(a_.keys, head, t / RUN, GROUP / RUN, runs);
        s.queries = products_.queries(head - first_, each_), s.padded = padded_, s.count = each_;
        s.scales = w_.query_scales + q, s.key_scales = w_.key_scales + (head - first_) * TILE + t;
        s.out = w_.scores + q * TILE + t;
        products_.score(s, [&values, share](int64_t n) { values.pull(n * share); });
      }
    products_.finish_scores();
  }

  void soften_tile(Tokens tokens, const Partial &out) {
    each_query([&](int64_t q, int64_t row, int64_t) {
      const int64_t position = strip_->position + row - strip_->row;
      const int64_t first = std::max(first_seen(position, a_.window), tokens.begin);
      const Seen seen{first - from_, std::min(position, tokens.end - 1) - from_};
      const float *value_scales = w_.value_scales + q / each_ * TILE;
      if (a_.softcap > 0.0f) cap_scores(w_.scores + q * TILE, seen, a_.softcap);
      const Softened s = soften<T>(w_.scores + q * TILE, seen, size_, out.largest[q], value_scales);
      w_.fading[q] = exp2_of(out.largest[q] - s.largest);
      w_.weight_scales[q] = s.scale;
      out.sum[q] = out.sum[q] * w_.fading[q] + s.sum;
      out.largest[q] = s.largest;
    });
  }

  void weigh_tile(Tokens tokens, const Partial &out, bool is_first, Tokens next) {
    Ahead keys(layout(a_.keys), next);
    const int64_t num_runs = round_up(tokens.end - from_, Products::WEIGHED_TOKENS) / RUN;
    const int64_t share = keys.lines() / ((last_ - first_) * Products::passes(each_, padded_) * num_runs) + 1;
    for (int64_t head = first_; head < last_; head++) {
      const int64_t q = (head - first_) * each_;
      const char *runs[TILE / RUN];
      Weighing w{};
      w.runs = runs, w.num_runs = num_runs, w.stride = find_runs(a_.values, head, 0, num_runs, runs);
      w.weights = reinterpret_cast<int32_t *>(w_.scores) + q * TILE, w.weight_scales = w_.weight_scales + q;
      w.count = each_, w.padded = padded_;
      w.fading = is_first ? nullptr : w_.fading + q, w.out = out.values + q * padded_;
      products_.weigh(w, [&keys, share] { keys.pull(share); });
    }
    products_.finish_values();
  }

  const Attention &a_;
  const Heads &heads_;
  const Workspace w_;
  const int64_t padded_;
  Products products_;
  const int64_t head_bytes_, token_bytes_;
  const Strip *strip_;
  int64_t first_, last_, each_;  // key heads, and how many query heads each of them has in the strip
  int64_t from_, size_;          // the tile's first token, a multiple of `Products::STEP`, and its tokens, likewise
  int64_t offsets_[TILE / RUN];
};

}  // namespace quire::attending
