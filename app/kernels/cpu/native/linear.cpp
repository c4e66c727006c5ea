// Matrix products with packed weights: out = x · weightᵀ + bias, and what is fused behind it.
//
// The work is cut into units, a tile of rows by a panel of output columns, which the threads share evenly. A panel is
// read from memory once and stays in the cache for all tiles of rows.
#include "linear_epilogue.h"
#include "linear_tiles.h"
#include "record.h"

namespace quire {
namespace {

struct Shape {
  int64_t num_steps, group_steps, panel_bytes;
};

Shape shape_of(const Packed &w) {
  if (w.type == INT4) {
    const int64_t group_steps = w.group / INT4_LANE_COLUMNS;
    const int64_t group_bytes = INT4_RATIO_BYTES + group_steps * PANEL_WIDTH * 4;
    return {divide_up(w.k, INT4_LANE_COLUMNS), group_steps, divide_up(w.k, w.group) * group_bytes};
  }
  const int64_t lane_columns = w.type == INT8 ? 4 : w.type == BFLOAT16 ? 2 : 1;
  const int64_t lane_bytes = w.type == FLOAT16 ? 2 : 4;
  const int64_t num_steps = divide_up(w.k, lane_columns);
  return {num_steps, 0, num_steps * PANEL_WIDTH * lane_bytes};
}

template <class Lanes> class Product {
 public:
  Product(const Linear &linear, int64_t num_rows)
      : linear(linear),
        num_rows(num_rows),
        num_tiles(divide_up(num_rows, MAX_TILE_ROWS)),
        shape(shape_of(linear.weight)) {
    if (linear.weight.type == INT8) {
      x = linear.quantized.data;
      x_stride = linear.quantized.stride;
    } else {
      x = static_cast<const uint8_t *>(linear.x.data);
      x_stride = linear.x.stride * (linear.x.type == FLOAT32 ? 4 : 2);
    }
  }

  // Units are counted tile by tile, panel after panel.
  void run(Worker worker) const {
    const int64_t num_units = num_panels(linear.weight) * num_tiles;
    const int64_t begin = worker.begin(num_units), end = worker.end(num_units);
    if (num_rows <= MAX_WIDE_ROWS) return run_wide(begin, end);
    int64_t panel = begin / num_tiles, tile = begin % num_tiles;
    for (int64_t unit = begin; unit < end; unit++) {
      multiply(panel, tile, unit + num_tiles < end);
      if (++tile == num_tiles) {
        tile = 0;
        panel++;
      }
    }
  }

 private:
  // A wide tile takes one panel of each half of the range: either half is one long stream of memory, as the hardware's
  // prefetching likes it. Neighbouring panels instead would be new streams each time (7-20 % slower, INT4 70 %).
  void run_wide(int64_t begin, int64_t end) const {
    const int64_t num = (end - begin) / WIDE_PANELS;
    for (int64_t panel = begin; panel < begin + num; panel++) multiply_wide(panel, num);
    for (int64_t panel = begin + num * WIDE_PANELS; panel < end; panel++) multiply(panel, 0, false);
  }

  TileInput input(int64_t panel) const {
    const uint8_t *weights = static_cast<const uint8_t *>(linear.weight.panels) + panel * shape.panel_bytes;
    return {weights, 0, shape.num_steps, shape.group_steps, 0, x, x_stride, {x, 0}};
  }

  // Where a panel's sums go: to scratch memory, or to `out`.
  TileOutput output(float *scratch, int64_t panel, int64_t first_row) const {
    const Packed &w = linear.weight;
    const int64_t column = panel * PANEL_WIDTH;
    TileOutput out = {scratch, PANEL_WIDTH, nullptr, nullptr, nullptr};
    if (can_sum_in_place(linear, panel)) {
      out.stride = linear.out.stride;
      out.data = static_cast<float *>(linear.out.data) + first_row * out.stride + column;
    }
    if (w.type == INT8 || w.type == INT4) out.scales = w.scales + column;
    if (w.type == INT8) {
      out.corrections = w.sums + column;
      out.row_scales = linear.quantized.scales + first_row;
    }
    return out;
  }

  // Panels `panel` and, if a wide tile takes two, `panel + distance`.
  void multiply_wide(int64_t panel, int64_t distance) const {
    alignas(64) float scratch[WIDE_PANELS][MAX_WIDE_ROWS * PANEL_WIDTH];
    TileOutput outs[WIDE_PANELS];
    for (int i = 0; i < WIDE_PANELS; i++) outs[i] = output(scratch[i], panel + i * distance, 0);
    TileInput in = input(panel);
    in.far_bytes = distance * shape.panel_bytes;
    WIDE_TILES<Lanes>[num_rows - 1](in, outs);
    for (int i = 0; i < WIDE_PANELS; i++) finish(linear, outs[i], num_rows, panel + i * distance, 0);
  }

  void multiply(int64_t panel, int64_t tile, bool has_next) const {
    alignas(64) float scratch[MAX_TILE_ROWS * PANEL_WIDTH];
    const int64_t first = num_rows * tile / num_tiles, count = num_rows * (tile + 1) / num_tiles - first;
    const TileOutput out = output(scratch, panel, first);
    TileInput in = input(panel);
    in.x += first * x_stride;
    if (has_next) {
      // Each tile asks for its part of the next panel.
      in.prefetch.stride = divide_up(shape.panel_bytes, num_tiles * shape.num_steps);
      in.prefetch.next = in.panel + shape.panel_bytes + tile * shape.num_steps * in.prefetch.stride;
    }
    if (num_tiles > 1) prefetch_out(linear, count, panel, first);
    for (int lane = 0; lane < PANEL_WIDTH; lane += TILE_VECTORS * LANES) {
      in.first_lane = lane;
      const TileOutput part = out.from(lane);
      TILES<Lanes>[count - 1](in, &part);
    }
    finish(linear, out, count, panel, first);
  }

  const Linear &linear;
  const int64_t num_rows, num_tiles;
  const Shape shape;
  const uint8_t *x;
  int64_t x_stride;
};

}  // namespace

void linear(const Linear &linear, int64_t num_rows, Worker worker) {
  if (num_rows == 0) return;
  switch (linear.weight.type) {
    case FLOAT32: return Product<Float32Lanes>(linear, num_rows).run(worker);
    case FLOAT16: return Product<Float16Lanes>(linear, num_rows).run(worker);
    case BFLOAT16: return Product<BFloat16Lanes>(linear, num_rows).run(worker);
    case INT8: return Product<Int8Lanes>(linear, num_rows).run(worker);
    default: return Product<Int4Lanes>(linear, num_rows).run(worker);
  }
}

}  // namespace quire
