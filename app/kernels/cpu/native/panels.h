// How a matrix [n, k] lies packed in memory: panels of 32 output rows, one after the other; written by packing.py.
//
// A panel is a list of steps along k. A step holds the same columns of all 32 rows, side by side in 32 lanes, so that
// one vector instruction multiplies LANES output rows with one activation lane that is broadcast to them: no sums
// across lanes, one linear stream of memory. Rows and columns that the matrix lacks are zeros.
//
//   FLOAT32   [panels][k][32]           a lane is one column
//   FLOAT16   [panels][k][32]           likewise, 16 bits wide
//   BFLOAT16  [panels][k / 2][32][2]    a lane is two columns
//   INT8      [panels][k / 4][32][4]    four columns
//   INT4      [panels][groups]{ bf16 ratios[32]; uint32 lanes[group / 8][32] }    eight columns, of one group of k
//
// INT8 and INT4 rows have a scale: of the whole row, or of its last group. The other groups' scales follow from it: a
// group's scale times its ratio is the scale of the group before. In an INT4 lane, bits 4q to 4q + 3 hold column 2q and
// bits 16 + 4q to 16 + 4q + 3 column 2q + 1, signed.
//
// Interleaved panels hold rows 16 p to 16 p + 15 of the matrix' first half (gate), then the same ones of its second half
// (up). Scales, sums and biases follow the panels' order and fill whole panels.
#pragma once

#include <cstdint>

#include "record.h"
#include "simd.h"

namespace quire {

constexpr int PANEL_WIDTH = 32;  // output rows of a panel

static inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static inline int64_t num_panels(const Packed &w) {
  return w.is_interleaved ? divide_up(w.n / 2, PANEL_WIDTH / 2) : divide_up(w.n, PANEL_WIDTH);
}

// Columns in one lane of a panel of T.
template <class T> constexpr int LANE_COLUMNS = 1;
template <> inline constexpr int LANE_COLUMNS<bf16> = 2;

// Column `c` of row `r` of a matrix [., k] of T (float, f16 or bf16) whose panels are not interleaved.
template <class T> static inline T panel_element(const void *panels, int64_t k, int64_t r, int64_t c) {
  constexpr int64_t columns = LANE_COLUMNS<T>;
  const int64_t step = r / PANEL_WIDTH * divide_up(k, columns) + c / columns;
  return static_cast<const T *>(panels)[(step * PANEL_WIDTH + r % PANEL_WIDTH) * columns + c % columns];
}

}  // namespace quire
