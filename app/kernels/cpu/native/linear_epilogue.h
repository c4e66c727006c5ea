// What follows a product: sums of one panel get their bias, are gated, and are written to the output.
#pragma once

#include <cstdint>

#include "activation.h"
#include "linear_tiles.h"
#include "panels.h"
#include "record.h"
#include "simd.h"

namespace quire {

constexpr int HALF_PANEL = PANEL_WIDTH / 2;

static inline void add_bias(TileOutput sums, int64_t num_rows, const float *biases) {
  for (int lane = 0; lane < PANEL_WIDTH; lane += LANES) {
    const Floats bias = load(biases + lane);
    for (int64_t i = 0; i < num_rows; i++) store(sums.row(i) + lane, load(sums.row(i) + lane) + bias);
  }
}

// The first half of the lanes becomes activation(gate) * up.
static inline void gate(TileOutput sums, int64_t num_rows, int32_t activation) {
  with_activation(activation, [&](auto activate) {
    for (int64_t i = 0; i < num_rows; i++) {
      for (int lane = 0; lane < HALF_PANEL; lane += LANES) {
        float *value = sums.row(i) + lane;
        store(value, activate(load(value)) * load(value + HALF_PANEL));
      }
    }
  });
}

// Stores or adds the first WIDTH lanes of `sums`; only `num_columns` of them are columns of the matrix.
template <class T, int WIDTH, bool IS_ADDED>
static void put_columns(TileOutput sums, int64_t num_rows, T *out, int64_t stride, int64_t num_columns) {
  for (int64_t i = 0; i < num_rows; i++, out += stride) {
    const float *row = sums.row(i);
    for (int lane = 0; lane < WIDTH; lane += LANES) {
      const int64_t count = num_columns - lane;
      if (count >= LANES) {
        store(out + lane, IS_ADDED ? load(out + lane) + load(row + lane) : load(row + lane));
      } else if (count > 0) {
        store_part(out + lane, IS_ADDED ? load_part(out + lane, count) + load(row + lane) : load(row + lane), count);
      }
    }
  }
}

template <class T, bool IS_ADDED>
static void put_panel(const Linear &linear, TileOutput sums, int64_t num_rows, int64_t panel, int64_t first_row) {
  const int64_t n = linear.weight.n, stride = linear.out.stride;
  T *out = static_cast<T *>(linear.out.data) + first_row * stride;
  if (!linear.weight.is_interleaved) {
    const int64_t column = panel * PANEL_WIDTH;
    return put_columns<T, PANEL_WIDTH, IS_ADDED>(sums, num_rows, out + column, stride, n - column);
  }
  const int64_t column = panel * HALF_PANEL, num_columns = n / 2 - column;
  put_columns<T, HALF_PANEL, IS_ADDED>(sums, num_rows, out + column, stride, num_columns);
  if (linear.epilogue == GATED) return;
  sums.data += HALF_PANEL;
  put_columns<T, HALF_PANEL, IS_ADDED>(sums, num_rows, out + n / 2 + column, stride, num_columns);
}

// Whether the sums of a panel can go to `out` at once, because nothing but a bias is still to come.
static inline bool can_sum_in_place(const Linear &linear, int64_t panel) {
  const bool is_stored = linear.epilogue == STORE && linear.out.type == FLOAT32 && !linear.weight.is_interleaved;
  return is_stored && (panel + 1) * PANEL_WIDTH <= linear.weight.n;
}

// Asks for the memory that a panel's results will be written to. Without, 32 rows and more take 3-15 % longer; few rows,
// which are limited by reading, would only be disturbed.
static inline void prefetch_out(const Linear &linear, int64_t num_rows, int64_t panel, int64_t first_row) {
  const int width = linear.weight.is_interleaved ? HALF_PANEL : PANEL_WIDTH;
  const int64_t size = linear.out.type == BFLOAT16 ? 2 : 4;
  const char *row = static_cast<const char *>(linear.out.data) + (first_row * linear.out.stride + panel * width) * size;
  for (int64_t i = 0; i < num_rows; i++, row += linear.out.stride * size) {
    // In assembly for the reason of `prefetch`.
    asm volatile("prefetchw %0" ::"m"(*row));
    asm volatile("prefetchw %0" ::"m"(row[width * size - 1]));
  }
}

// Finishes rows `first_row` and following of one panel.
static inline void finish(const Linear &linear, TileOutput sums, int64_t num_rows, int64_t panel, int64_t first_row) {
  if (linear.weight.bias) add_bias(sums, num_rows, linear.weight.bias + panel * PANEL_WIDTH);
  if (can_sum_in_place(linear, panel)) return;
  if (linear.epilogue == GATED) gate(sums, num_rows, linear.activation);
  if (linear.out.type == BFLOAT16) {
    put_panel<bf16, false>(linear, sums, num_rows, panel, first_row);
  } else if (linear.epilogue == ACCUMULATE) {
    put_panel<float, true>(linear, sums, num_rows, panel, first_row);
  } else {
    put_panel<float, false>(linear, sums, num_rows, panel, first_row);
  }
}

}  // namespace quire
