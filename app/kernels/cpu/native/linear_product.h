// A matrix product by one thread of the team: which tiles are its own, and in which order it multiplies them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "linear_epilogue.h"
#include "linear_tiles.h"
#include "record.h"

namespace quire {

// Of weights that are claimed at once, about: more than claiming them costs, far less than a thread's part.
constexpr int64_t PIECE_BYTES = 64 << 10;

// A piece of `count` neighbouring panels from `first` on: the `index`-th one, of `size` panels. The last one may have
// fewer; all have as many as a wide tile takes, or a multiple.
struct Piece {
  int64_t first, count, size, index;
};

// The panels of a piece, and of how many pieces some panels consist.
static inline int64_t piece_size(int64_t panel_bytes, int64_t bytes) {
  return WIDE_PANELS * std::max<int64_t>(1, bytes / (WIDE_PANELS * panel_bytes));
}
static inline int64_t num_pieces(int64_t count, int64_t size) { return divide_up(count, size); }

// As `linear`, for a piece; one thread.
void linear_piece(const Linear &, int64_t num_rows, Piece);

struct Shape {
  int64_t num_steps, panel_bytes;
};

static inline Shape shape_of(const Packed &w) {
  if (w.type > BFLOAT16) {
    const int64_t num_groups = divide_up(w.k, GROUP);
    return with_kind(w.type, [&](auto kind) -> Shape {
      return {num_groups * GROUP_STEPS, divide_up(num_groups, kind.BLOCK_GROUPS) * kind.BLOCK_BYTES};
    });
  }
  const int64_t lane_bytes = w.type == FLOAT16 ? 2 : 4;
  const int64_t num_steps = divide_up(w.k, w.type == BFLOAT16 ? 2 : 1);
  return {num_steps, num_steps * PANEL_WIDTH * lane_bytes};
}

// `Tiles` multiplies a tile: MAX_ROWS rows by one panel, or WIDE_ROWS by WIDE_PANELS; 0: never so few.
//
// The work is cut into units, a tile of rows by a panel of output columns. A panel is read from memory once and stays in
// the cache for all tiles of rows. The threads' lists have equally many units; with many rows each is of rows of its own
// instead, which then stay in its owner's cache from one operation to the next.
template <class Tiles> class Product {
 public:
  Product(const Linear &linear, int64_t num_rows)
      : linear(linear),
        num_rows(num_rows),
        num_tiles(divide_up(num_rows, Tiles::MAX_ROWS)),
        shape(shape_of(linear.weight)) {
    if (linear.weight.type > BFLOAT16) {
      x = reinterpret_cast<const uint8_t *>(linear.quantized.data);
      x_stride = linear.quantized.stride;
    } else {
      x = static_cast<const uint8_t *>(linear.x.data);
      x_stride = linear.x.stride * (linear.x.type == FLOAT32 ? 4 : 2);
    }
  }

  // Multiplies a piece, without the team.
  void run(Piece piece) {
    if constexpr (Tiles::WIDE_ROWS > 0) {
      if (num_rows <= Tiles::WIDE_ROWS) return multiply_wide(piece);
    }
    const int64_t begin = piece.index * piece.size, end = std::min(begin + piece.size, piece.count);
    for (int64_t i = begin; i < end; i++) {
      const bool has_next = i + 1 < piece.count;
      for (int64_t tile = 0; tile < num_tiles; tile++) multiply(piece.first + i, tile, {tile, num_tiles, has_next});
    }
  }

  void run(Worker worker) {
    const int64_t panels = num_panels(linear.weight);
    if constexpr (Tiles::WIDE_ROWS > 0) {
      if (num_rows <= Tiles::WIDE_ROWS) return run_wide(worker, panels);
    }
    if (num_tiles >= Tiles::MIN_OWN_TILES * worker.count) run_tiles(worker, panels);
    else run_units(worker, panels * num_tiles);
  }

 private:
  // A list is all panels; a piece, the tiles of its owner.
  void run_tiles(Worker worker, int64_t panels) {
    worker.each_piece([panels](int) { return panels; }, [&](int owner, int64_t panel) {
      const int64_t begin = worker.begin(num_tiles, owner), end = worker.end(num_tiles, owner);
      const bool has_next = owner == worker.index && panel + 1 < panels;
      for (int64_t tile = begin; tile < end; tile++) multiply(panel, tile, {tile - begin, end - begin, has_next});
    });
  }

  // Units are counted tile by tile, panel after panel. A piece is as many as a panel has.
  void run_units(Worker worker, int64_t units) {
    const auto length = [&](int owner) {
      return divide_up(worker.end(units, owner) - worker.begin(units, owner), num_tiles);
    };
    worker.each_piece(length, [&](int owner, int64_t piece) {
      const int64_t begin = worker.begin(units, owner) + piece * num_tiles, last = worker.end(units, owner);
      for (int64_t unit = begin; unit < std::min(begin + num_tiles, last); unit++) {
        const bool has_next = owner == worker.index && unit + num_tiles < last;
        multiply(unit / num_tiles, unit % num_tiles, {unit % num_tiles, num_tiles, has_next});
      }
    });
  }

  void run_wide(Worker worker, int64_t panels) {
    const int64_t size = piece_size(shape.panel_bytes, PIECE_BYTES);
    const auto count = [&](int owner) { return worker.end(panels, owner) - worker.begin(panels, owner); };
    worker.each_piece([&](int owner) { return num_pieces(count(owner), size); }, [&](int owner, int64_t index) {
      multiply_wide({worker.begin(panels, owner), count(owner), size, index});
    });
  }

  // A wide tile takes one panel of each half of the panels: either half is one long stream of memory, as the hardware's
  // prefetching likes it. Neighbouring panels instead would be new streams each time (7-20 % slower, INT4 70 %). A panel
  // that is left over comes last.
  void multiply_wide(Piece piece) {
    const int64_t half = piece.count / WIDE_PANELS, size = piece.size / WIDE_PANELS, begin = piece.index * size;
    for (int64_t i = begin; i < std::min(half, begin + size); i++) multiply_wide(piece.first + i, half);
    const bool is_last = (piece.index + 1) * piece.size >= piece.count;
    if (is_last && half * WIDE_PANELS < piece.count) multiply(piece.first + piece.count - 1, 0, {0, 1, false});
  }

  // Tiles consist of parts of nearly equal size.
  int64_t first_row(int64_t tile) const {
    const int64_t num_parts = divide_up(num_rows, Tiles::PART_ROWS);
    return num_rows * (num_parts * tile / num_tiles) / num_parts;
  }

  TileInput input(int64_t panel) const {
    const uint8_t *weights = static_cast<const uint8_t *>(linear.weight.panels) + panel * shape.panel_bytes;
    const Quantized &quantized = linear.quantized;
    return {weights, 0, shape.num_steps, 0, x, x_stride, quantized.groups, quantized.num_groups, {x, 0}};
  }

  // Where a panel's sums go: to scratch memory, or to `out`.
  TileOutput output(float *scratch, int64_t panel, int64_t first_row) const {
    TileOutput out = {scratch, PANEL_WIDTH};
    if (can_sum_in_place(linear, panel)) {
      out.stride = linear.out.stride;
      out.data = static_cast<float *>(linear.out.data) + first_row * out.stride + panel * PANEL_WIDTH;
    }
    return out;
  }

  // Panels `panel` and, if a wide tile takes two, `panel + distance`.
  void multiply_wide(int64_t panel, int64_t distance) {
    alignas(64) float scratch[WIDE_PANELS][Tiles::WIDE_ROWS * PANEL_WIDTH];
    TileOutput outs[WIDE_PANELS];
    for (int i = 0; i < WIDE_PANELS; i++) outs[i] = output(scratch[i], panel + i * distance, 0);
    TileInput in = input(panel);
    in.far_bytes = distance * shape.panel_bytes;
    tiles.multiply_wide(num_rows, in, outs);
    for (int i = 0; i < WIDE_PANELS; i++) finish(linear, outs[i], num_rows, panel + i * distance, 0);
  }

  // A tile's turn among those that this thread multiplies with one panel, and whether another panel follows.
  struct Turn {
    int64_t index, count;
    bool has_next;
  };

  void multiply(int64_t panel, int64_t tile, Turn turn) {
    const int64_t first = first_row(tile), count = first_row(tile + 1) - first;
    const TileOutput out = output(scratch, panel, first);
    TileInput in = input(panel);
    in.x += first * x_stride;
    in.groups += first * in.num_groups;
    if (turn.has_next && (turn.count > 1 || !Tiles::ASKS_AHEAD)) {
      // Each tile asks for its part of the next panel.
      in.prefetch.stride = divide_up(shape.panel_bytes, turn.count * shape.num_steps);
      in.prefetch.next = in.panel + shape.panel_bytes + turn.index * shape.num_steps * in.prefetch.stride;
    }
    if (Tiles::ASKS_FOR_OUT && num_tiles > 1) prefetch_out(linear, count, panel, first);
    tiles.multiply(count, in, out);
    finish(linear, out, count, panel, first);
  }

  const Linear &linear;
  const int64_t num_rows, num_tiles;
  const Shape shape;
  const uint8_t *x;
  int64_t x_stride;
  Tiles tiles;
  alignas(64) float scratch[Tiles::MAX_ROWS * PANEL_WIDTH];
};

// Products with quantized panels, by the bytes of their activations.
void multiply_bytes(const Linear &, int64_t num_rows, Worker);
void multiply_words(const Linear &, int64_t num_rows, Worker);
void multiply_bytes(const Linear &, int64_t num_rows, Piece);
void multiply_words(const Linear &, int64_t num_rows, Piece);

}  // namespace quire
