// The inner loops of matrix products: a tile is a few rows of activations times a few vectors of output columns.
//
// All sums of a tile stay in registers while it walks along k. A column's products are always added in the order of k,
// in one chain, whatever the tile's shape: a row's result has the same bits in any batch.
//
// The accumulator arrays live in registers only if every loop over them is unrolled and they never leave the function.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "panels.h"
#include "record.h"
#include "simd.h"

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

namespace quire {

constexpr int VECTORS_PER_PANEL = PANEL_WIDTH / LANES;

// Two vectors of columns by this many rows fill the registers: of AVX-512, 24 sums of 32; of AVX2, 8 of 16.
constexpr int MAX_TILE_ROWS = LANES == 16 ? 12 : 4;
constexpr int TILE_VECTORS = 2;

// One or two rows would wait for each sum's latency; twice the columns hide it. They may belong to two panels.
constexpr int MAX_WIDE_ROWS = 2;
constexpr int WIDE_VECTORS = 4;
constexpr int WIDE_PANELS = WIDE_VECTORS / VECTORS_PER_PANEL;

// Tiles of fewer rows ask for no memory ahead. They are limited by memory, and the hardware's own prefetching is best:
// asking for the next panel costs 3 to 5 rows 25 %. More rows take longer to multiply than to fetch. With AVX2 a tile
// takes every second cache line, which the hardware does not see through.
constexpr int MIN_PREFETCH_ROWS = LANES == 16 ? 6 : 3;

// Wide tiles read two streams. Asking for both a little ahead, in turn, lets the hardware's prefetching run in both at
// once: 15-40 % faster on Intel's processors, to which those with AMX belong. On Zen 5 bfloat16 takes 1-3 % longer so, and
// quantized panels 4-15 % less.
#ifdef QUIRE_AMX
constexpr int64_t NEAR_BYTES = 2048, NEAR_GROUPED_BYTES = 2048;
#else
constexpr int64_t NEAR_BYTES = 0, NEAR_GROUPED_BYTES = LANES == 16 ? 4096 : 0;  // with AVX2 there is one stream
#endif
template <int VECTORS, int BYTES, int64_t NEAR = NEAR_BYTES>
static inline void prefetch_streams(const uint8_t *p, int64_t far_bytes) {
  if (NEAR == 0 || VECTORS < WIDE_VECTORS) return;
  UNROLL for (int i = 0; i < BYTES; i += 64) {
    prefetch_near(p + NEAR + i);
    prefetch_near(p + far_bytes + NEAR + i);
  }
}

// Memory to pull into L2 while a tile runs, some of it at each step. `stride` 0: the same lines again and again.
struct Prefetch {
  const uint8_t *next;
  int64_t stride;
  template <int LINES> void step() {
    UNROLL for (int i = 0; i < LINES; i++) prefetch(next + 64 * i);
    next += stride;
  }
};

// What a tile multiplies.
struct TileInput {
  const uint8_t *panel;
  int64_t far_bytes;    // to the second panel of a wide tile
  int64_t num_steps;    // along k
  int first_lane;       // of the panel's 32
  const uint8_t *x;     // the first row
  int64_t x_stride;     // bytes
  const QuantizedGroup *groups;  // of quantized weights: the first row's
  int64_t num_groups;
  Prefetch prefetch;
};

// Where a tile leaves the sums of one panel.
struct TileOutput {
  float *data;
  int64_t stride;
  // The same from another lane on.
  TileOutput from(int lane) const { return {data + lane, stride}; }
  // The same from another row on.
  TileOutput below(int64_t num_rows) const { return {data + num_rows * stride, stride}; }
  float *row(int64_t i) const { return data + i * stride; }
  void put(int64_t i, int lane, Floats sum) const { store(row(i) + lane, sum); }
};

// `outs`: one for each panel of the tile.
using Tile = void (*)(const TileInput &, const TileOutput *outs);

// The lanes of a tile's rows at one place along k. Every third row has a pointer: the processor reaches the two rows
// behind it by adding the stride once or twice, and the compiler runs out of registers if it keeps an offset for each.
template <int ROWS> struct RowPointers {
  const uint8_t *every_third[(ROWS + 2) / 3];
  int64_t stride;
  RowPointers(const uint8_t *first, int64_t stride) : stride(stride) {
    UNROLL for (int i = 0; i < (ROWS + 2) / 3; i++) every_third[i] = first + 3 * i * stride;
  }
  Ints broadcast(int row, int64_t offset) const {
    int32_t lane;
    std::memcpy(&lane, every_third[row / 3] + offset + row % 3 * stride, sizeof lane);
    return all_ints(lane);
  }
  void advance(int64_t bytes) {
    UNROLL for (int i = 0; i < (ROWS + 2) / 3; i++) every_third[i] += bytes;
  }
};

// --- How each type of panel multiplies one vector of lanes with one lane of activations ----------------------------

struct Float32Lanes {
  using Sum = Floats;
  static constexpr int BYTES = 4;
  static Sum zero() { return zeros(); }
  static Floats load(const uint8_t *p) { return quire::load(reinterpret_cast<const float *>(p)); }
  static Sum add_product(Sum sum, Floats w, Ints x) { return fma(w, as_floats(x), sum); }
};

struct Float16Lanes {
  using Sum = Floats;
  static constexpr int BYTES = 2;
  static Sum zero() { return zeros(); }
  static Floats load(const uint8_t *p) { return quire::load(reinterpret_cast<const f16 *>(p)); }
  static Sum add_product(Sum sum, Floats w, Ints x) { return fma(w, as_floats(x), sum); }
};

struct BFloat16Lanes {
  using Sum = Floats;
  static constexpr int BYTES = 4;
  static Sum zero() { return zeros(); }
  static Ints load(const uint8_t *p) { return load_ints(p); }
  static Sum add_product(Sum sum, Ints w, Ints x) { return dot_pairs(sum, w, x); }
};

// Where a tile's vector `j` of lanes of that many bytes stands: behind a panel's last vector comes the second panel.
static inline int64_t vector_offset(int j, int64_t far_bytes, int lane_bytes) {
  return j / VECTORS_PER_PANEL * far_bytes + j % VECTORS_PER_PANEL * LANES * lane_bytes;
}

template <int VECTORS, int ROWS> static inline void put_sums(const TileOutput *outs, const Floats (&sum)[VECTORS][ROWS]) {
  UNROLL for (int j = 0; j < VECTORS; j++) {
    const TileOutput &out = outs[j / VECTORS_PER_PANEL];
    UNROLL for (int row = 0; row < ROWS; row++) out.put(row, j % VECTORS_PER_PANEL * LANES, sum[j][row]);
  }
}

template <class Lanes, int VECTORS, int ROWS> static void multiply_tile(const TileInput &in, const TileOutput *outs) {
  typename Lanes::Sum sum[VECTORS][ROWS];
  UNROLL for (int j = 0; j < VECTORS; j++) {
    UNROLL for (int row = 0; row < ROWS; row++) sum[j][row] = Lanes::zero();
  }
  const uint8_t *weights = in.panel + in.first_lane * Lanes::BYTES;
  RowPointers<ROWS> rows(in.x, in.x_stride);
  Prefetch prefetch = in.prefetch;
  for (int64_t step = 0; step < in.num_steps; step++) {
    if (ROWS >= MIN_PREFETCH_ROWS) prefetch.step<2>();
    prefetch_streams<VECTORS, PANEL_WIDTH * Lanes::BYTES>(weights, in.far_bytes);
    decltype(Lanes::load(weights)) w[VECTORS];
    UNROLL for (int j = 0; j < VECTORS; j++) w[j] = Lanes::load(weights + vector_offset(j, in.far_bytes, Lanes::BYTES));
    UNROLL for (int row = 0; row < ROWS; row++) {
      const Ints x = rows.broadcast(row, 0);
      UNROLL for (int j = 0; j < VECTORS; j++) sum[j][row] = Lanes::add_product(sum[j][row], w[j], x);
    }
    weights += PANEL_WIDTH * Lanes::BYTES;
    rows.advance(4);
  }
  put_sums(outs, sum);
}

// --- The tile functions of each type ------------------------------------------------------------------------------

// How a tile of `Lanes` is multiplied. Types that are multiplied in another way specialize it.
template <class Lanes> struct Multiply {
  static constexpr int MAX_ROWS = MAX_TILE_ROWS;
  static constexpr bool ASKS_AHEAD = false;  // whether a tile alone with its panels asks for what it reads soon
  template <int VECTORS, int ROWS> static constexpr Tile tile() { return multiply_tile<Lanes, VECTORS, ROWS>; }
};

template <class Lanes, int VECTORS, int... ROWS>
constexpr std::array<Tile, sizeof...(ROWS)> tile_functions(std::integer_sequence<int, ROWS...>) {
  return {Multiply<Lanes>::template tile<VECTORS, ROWS + 1>()...};
}

// By number of rows - 1. Not members: those would be one for all libraries that a process has loaded.
template <class Lanes>
constexpr int MAX_ROWS = Multiply<Lanes>::MAX_ROWS;
template <class Lanes>
constexpr auto TILES = tile_functions<Lanes, TILE_VECTORS>(std::make_integer_sequence<int, MAX_ROWS<Lanes>>());
template <class Lanes>
constexpr auto WIDE_TILES = tile_functions<Lanes, WIDE_VECTORS>(std::make_integer_sequence<int, MAX_WIDE_ROWS>());

// Multiplies tiles of a panel, or of two panels if there are few rows, with vector instructions.
template <class Lanes> struct VectorTiles {
  static constexpr int MAX_ROWS = quire::MAX_ROWS<Lanes>, PART_ROWS = MAX_ROWS, WIDE_ROWS = MAX_WIDE_ROWS;
  static constexpr int MIN_OWN_TILES = 6;  // of one thread, that make reading all panels worth while
  static constexpr bool ASKS_FOR_OUT = true;  // whether results go to memory that was asked for before
  static constexpr bool ASKS_AHEAD = Multiply<Lanes>::ASKS_AHEAD;

  void multiply(int64_t num_rows, TileInput in, const TileOutput &out) const {
    for (int lane = 0; lane < PANEL_WIDTH; lane += TILE_VECTORS * LANES) {
      in.first_lane = lane;
      const TileOutput part = out.from(lane);
      TILES<Lanes>[num_rows - 1](in, &part);
    }
  }
  void multiply_wide(int64_t num_rows, const TileInput &in, const TileOutput *outs) const {
    WIDE_TILES<Lanes>[num_rows - 1](in, outs);
  }
};

}  // namespace quire
