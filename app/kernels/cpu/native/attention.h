// How attention is cut up: sizes, the order of every row's sums, and the scratch memory.
//
//   context of a row:  | tile | tile | tile | tile | tile | tile | ti      cut at fixed multiples of the position
//                      |-- part 0 ---|-- part 1 ---|-- part 2 ---|- part 3
//
// A tile is one step of the softmax: scores, weights, weighted values. The tiles of a part are put together in order,
// from nothing; then the parts are, likewise. Where parts end depends on the row's position and window alone, so a row
// has the same bits whoever computes its parts. Tokens that a row does not see weigh exactly 0, which changes no sum:
// nor does it matter which other rows are computed with it.
//
// Sizes are mirrored in attention_scratch.py. The keys and values of a layer have one type and one stride.
#pragma once

#include <algorithm>
#include <cstdint>

#include "record.h"
#include "simd.h"

namespace quire::attending {

constexpr int64_t RUN = 8;     // tokens that surely lie in one block
constexpr int64_t GROUP = 16;  // tokens whose scores are computed together
constexpr int TILE_SHIFT = 8;
constexpr int64_t TILE = 1 << TILE_SHIFT;  // tokens at most
// A part has TILE tokens, or twice, four times, ... as many: what a row sees is at most PARTS parts long, and meets one
// more if a window begins between their borders.
constexpr int64_t PARTS = 16;
constexpr int64_t MAX_PARTS = PARTS + 1;
constexpr int64_t STRIP_ROWS = 32;  // adjacent rows of one sequence that are computed together, at most
// Query heads of a key head that a strip has, at most. With 128 instead of 64 prompts take 20 % less with AMX, which has
// more to do for each key and value first, and 2-6 % more without.
#ifdef QUIRE_AMX
constexpr int64_t STRIP_HEADS = 128;
#else
constexpr int64_t STRIP_HEADS = 64;
#endif
constexpr int64_t TOGETHER = 128;   // query heads, of all rows of a strip, that are computed together
constexpr int64_t SPLIT = 128;      // query heads, of all rows of a strip, whose parts may go to several threads

static inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The first token that a row at `position` sees; `window` 0 sees all.
static inline int64_t first_seen(int64_t position, int64_t window) {
  return window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
}

// Parts have 2^part_shift tokens.
static inline int part_shift(int64_t position, int64_t window) {
  const int64_t before = window > 0 ? std::min(position, window - 1) : position;
  int shift = TILE_SHIFT;
  while (before >> shift >= PARTS) shift++;
  return shift;
}

// Head counts and width of a layer, and what follows from them.
struct Heads {
  int64_t num, num_kv, dim;
  int64_t repeats;     // query heads of a key head
  int64_t padded;      // floats of a head: pairs of vectors, on all instruction sets
  int64_t together;    // query heads that are computed together, at most
  int64_t split;       // query heads of a strip whose parts may go to several threads, at most
  int64_t strip_rows;  // rows of a strip, at most: a power of two, so that strips end where parts do

  Heads(int64_t num, int64_t num_kv, int64_t dim)
      : num(num),
        num_kv(num_kv),
        dim(dim),
        repeats(num / num_kv),
        padded(round_up(dim, 32)),
        together(std::max(TOGETHER, round_up(repeats, 16))),
        split(std::max(SPLIT, round_up(num, 16))),
        strip_rows(STRIP_ROWS) {
    while (strip_rows > 1 && strip_rows * repeats > STRIP_HEADS) strip_rows /= 2;
  }
  explicit Heads(const Attention &a) : Heads(a.num_heads, a.num_kv_heads, a.head_dim) {}
};

// The attention of `count` query heads over some tokens: for each the largest score, the sum of its weights
// 2^(score - largest), and the weighted values.
struct Partial {
  float *largest, *sum;  // [count]
  float *values;         // [count, padded], in the order of `load_step`

  static int64_t floats(int64_t count, int64_t padded) { return count * (padded + 2); }
  static Partial at(float *p, int64_t count) { return {p, p + count, p + 2 * count}; }
  Partial from(int64_t q, int64_t padded) const { return {largest + q, sum + q, values + q * padded}; }
};

// What one thread works in.
struct Workspace {
  int32_t *queries;      // [together, padded] words
  float *query_scales;   // [together]
  float *scores;         // [together, TILE]; then weights
  float *key_scales;     // [together, TILE] of INT8 caches: there are no more key heads than query heads
  float *value_scales;   // likewise
  float *weight_scales;  // [together], likewise
  float *fading;         // [together]
  int32_t *copies;       // [TILE, padded] words: heads of ragged width
  Partial part, whole;   // of `together` query heads

  static int64_t floats(const Heads &h) {
    const int64_t heads = h.together, padded = h.padded;
    return heads * (padded + 3 * TILE + 3) + TILE * padded + 2 * Partial::floats(heads, padded);
  }
  static Workspace at(float *p, const Heads &h) {
    const int64_t heads = h.together, padded = h.padded;
    const auto take = [&p](int64_t floats) { return (p += floats) - floats; };
    Workspace w;
    w.queries = reinterpret_cast<int32_t *>(take(heads * padded));
    w.query_scales = take(heads);
    w.scores = take(heads * TILE);
    w.key_scales = take(heads * TILE);
    w.value_scales = take(heads * TILE);
    w.weight_scales = take(heads);
    w.fading = take(heads);
    w.copies = reinterpret_cast<int32_t *>(take(TILE * padded));
    w.part = Partial::at(take(Partial::floats(heads, padded)), heads);
    w.whole = Partial::at(take(Partial::floats(heads, padded)), heads);
    return w;
  }
};

// A slot holds the parts of a strip that several threads share: [MAX_PARTS] partials of `split` query heads.
static inline int64_t slot_floats(const Heads &h) { return MAX_PARTS * Partial::floats(h.split, h.padded); }

// `Attention::parts`: a workspace for each thread, then a slot for each border between two equal shares of the work.
static inline int64_t scratch_floats(const Heads &h, int64_t num_threads) {
  return num_threads * Workspace::floats(h) + (num_threads - 1) * slot_floats(h);
}

}  // namespace quire::attending
