// How a matrix [n, k] lies packed in memory: panels of 32 output rows, one after the other. Written by packing.py, from
// blocks of files by pack.cpp.
//
// A panel is a list of steps along k. A step holds the same columns of all 32 rows, side by side in 32 lanes, so that
// one vector instruction multiplies LANES output rows with one activation lane that is broadcast to them: no sums
// across lanes, one linear stream of memory. Rows and columns that the matrix lacks are zeros.
//
//   FLOAT32   [panels][k][32]           a lane is one column
//   FLOAT16   [panels][k][32]           likewise, 16 bits wide
//   BFLOAT16  [panels][k / 2][32][2]    a lane is two columns
//
// The others are quantized: each row has a scale, and perhaps a minimum, for every group of 32 columns. A weight is
// scale * q + minimum, or scale * (q - zero) where there are no minimums, with zero = 2^(bits - 1).
//
//   INT8, Q4_0, Q5_0  [panels][groups]{ f16 scales[32]; lanes }
//   INT4, Q5_1        [panels][groups]{ f16 scales[32]; f16 minimums[32]; lanes }
//   Q4_K, Q5_K        [panels][blocks]{ f16 scales[32]; f16 minimums[32]; [8]{ u8 scales[32]; u8 minimums[32]; lanes } }
//   Q6_K              [panels][blocks]{ f16 scales[32]; [8]{ i8 scales[2][32]; lanes } }
//
// They hold what blocks of GGUF files hold (INT8 is Q8_0, INT4 is Q4_1), so nothing is quantized twice. In a block of 256
// columns the scale of a group is the product of both, likewise the minimum; Q6_K has a scale for each 16 columns.
//
// The lanes of a group are words of 32 bits, one row's next to another's:
//
//   8 bits: [8][32] words, word s with columns 4 s to 4 s + 3, a byte each.
//   4 bits: [4][32] words: the low halves of the bytes of word s are columns 8 s to 8 s + 3, the high ones 8 s + 4 to
//           8 s + 7.
//   5 bits: [32] words, of which bit 8 j + s is the fifth bit of column 4 s + j; then words of four bits as above.
//   6 bits: for either half of the group [32] words, of which bits 8 j + 2 s and 8 j + 2 s + 1 are the fifth and the
//           sixth bit of the half's column 4 s + j; then [2][32] words of four bits.
//
// So memory is read from left to right; the hardware's prefetching does not see through anything else.
//
// Interleaved panels hold rows 16 p to 16 p + 15 of the matrix' first half (gate), then the same ones of its second half
// (up). Biases follow the panels' order and fill whole panels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "record.h"
#include "simd.h"

namespace quire {

constexpr int PANEL_WIDTH = 32;  // output rows of a panel
constexpr int GROUP = 32;        // columns of quantized panels that belong together
constexpr int GROUP_STEPS = 4;   // of a group, each of two lanes of four columns

static inline constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static inline int64_t num_panels(const Packed &w) {
  return w.is_interleaved ? divide_up(w.n / 2, PANEL_WIDTH / 2) : divide_up(w.n, PANEL_WIDTH);
}

// Columns in one lane of a panel of T.
template <class T> constexpr int LANE_COLUMNS = 1;
template <> inline constexpr int LANE_COLUMNS<bf16> = 2;

// A kind of quantized panels.
template <int BITS_, bool HAS_MINIMUMS_, int BLOCK_GROUPS_ = 1, int PARTS_ = 1> struct Groups {
  static constexpr int BITS = BITS_;
  static constexpr bool HAS_MINIMUMS = HAS_MINIMUMS_;
  static constexpr int BLOCK_GROUPS = BLOCK_GROUPS_;
  static constexpr bool HAS_BYTES = BLOCK_GROUPS > 1;  // factors of one byte in each group
  static constexpr int PARTS = PARTS_;                 // of a group, with scales of their own
  static constexpr int ZERO_SHIFT = BITS - 1;
  using Byte = std::conditional_t<HAS_MINIMUMS, uint8_t, int8_t>;

  static constexpr int HALVES_BYTES = (HAS_MINIMUMS ? 2 : 1) * 2 * PANEL_WIDTH;
  static constexpr int FACTORS_BYTES = HAS_BYTES ? (HAS_MINIMUMS ? 2 : PARTS) * PANEL_WIDTH : 0;
  static constexpr int LANES_BYTES = PANEL_WIDTH * GROUP * BITS / 8;
  static constexpr int STEP_BYTES = LANES_BYTES / GROUP_STEPS;
  static constexpr int GROUP_BYTES = FACTORS_BYTES + LANES_BYTES;
  static constexpr int BLOCK_BYTES = HALVES_BYTES + BLOCK_GROUPS * GROUP_BYTES;
};

// Calls `body` with a value of the kind that `type` names.
template <class Body> auto with_kind(int32_t type, Body body) {
  switch (type) {
    case Q4_0: return body(Groups<4, false>{});
    case Q5_0: return body(Groups<5, false>{});
    case Q5_1: return body(Groups<5, true>{});
    case Q4_K: return body(Groups<4, true, 8>{});
    case Q5_K: return body(Groups<5, true, 8>{});
    case Q6_K: return body(Groups<6, false, 8, 2>{});
    case INT4: return body(Groups<4, true>{});
    default: return body(Groups<8, false>{});
  }
}

// Where step `s` of a group's lanes begins that have at most four bits in a word, and the words of their further bits.
template <class Kind> static inline constexpr int low_words(int s) {
  return 4 * PANEL_WIDTH * (s + (Kind::BITS == 5 ? 1 : Kind::BITS == 6 ? s / 2 + 1 : 0));
}
template <class Kind> static inline constexpr int high_words(int s) {
  return Kind::BITS == 6 ? s / 2 * 3 * 4 * PANEL_WIDTH : 0;
}

// The integers of one row of a group, whose lanes begin at `lanes`.
template <class Kind> static inline void unpack_group(const uint8_t *lanes, int64_t row, uint8_t *out) {
  lanes += 4 * row;
  if constexpr (Kind::BITS == 8) {
    for (int c = 0; c < GROUP; c += 4) std::memcpy(out + c, lanes + c * PANEL_WIDTH, 4);
    return;
  }
  for (int c = 0; c < GROUP; c++) {
    const int s = c / 8, byte = c % 4, size = Kind::BITS - 4;
    out[c] = lanes[low_words<Kind>(s) + byte] >> c / 4 % 2 * 4 & 15;
    if (size > 0) {
      const int place = c % (GROUP / std::max(size, 1)) / 4 * size;
      out[c] |= (lanes[high_words<Kind>(s) + byte] >> place & ((1 << size) - 1)) << 4;
    }
  }
}

// Column `c` of row `r` of a matrix [., k] of floats whose panels are not interleaved.
template <class T> static inline float panel_element(const void *panels, int64_t k, int64_t r, int64_t c) {
  const int64_t panel = r / PANEL_WIDTH, row = r % PANEL_WIDTH;
  constexpr int64_t columns = LANE_COLUMNS<T>;
  const int64_t step = panel * divide_up(k, columns) + c / columns;
  return to_float(static_cast<const T *>(panels)[(step * PANEL_WIDTH + row) * columns + c % columns]);
}

}  // namespace quire
