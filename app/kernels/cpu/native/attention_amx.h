// Scores and weighted values with AMX, for bf16 caches: what attention_scores.h and attention_values.h do with vectors.
//
// Scores are computed transposed, [tokens, queries], because keys then go into a register as they lie in the cache.
// Values are paired first, as `load_step` does it. A register of sums takes in 32 tokens at once, so tiles begin at
// multiples of 32 tokens: a row's sums must not depend on where its tile begins.
#pragma once

#include "amx.h"

#ifdef QUIRE_AMX

#include "attention.h"
#include "attention_scores.h"
#include "attention_values.h"
#include "attention_words.h"

namespace quire::attending {

constexpr int64_t CHUNK = 32;         // tokens whose values are summed at once
constexpr int64_t AMX_QUERIES = 16;   // query heads that share a register
constexpr int64_t MAX_AMX_DIM = 512;  // of a head: what the workspace has room for

constexpr int AMX_VECTORS = 4;        // vectors of dimensions that are summed together
constexpr int64_t REGISTER_WORDS = amx::ROWS * LANES;

// Transposes 16 x 16 words.
static inline void transpose(const int32_t *in, int64_t stride, Words (&out)[LANES]) {
  Words a[LANES], b[LANES];
#pragma GCC unroll 16
  for (int i = 0; i < LANES; i++) a[i] = load_ints(in + i * stride);
#pragma GCC unroll 4
  for (int i = 0; i < LANES; i += 4) {
    const Words ab = low_words(a[i], a[i + 1]), cd = low_words(a[i + 2], a[i + 3]);
    const Words ef = high_words(a[i], a[i + 1]), gh = high_words(a[i + 2], a[i + 3]);
    b[i] = low_doubles(ab, cd), b[i + 1] = high_doubles(ab, cd);
    b[i + 2] = low_doubles(ef, gh), b[i + 3] = high_doubles(ef, gh);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const Words low = even_quarters(b[i], b[i + 4]), low_too = even_quarters(b[i + 8], b[i + 12]);
    const Words high = odd_quarters(b[i], b[i + 4]), high_too = odd_quarters(b[i + 8], b[i + 12]);
    out[i] = even_quarters(low, low_too), out[i + 8] = odd_quarters(low, low_too);
    out[i + 4] = even_quarters(high, high_too), out[i + 12] = odd_quarters(high, high_too);
  }
}

static inline void transpose_all(const int32_t *in, Words (&out)[LANES]) { transpose(in, LANES, out); }

// Query heads [count, padded] of words, as registers [groups of 16 heads][padded / 32][16 words][16 heads].
static inline void transpose_queries(const int32_t *queries, int64_t count, int64_t padded, int32_t *out) {
  for (int64_t q = 0; q < count; q += AMX_QUERIES)
    for (int64_t word = 0; word < padded / 2; word += LANES, out += REGISTER_WORDS) {
      Words rows[LANES];
      transpose(queries + q * padded + word, padded, rows);
      for (int i = 0; i < LANES; i++) store_ints(out + i * LANES, rows[i]);
    }
}

// The first four of 16 x 16 words' columns.
static inline void transpose_four(const int32_t *in, Words (&out)[4]) {
  Words rows[4];  // row i + 4 j in quarter j
  for (int i = 0; i < 4; i++) {
    const int32_t *row = in + i * LANES;
    const auto four = [row](int j) { return _mm_load_si128(reinterpret_cast<const __m128i *>(row + 4 * j * LANES)); };
    rows[i] = _mm512_inserti32x4(_mm512_castsi128_si512(four(0)), four(1), 1);
    rows[i] = _mm512_inserti32x4(_mm512_inserti32x4(rows[i], four(2), 2), four(3), 3);
  }
  const Words ab = low_words(rows[0], rows[1]), cd = low_words(rows[2], rows[3]);
  const Words ef = high_words(rows[0], rows[1]), gh = high_words(rows[2], rows[3]);
  out[0] = low_doubles(ab, cd), out[1] = high_doubles(ab, cd);
  out[2] = low_doubles(ef, gh), out[3] = high_doubles(ef, gh);
}

// The registers' shapes: 0 to 3 sum the values of up to 16 query heads, whose weights are in 4; 5, 6 and 7 are whole.
class AmxShapes {
 public:
  void set(int64_t num_queries) {
    num_queries = std::min(num_queries, AMX_QUERIES);
    if (num_queries == num_queries_) return;
    amx::Shapes shapes;
    shapes.set(0, 5, num_queries);
    shapes.set(5, 8, amx::ROWS);
    shapes.use();
    num_queries_ = num_queries;
  }
  ~AmxShapes() {
    if (num_queries_ > 0) amx::release();
  }

 private:
  int64_t num_queries_ = 0;
};

// Computes scores, GROUP tokens by 16 query heads at a time. Reading what AMX has stored means waiting for it, so that
// is done after the next products are under way.
class AmxScores {
 public:
  // `s.queries` are transposed ones.
  template <class Meanwhile> void add(const Scoring &s, Meanwhile meanwhile) {
    const char *keys = s.runs[0];
    int64_t stride = s.stride;
    if (s.runs[1] != keys + RUN * stride) {  // of two blocks
      for (int64_t t = 0; t < GROUP; t++)
        std::memcpy(copy_[t], s.runs[t / RUN] + t % RUN * stride, static_cast<size_t>(2 * s.padded));
      keys = copy_[0], stride = sizeof copy_[0];
    }
    const int32_t *queries = s.queries;
    for (int64_t q = 0; q < s.count; q += AMX_QUERIES) {
      const Part now{s.out + q * TILE, s.scales + q, std::min(AMX_QUERIES, s.count - q), sums_[is_odd_ = !is_odd_]};
      meanwhile(now.count);
      amx::clear<7>();
      for (int64_t byte = 0; byte < 2 * s.padded; byte += amx::ROW_BYTES, queries += REGISTER_WORDS) {
        amx::load<5>(keys + byte, stride);
        amx::load<6>(queries, amx::ROW_BYTES);
        amx::add_products<bf16, 7, 5, 6>();
      }
      amx::store<7>(now.sums, amx::ROW_BYTES);
      before_.put();
      before_ = now;
    }
  }
  void finish() {
    before_.put();
    before_.count = 0;
  }

 private:
  // Scores as AMX leaves them, [tokens, queries], and where they go.
  struct Part {
    float *out;  // [count, TILE]
    const float *scales;
    int64_t count;
    int32_t *sums;
    void put() const {
      if (count > 4) return put(transpose_all);
      if (count > 0) put(transpose_four);
    }
    template <int N> void put(void (*turn)(const int32_t *, Words (&)[N])) const {
      Words rows[N];
      turn(sums, rows);
      for (int64_t i = 0; i < count; i++) store(out + i * TILE, as_floats(rows[i]) * all(scales[i]));
    }
  };

  alignas(64) int32_t sums_[2][REGISTER_WORDS];
  alignas(64) char copy_[GROUP][2 * MAX_AMX_DIM];
  Part before_{};
  bool is_odd_ = false;
};

// Computes weighted values, a head's 64 dimensions at a time. What is stored for AMX, or by it, is again not read at
// once: the next values are paired before these are multiplied, and sums are taken up when the next ones are under way.
class AmxValues {
 public:
  // `paired`: room for two times [TILE / 2, 64] words.
  explicit AmxValues(int32_t *paired) : paired_(paired) {}

  template <class Meanwhile> void add(const Weighing &w, Meanwhile meanwhile) {
    for (int64_t first = 0; first < w.padded; first += AMX_VECTORS * LANES) {
      is_odd_ = !is_odd_;
      const Part now{w, first, std::min<int64_t>(AMX_VECTORS, (w.padded - first) / LANES),
                     paired_ + (is_odd_ ? PAIRED_WORDS : 0)};
      pair(now, meanwhile);
      multiply(part_);
      part_ = now;
    }
  }
  void finish() {
    multiply(part_);
    sums_before_.put();
    part_.w.count = sums_before_.count = 0;
  }

 private:
  static constexpr int64_t PAIRED_WORDS = TILE / 2 * AMX_VECTORS * LANES;

  // Some dimensions of a head: an even number of vectors.
  struct Part {
    Weighing w;
    int64_t first, num_vectors;
    int32_t *paired;
  };

  // Sums as AMX leaves them, and where they go.
  struct Sums {
    float *out;  // [count, padded]
    const float *fading;
    int64_t count, padded, num_vectors;
    float (*sums)[REGISTER_WORDS];
    void put() const {
      for (int64_t i = 0; i < count; i++)
        for (int64_t v = 0; v < num_vectors; v++) {
          float *at = out + i * padded + v * LANES;
          const Floats sum = load(sums[v] + i * LANES);
          store(at, fading == nullptr ? sum : fma(load(at), all(fading[i]), sum));
        }
    }
  };

  template <class Meanwhile> static void pair(const Part &part, Meanwhile meanwhile) {
    const Weighing &w = part.w;
    for (int64_t run = 0; run < w.num_runs; run++) {
      meanwhile();
      const char *value = w.runs[run] + part.first * static_cast<int64_t>(sizeof(bf16));
      for (int64_t pair = run * RUN / 2; pair < (run + 1) * RUN / 2; pair++, value += 2 * w.stride) {
        int32_t *row = part.paired + (pair / LANES * AMX_VECTORS * amx::ROWS + pair % LANES) * LANES;
        for (int64_t v = 0; v < part.num_vectors; v += 2) {
          Words low, high;
          load_step<bf16>(value + v * amx::ROW_BYTES / 2, w.stride, low, high);
          store_ints(row + v * REGISTER_WORDS, low), store_ints(row + (v + 1) * REGISTER_WORDS, high);
        }
      }
    }
  }

  void multiply(const Part &part) {
    const Weighing &w = part.w;
    for (int64_t q = 0; q < w.count; q += AMX_QUERIES) {
      sums_are_odd_ = !sums_are_odd_;
      const Sums now{w.out + q * w.padded + part.first, w.fading == nullptr ? nullptr : w.fading + q,
                     std::min(AMX_QUERIES, w.count - q), w.padded, part.num_vectors, sums_[sums_are_odd_]};
      amx::clear<0>(), amx::clear<1>(), amx::clear<2>(), amx::clear<3>();
      for (int64_t chunk = 0; chunk < w.num_runs * RUN / CHUNK; chunk++) {
        amx::load<4>(w.weights + q * TILE + chunk * LANES, TILE * static_cast<int64_t>(sizeof(float)));
        const int32_t *values = part.paired + chunk * AMX_VECTORS * REGISTER_WORDS;
        amx::load<5>(values, amx::ROW_BYTES), amx::load<6>(values + REGISTER_WORDS, amx::ROW_BYTES);
        amx::add_products<bf16, 0, 4, 5>(), amx::add_products<bf16, 1, 4, 6>();
        if (part.num_vectors == 2) continue;
        values += 2 * REGISTER_WORDS;
        amx::load<5>(values, amx::ROW_BYTES), amx::load<6>(values + REGISTER_WORDS, amx::ROW_BYTES);
        amx::add_products<bf16, 2, 4, 5>(), amx::add_products<bf16, 3, 4, 6>();
      }
      amx::store<0>(now.sums[0], amx::ROW_BYTES), amx::store<1>(now.sums[1], amx::ROW_BYTES);
      amx::store<2>(now.sums[2], amx::ROW_BYTES), amx::store<3>(now.sums[3], amx::ROW_BYTES);
      sums_before_.put();
      sums_before_ = now;
    }
  }

  alignas(64) float sums_[2][AMX_VECTORS][REGISTER_WORDS];
  int32_t *const paired_;
  Part part_{};
  Sums sums_before_{};
  bool is_odd_ = false, sums_are_odd_ = false;
};

// Both, as `VectorProducts` has it. What INT8 caches need in the workspace has room for what is needed here.
class AmxProducts {
 public:
  static constexpr int64_t STEP = CHUNK, WEIGHED_TOKENS = CHUNK, QUERIES = AMX_QUERIES;

  AmxProducts(const Workspace &w, int64_t padded)
      : prepared_(w.queries),
        transposed_(reinterpret_cast<int32_t *>(w.key_scales)),
        padded_(padded),
        values_(reinterpret_cast<int32_t *>(w.value_scales)) {}

  void take_queries(int64_t num_heads, int64_t each) {
    shapes_.set(each);
    for (int64_t head = 0; head < num_heads; head++)
      transpose_queries(prepared_ + head * each * padded_, each, padded_, transposed_ + transposed_at(head, each));
  }
  const int32_t *queries(int64_t head, int64_t each) const { return transposed_ + transposed_at(head, each); }

  template <class Meanwhile> void score(const Scoring &s, Meanwhile meanwhile) { scores_.add(s, meanwhile); }
  void finish_scores() { scores_.finish(); }

  static int64_t passes(int64_t, int64_t padded) { return std::max<int64_t>(1, padded / (AMX_VECTORS * LANES)); }
  template <class Meanwhile> void weigh(const Weighing &w, Meanwhile meanwhile) { values_.add(w, meanwhile); }
  void finish_values() { values_.finish(); }

 private:
  int64_t transposed_at(int64_t head, int64_t each) const { return head * round_up(each, AMX_QUERIES) * padded_ / 2; }

  const int32_t *const prepared_;
  int32_t *const transposed_;
  const int64_t padded_;
  AmxShapes shapes_;
  AmxScores scores_;
  AmxValues values_;
};

}  // namespace quire::attending

#endif
