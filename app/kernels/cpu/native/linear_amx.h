// Matrix products with AMX, for bf16 panels. The results are not the bits of `dot_pairs`, so one kind of kernel serves a
// matrix whatever the number of rows.
#pragma once

#include "amx.h"

#ifdef QUIRE_AMX

#include "linear_tiles.h"

namespace quire {

constexpr int STEP_BYTES = PANEL_WIDTH * 4;
constexpr int STEPS_BYTES = amx::STEPS * STEP_BYTES;  // of a panel, what is multiplied at once

// Pulls a stretch of memory into L2, a little at each step, from four places at once: the hardware's own prefetching
// then runs ahead in each of them. From one place a panel takes 20 % longer.
class Streams {
 public:
  // `step` will be called `num_steps` times.
  Streams(const uint8_t *next, int64_t num_bytes, int64_t num_steps)
      : next_(next),
        span_(divide_up(num_bytes, NUM * LINE) * LINE),
        num_lines_(divide_up(span_, num_steps * LINE)) {}
  void step() {
    for (int64_t i = 0; i < num_lines_; i++, next_ += LINE)
      for (int64_t stream = 0; stream < NUM; stream++) prefetch(next_ + stream * span_);
  }

 private:
  static constexpr int64_t NUM = 4, LINE = 64;
  const uint8_t *next_;
  const int64_t span_, num_lines_;
};

// A tile is up to 128 rows by a panel, of which 32 are multiplied at once, or up to 16 rows by two panels: four
// registers of sums.
//
// A panel and the activations of 32 rows do not fit into L1 together. So a tile goes along k in blocks that do, all its
// rows through one block after the other; between blocks its sums wait in memory. Whole panels take 10-20 % longer, and
// so do tiles of 32 or 256 rows.
class AmxTiles {
 public:
  static constexpr int MAX_ROWS = 8 * amx::ROWS, PART_ROWS = 2 * amx::ROWS, WIDE_ROWS = amx::ROWS;
  static constexpr int MIN_OWN_TILES = 2;
  static constexpr bool ASKS_FOR_OUT = false, ASKS_AHEAD = false;
  static bool can_multiply(int64_t num_steps) { return num_steps % amx::STEPS == 0; }

  ~AmxTiles() { amx::release(); }

  void multiply(int64_t num_rows, const TileInput &in, const TileOutput &out) {
    const int64_t num_steps = in.num_steps / amx::STEPS, num_parts = divide_up(num_rows, PART_ROWS);
    const int64_t part_rows = divide_up(num_rows, num_parts);
    const int64_t num_blocks = num_parts == 1 ? 1 : divide_up(num_steps, BLOCK_STEPS);
    Streams streams(in.prefetch.next, in.prefetch.stride * in.num_steps, num_steps * num_parts);
    for (int64_t block = 0; block < num_blocks; block++) {
      const int64_t begin = num_steps * block / num_blocks, end = num_steps * (block + 1) / num_blocks;
      for (int64_t row = 0; row < num_rows; row += part_rows) {
        Part part{in.panel + begin * STEPS_BYTES, in.x + row * in.x_stride + begin * amx::ROW_BYTES, in.x_stride,
                  end - begin, std::min(part_rows, num_rows - row), out.below(row)};
        part.is_first = block == 0, part.is_last = block == num_blocks - 1;
        multiply_part(part, streams);
      }
    }
  }

  // Registers 0, 1 sum the first panel, 2, 3 the second; 4 is the activations, 5, 6 and 7 weights.
  void multiply_wide(int64_t num_rows, const TileInput &in, const TileOutput *outs) {
    shape_wide(num_rows);
    amx::clear<0>(), amx::clear<1>(), amx::clear<2>(), amx::clear<3>();
    const uint8_t *weights = in.panel, *far = in.panel + in.far_bytes, *x = in.x;
    for (int64_t step = 0; step < in.num_steps; step += amx::STEPS) {
      prefetch_streams<WIDE_VECTORS, STEPS_BYTES>(weights, in.far_bytes);
      amx::load<4>(x, in.x_stride);
      amx::load<5>(weights, STEP_BYTES);
      amx::load<6>(weights + amx::ROW_BYTES, STEP_BYTES);
      amx::add_products<bf16, 0, 4, 5>();
      amx::load<7>(far, STEP_BYTES);
      amx::add_products<bf16, 1, 4, 6>();
      amx::load<5>(far + amx::ROW_BYTES, STEP_BYTES);
      amx::add_products<bf16, 2, 4, 7>();
      amx::add_products<bf16, 3, 4, 5>();
      weights += STEPS_BYTES, far += STEPS_BYTES, x += amx::ROW_BYTES;
    }
    put<0>(outs[0], 0), put<1>(outs[0], amx::LANES_PER_ROW);
    put<2>(outs[1], 0), put<3>(outs[1], amx::LANES_PER_ROW);
  }

 private:
  static constexpr int64_t BLOCK_STEPS = 10;

  // Up to 32 rows of a tile, and a block of a panel.
  struct Part {
    const uint8_t *weights, *x;
    int64_t x_stride, num_steps, num_rows;
    TileOutput out;
    bool is_first = true, is_last = true;
  };

  // Registers 0, 1 sum the first 16 rows, 2, 3 the others; 4 and 5 are their activations, 6 and 7 the panel's weights.
  void multiply_part(Part part, Streams &streams) {
    const int64_t first = std::min<int64_t>(part.num_rows, amx::ROWS), others = part.num_rows - first;
    shape(part.num_rows, [&](amx::Shapes &shapes) {
      shapes.set(0, 8, amx::ROWS);
      if (others == 0) shapes.set(0, 2, first), shapes.set(4, 5, first);
      else shapes.set(2, 4, others), shapes.set(5, 6, others);
    });
    const TileOutput below = part.out.below(first);
    begin<0, 1>(part, part.out);
    if (others > 0) begin<2, 3>(part, below);
    const uint8_t *others_x = part.x + amx::ROWS * part.x_stride;
    for (int64_t step = 0; step < part.num_steps; step++) {
      streams.step();
      amx::load<6>(part.weights, STEP_BYTES);
      amx::load<4>(part.x, part.x_stride);
      amx::add_products<bf16, 0, 4, 6>();
      amx::load<7>(part.weights + amx::ROW_BYTES, STEP_BYTES);
      amx::add_products<bf16, 1, 4, 7>();
      if (others > 0) {
        amx::load<5>(others_x, part.x_stride);
        amx::add_products<bf16, 2, 5, 6>();
        amx::add_products<bf16, 3, 5, 7>();
      }
      part.weights += STEPS_BYTES, part.x += amx::ROW_BYTES, others_x += amx::ROW_BYTES;
    }
    end<0, 1>(part, part.out);
    if (others > 0) end<2, 3>(part, below);
  }

  // The sums of some rows: none yet, or those of the blocks before.
  template <int LEFT, int RIGHT> static void begin(const Part &part, const TileOutput &out) {
    if (part.is_first) return amx::clear<LEFT>(), amx::clear<RIGHT>();
    amx::load<LEFT>(out.row(0), stride_of(out));
    amx::load<RIGHT>(out.row(0) + amx::LANES_PER_ROW, stride_of(out));
  }

  template <int LEFT, int RIGHT> static void end(const Part &part, const TileOutput &out) {
    if (part.is_last) return put<LEFT>(out, 0), put<RIGHT>(out, amx::LANES_PER_ROW);
    amx::store<LEFT>(out.row(0), stride_of(out));
    amx::store<RIGHT>(out.row(0) + amx::LANES_PER_ROW, stride_of(out));
  }

  static int64_t stride_of(const TileOutput &out) { return out.stride * static_cast<int64_t>(sizeof(float)); }

  // Registers 0 to 4 have that many rows.
  void shape_wide(int64_t num_rows) {
    shape(-num_rows, [&](amx::Shapes &shapes) {
      shapes.set(0, 8, amx::ROWS);
      shapes.set(0, 5, num_rows);
    });
  }

  template <class Set> void shape(int64_t kind, Set set) {
    if (kind == shaped_) return;
    amx::Shapes shapes;
    set(shapes);
    shapes.use();
    shaped_ = kind;
  }

  template <int SUMS> static void put(const TileOutput &out, int lane) {
    amx::store<SUMS>(out.row(0) + lane, stride_of(out));
  }

  int64_t shaped_ = 0;  // what the registers have the shapes for: rows of a part, or -rows of a wide tile
};

}  // namespace quire

#endif
