// Matrix products with AMX, for bf16 and INT8 panels. The results of bf16 are not the bits of `dot_pairs`, so one kind
// of kernel serves a matrix whatever the number of rows.
#pragma once

#ifdef __AMX_TILE__

#include "amx.h"
#include "linear_tiles.h"

namespace quire {

constexpr int STEPS_BYTES = amx::STEPS * amx::STEP_BYTES;  // of a panel, what is multiplied at once

// Pulls a stretch of memory into L2, a little at each step, from four places at once: the hardware's own prefetching
// then runs ahead in each of them. From one place a panel takes 20 % longer.
class Streams {
 public:
  Streams(const Prefetch &all, int64_t num_steps)
      : next_(all.next),
        span_(divide_up(all.stride * num_steps, NUM * LINE) * LINE),
        num_lines_(divide_up(span_, num_steps / amx::STEPS * LINE)) {}
  void step() {
    for (int64_t i = 0; i < num_lines_; i++, next_ += LINE)
      for (int64_t stream = 0; stream < NUM; stream++) prefetch(next_ + stream * span_);
  }

 private:
  static constexpr int64_t NUM = 4, LINE = 64;
  const uint8_t *next_;
  const int64_t span_, num_lines_;
};

// A tile is up to 32 rows by a panel, or up to 16 by two panels: four registers of sums.
template <class Lanes> class AmxTiles {
 public:
  static constexpr int MAX_ROWS = 2 * amx::ROWS;
  static constexpr int WIDE_ROWS = amx::ROWS;
  static bool can_multiply(int64_t num_steps) { return num_steps % amx::STEPS == 0; }

  ~AmxTiles() { amx::release(); }

  // Registers 0, 1 sum the first 16 rows, 2, 3 the others; 4 and 5 are their activations, 6 and 7 a panel's weights.
  // `meanwhile(n)` is called between the products, to do what is to be done with `n` rows of the tile before.
  template <class Meanwhile>
  void multiply(int64_t num_rows, const TileInput &in, const TileOutput &out, Meanwhile meanwhile) {
    const int64_t first = std::min<int64_t>(num_rows, amx::ROWS), others = num_rows - first;
    if (others == 0) return multiply_few(num_rows, in, out);
    shape(num_rows, [&](amx::Shapes &shapes) {
      shapes.set(0, 8, amx::ROWS);
      shapes.set(2, 4, others);
      shapes.set(5, 6, others);
    });
    amx::clear<0>(), amx::clear<1>(), amx::clear<2>(), amx::clear<3>();
    const uint8_t *weights = in.panel, *x = in.x, *others_x = in.x + amx::ROWS * in.x_stride;
    Streams streams(in.prefetch, in.num_steps);
    const int64_t num_meanwhile = divide_up(MAX_ROWS, in.num_steps / amx::STEPS);
    for (int64_t step = 0; step < in.num_steps; step += amx::STEPS) {
      streams.step();
      amx::load<6>(weights, amx::STEP_BYTES);
      amx::load<4>(x, in.x_stride);
      amx::add_products<0, 4, 6>(Lanes{});
      amx::load<7>(weights + amx::ROW_BYTES, amx::STEP_BYTES);
      amx::add_products<1, 4, 7>(Lanes{});
      amx::load<5>(others_x, in.x_stride);
      amx::add_products<2, 5, 6>(Lanes{});
      amx::add_products<3, 5, 7>(Lanes{});
      meanwhile(num_meanwhile);
      weights += STEPS_BYTES, x += amx::ROW_BYTES, others_x += amx::ROW_BYTES;
    }
    put<0>(out, first, 0), put<1>(out, first, amx::LANES_PER_ROW);
    const TileOutput below = out.below(first);
    put<2>(below, others, 0), put<3>(below, others, amx::LANES_PER_ROW);
  }

  // Registers 0, 1 sum the first panel, 2, 3 the second; 4 is the activations, 5, 6 and 7 weights.
  void multiply_wide(int64_t num_rows, const TileInput &in, const TileOutput *outs) {
    shape_few(num_rows);
    amx::clear<0>(), amx::clear<1>(), amx::clear<2>(), amx::clear<3>();
    const uint8_t *weights = in.panel, *far = in.panel + in.far_bytes, *x = in.x;
    for (int64_t step = 0; step < in.num_steps; step += amx::STEPS) {
      prefetch_streams<WIDE_VECTORS, STEPS_BYTES>(weights, in.far_bytes);
      amx::load<4>(x, in.x_stride);
      amx::load<5>(weights, amx::STEP_BYTES);
      amx::load<6>(weights + amx::ROW_BYTES, amx::STEP_BYTES);
      amx::add_products<0, 4, 5>(Lanes{});
      amx::load<7>(far, amx::STEP_BYTES);
      amx::add_products<1, 4, 6>(Lanes{});
      amx::load<5>(far + amx::ROW_BYTES, amx::STEP_BYTES);
      amx::add_products<2, 4, 7>(Lanes{});
      amx::add_products<3, 4, 5>(Lanes{});
      weights += STEPS_BYTES, far += STEPS_BYTES, x += amx::ROW_BYTES;
    }
    put<0>(outs[0], num_rows, 0), put<1>(outs[0], num_rows, amx::LANES_PER_ROW);
    put<2>(outs[1], num_rows, 0), put<3>(outs[1], num_rows, amx::LANES_PER_ROW);
  }

 private:
  // One panel, up to 16 rows.
  void multiply_few(int64_t num_rows, const TileInput &in, const TileOutput &out) {
    shape_few(num_rows);
    amx::clear<0>(), amx::clear<1>();
    const uint8_t *weights = in.panel, *x = in.x;
    for (int64_t step = 0; step < in.num_steps; step += amx::STEPS) {
      amx::load<4>(x, in.x_stride);
      amx::load<5>(weights, amx::STEP_BYTES);
      amx::load<6>(weights + amx::ROW_BYTES, amx::STEP_BYTES);
      amx::add_products<0, 4, 5>(Lanes{});
      amx::add_products<1, 4, 6>(Lanes{});
      weights += STEPS_BYTES, x += amx::ROW_BYTES;
    }
    put<0>(out, num_rows, 0), put<1>(out, num_rows, amx::LANES_PER_ROW);
  }

  // Registers 0 to 4 have that many rows.
  void shape_few(int64_t num_rows) {
    shape(num_rows, [&](amx::Shapes &shapes) {
      shapes.set(0, 8, amx::ROWS);
      shapes.set(0, 5, num_rows);
    });
  }

  template <class Set> void shape(int64_t num_rows, Set set) {
    if (num_rows == shaped_) return;
    amx::Shapes shapes;
    set(shapes);
    shapes.use();
    shaped_ = num_rows;
  }

  template <int SUMS> static void put(const TileOutput &out, int64_t num_rows, int lane) {
    if constexpr (std::is_same_v<Lanes, Int8Lanes>) {
      Ints sums[amx::ROWS];
      amx::store<SUMS>(sums, amx::ROW_BYTES);
      out.put_scaled(sums, static_cast<int>(num_rows), lane);
    } else {
      amx::store<SUMS>(out.row(0) + lane, out.stride * static_cast<int64_t>(sizeof(float)));
    }
  }

  int64_t shaped_ = 0;  // rows of the tile that the registers have the shapes for
};

}  // namespace quire

#endif
