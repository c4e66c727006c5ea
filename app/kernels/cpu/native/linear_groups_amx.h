// Products of many rows with quantized panels, with AMX: the bits of linear_groups.h, so the number of rows chooses.
//
// The integers of a group are decoded to bytes with a sign, once for all rows of a tile. A register of weights holds 16
// lanes of a group, or of the half of one that has scales of its own: a product ends where integers are scaled. Its sums
// go to memory, from where vectors add them to the totals, with the same operations in the same order as there.
#pragma once

#include "amx.h"

#ifdef QUIRE_AMX

#include <algorithm>
#include <cstdint>

#include "decoded_groups.h"
#include "linear_amx.h"

namespace quire {

// Of one row of activations, or of its two planes, 16 lanes take 4 or 8 dot products of two cycles with vectors. A
// register of 16 rows takes 16 cycles, and its decoding has to be worth while.
constexpr int64_t MIN_AMX_GROUPED_ROWS = 16;

// Bytes with a sign. Without minimums weights are stored too high by their zero.
template <class Kind> struct SignedBytes {
  static constexpr int WORDS = 1;
  static void put(Ints bytes, uint8_t *out) {
    if constexpr (!Kind::HAS_MINIMUMS)
      bytes = _mm512_sub_epi8(bytes, _mm512_set1_epi8(static_cast<char>(1 << Kind::ZERO_SHIFT)));
    store_ints(out, bytes);
  }
};

// A tile is up to 128 rows by a panel, of which 16 are multiplied at once: by a few groups, then their sums are scaled.
// The sums, those groups and the rows' activations fit into L1 together. Between groups the totals wait in `out`.
template <class Kind, int PLANES> class AmxGroupTiles {
 public:
  static constexpr int MAX_ROWS = 8 * amx::ROWS, PART_ROWS = amx::ROWS, WIDE_ROWS = 0;
  static constexpr int MIN_OWN_TILES = 2;
  static constexpr bool ASKS_FOR_OUT = false, ASKS_AHEAD = false;

  ~AmxGroupTiles() { amx::release(); }

  void multiply(int64_t num_rows, const TileInput &in, const TileOutput &out) {
    const int64_t num_parts = divide_up(num_rows, PART_ROWS), part_rows = divide_up(num_rows, num_parts);
    Streams streams(in.prefetch.next, in.prefetch.stride * in.num_steps, in.num_groups * num_parts);
    for (int64_t first = 0; first < in.num_groups; first += Decoded::NUM) {
      const int count = static_cast<int>(std::min<int64_t>(Decoded::NUM, in.num_groups - first));
      for (int i = 0; i < count; i++) decoded.decode(in, first + i, i);
      for (int64_t row = 0; row < num_rows; row += part_rows) {
        const int64_t rows = std::min(part_rows, num_rows - row);
        multiply_part(in.x + row * in.x_stride + first * PLANES * GROUP, in.x_stride, rows, count, streams);
        for (int64_t i = 0; i < rows; i++)
          add_to_totals(i, in.groups + (row + i) * in.num_groups + first, count, out.row(row + i), first == 0);
      }
    }
  }

 private:
  using Decoded = DecodedGroups<Kind, SignedBytes<Kind>, 4>;
  static constexpr int PART_BYTES = GROUP / Kind::PARTS;  // of a row, what is summed before it is scaled
  static constexpr int SUMS_STRIDE = PANEL_WIDTH * sizeof(int32_t);

  // Registers 0 and 1 sum the left and the right lanes, of the second plane 2 and 3; 4 and 5 are the activations of the
  // planes, 6 and 7 weights.
  void multiply_part(const uint8_t *x, int64_t x_stride, int64_t num_rows, int count, Streams &streams) {
    shape(num_rows);
    for (int i = 0; i < count; i++, x += PLANES * GROUP) {
      streams.step();
      for (int part = 0; part < Kind::PARTS; part++) {
        const uint8_t *weights = decoded.words[i] + part * (PART_BYTES / 4) * Decoded::WORD_BYTES;
        amx::load<6>(weights, Decoded::WORD_BYTES);
        amx::load<7>(weights + amx::ROW_BYTES, Decoded::WORD_BYTES);
        multiply_plane<0, 1, 4>(x + part * PART_BYTES, x_stride, sums[i][part][0]);
        if constexpr (PLANES == 2) multiply_plane<2, 3, 5>(x + GROUP + part * PART_BYTES, x_stride, sums[i][part][1]);
      }
    }
  }

  template <int LEFT, int RIGHT, int X>
  static void multiply_plane(const uint8_t *x, int64_t x_stride, int32_t (*out)[PANEL_WIDTH]) {
    amx::load<X>(x, x_stride);
    amx::clear<LEFT>(), amx::clear<RIGHT>();
    amx::add_products<int8_t, LEFT, X, 6>();
    amx::add_products<int8_t, RIGHT, X, 7>();
    amx::store<LEFT>(out, SUMS_STRIDE);
    amx::store<RIGHT>(out[0] + amx::LANES_PER_ROW, SUMS_STRIDE);
  }

  // Adds the sums of row `row` of the part, whose activations have the factors `x`.
  void add_to_totals(int64_t row, const QuantizedGroup *x, int count, float *out, bool is_first) const {
    Floats total[VECTORS_PER_PANEL];
    UNROLL for (int j = 0; j < VECTORS_PER_PANEL; j++) total[j] = is_first ? zeros() : load(out + j * LANES);
    for (int i = 0; i < count; i++) {
      const Floats x_scale = all(x[i].scale), x_sum = all(x[i].sum);
      UNROLL for (int j = 0; j < VECTORS_PER_PANEL; j++) {
        Floats first_part = zeros();
        UNROLL for (int part = 0; part < Kind::PARTS; part++) {
          Ints sum = load_ints(sums[i][part][0][row] + j * LANES);
          if constexpr (PLANES == 2) sum = add(shift_left(sum, 8), load_ints(sums[i][part][1][row] + j * LANES));
          const Floats scale = load(decoded.scales[i][part] + j * LANES);
          add_scaled<Kind>(part, to_floats(sum), scale, x_scale, first_part, total[j]);
        }
        if constexpr (Kind::HAS_MINIMUMS) total[j] = fma(load(decoded.minimums[i] + j * LANES), x_sum, total[j]);
      }
    }
    UNROLL for (int j = 0; j < VECTORS_PER_PANEL; j++) store(out + j * LANES, total[j]);
  }

  void shape(int64_t num_rows) {
    if (num_rows == shaped) return;
    amx::Shapes shapes;
    shapes.set(0, 4, num_rows);
    shapes.set(4, 6, num_rows, PART_BYTES);
    shapes.set(6, 8, PART_BYTES / 4);
    shapes.use();
    shaped = num_rows;
  }

  int64_t shaped = 0;  // the rows that the registers have the shapes for
  Decoded decoded;
  alignas(64) int32_t sums[Decoded::NUM][Kind::PARTS][PLANES][amx::ROWS][PANEL_WIDTH];
};

}  // namespace quire

#endif
