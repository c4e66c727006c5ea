// Products with quantized panels: groups of columns whose integers are multiplied exactly.
//
// Activations are integers too, of one byte or of two, see Quantized. The products of a group are added up as integers,
// and then scaled into the total, always in the order of k. The two sets of sums take as many registers as twice the rows
// do of other types.
//
// The higher bytes of two come first. Their sum times 256 is where the sum of the lower ones begins, so that both take
// one register. It stays below 2^29: 32 products of a weight below 2^8 and an activation below 2^15.
#pragma once

#include "linear_tiles.h"
#include "panels.h"

namespace quire {

constexpr int MAX_GROUPED_ROWS = LANES == 16 ? 8 : 4;

// A tile that is not wide asks for what it reads that far ahead, in L1. Otherwise reading and multiplying would take
// turns, and the next panel is too far away for L1. On Zen 5 tiles of three to five rows take 5 to 40 % less time so,
// those of AVX2 up to half as long.
constexpr int64_t AHEAD_BYTES = 8192;
static inline void ask_ahead(const uint8_t *p, int first_line, int end_line) {
  UNROLL for (int line = first_line; line < end_line; line++) prefetch_near(p + AHEAD_BYTES + 64 * line);
}

// The weights of two lanes at `p`, where the lanes of a group begin, in step `s`.
template <class Kind> static inline void unpack(const uint8_t *p, int s, Ints &w0, Ints &w1) {
  if constexpr (Kind::BITS == 8) {
    w0 = load_ints(p + s * Kind::STEP_BYTES), w1 = load_ints(p + s * Kind::STEP_BYTES + Kind::STEP_BYTES / 2);
    return;
  }
  const Ints words = load_ints(p + low_words<Kind>(s)), low = all_ints(0x0f0f0f0f);
  w0 = both(words, low), w1 = both(shift_right(words, 4), low);
  if constexpr (Kind::BITS == 5) {
    const Ints high = load_ints(p + high_words<Kind>(s)), bit = all_ints(0x10101010);
    const auto place = [&](int i) { return i <= 4 ? shift_left(high, 4 - i) : shift_right(high, i - 4); };
    w0 = either(w0, both(place(2 * s), bit)), w1 = either(w1, both(place(2 * s + 1), bit));
  } else if constexpr (Kind::BITS == 6) {
    const Ints high = load_ints(p + high_words<Kind>(s)), bits = all_ints(0x30303030);
    const auto place = [&](int i) { return i <= 2 ? shift_left(high, 4 - 2 * i) : shift_right(high, 2 * i - 4); };
    w0 = either(w0, both(place(s % 2 * 2), bits)), w1 = either(w1, both(place(s % 2 * 2 + 1), bits));
  }
}

// Scales or minimums of the rows of vector `j`: those of a block at `halves`, times those of a group at `bytes`.
template <class Kind> static inline Floats factors(const uint8_t *halves, const uint8_t *bytes, const TileInput &in, int j) {
  const Floats half = load(reinterpret_cast<const f16 *>(halves + in.first_lane * 2 + vector_offset(j, in.far_bytes, 2)));
  if constexpr (!Kind::HAS_BYTES) return half;
  const uint8_t *p = bytes + in.first_lane + vector_offset(j, in.far_bytes, 1);
  return half * to_floats(load_lanes(reinterpret_cast<const typename Kind::Byte *>(p)));
}

// What the sums of a part of a group begin with, where weights are stored too high by their zero.
template <class Kind> static inline Ints taken_back(int part, const QuantizedGroup &x) {
  Ints minus = all_ints(part == 0 && Kind::PARTS == 1 ? x.minus_sum : x.minus_first);
  if (part == 1) minus = sub(all_ints(x.minus_sum), minus);
  return shift_left(minus, Kind::ZERO_SHIFT);
}

// Adds the products of a part of a group to `total`. Those of a first part wait, scaled, for the second one.
template <class Kind>
static inline void add_scaled(int part, Floats products, Floats scale, Floats x_scale, Floats &first_part, Floats &total) {
  if constexpr (Kind::PARTS == 1) {
    total = fma(products, scale * x_scale, total);
  } else if (part == 0) {
    first_part = products * scale;
  } else {
    total = fma(fma(products, scale, first_part), x_scale, total);
  }
}

template <class Kind, int PLANES, int VECTORS, int ROWS>
static void multiply_groups(const TileInput &in, const TileOutput *outs) {
  constexpr int PART_STEPS = GROUP_STEPS / Kind::PARTS;
  constexpr int STEP_LINES = divide_up(Kind::BLOCK_BYTES, Kind::BLOCK_GROUPS * GROUP_STEPS * 64);
  constexpr int GROUP_LINES = Kind::GROUP_BYTES / 64, HALVES_LINES = Kind::HALVES_BYTES / 64;
  constexpr bool IS_WIDE = VECTORS == WIDE_VECTORS;
  Floats total[VECTORS][ROWS];
  UNROLL for (int j = 0; j < VECTORS; j++) {
    UNROLL for (int row = 0; row < ROWS; row++) total[j][row] = zeros();
  }
  RowPointers<ROWS> rows(in.x, in.x_stride);
  Prefetch prefetch = in.prefetch;
  const QuantizedGroup *x = in.groups;
  const uint8_t *const end = in.panel + in.num_groups / Kind::BLOCK_GROUPS * Kind::BLOCK_BYTES;
  for (const uint8_t *block = in.panel; block < end; block += Kind::BLOCK_BYTES) {
    const uint8_t *group = block + Kind::HALVES_BYTES;
    if (!IS_WIDE) ask_ahead(block, 0, HALVES_LINES);
    for (int i = 0; i < Kind::BLOCK_GROUPS; i++, x++, group += Kind::GROUP_BYTES) {
      const uint8_t *lanes = group + Kind::FACTORS_BYTES + in.first_lane * 4;
      Floats first_part[VECTORS][ROWS];  // of groups of two parts
      UNROLL for (int part = 0; part < Kind::PARTS; part++) {
        Ints sum[VECTORS][ROWS];
        UNROLL for (int plane = 0; plane < PLANES; plane++) {
          // Without minimums weights are stored too high by their zero, which is taken back here.
          UNROLL for (int row = 0; row < ROWS; row++) {
            Ints begin = int_zeros();
            if (!Kind::HAS_MINIMUMS && plane + 1 == PLANES) begin = taken_back<Kind>(part, x[row * in.num_groups]);
            UNROLL for (int j = 0; j < VECTORS; j++)
              sum[j][row] = plane == 0 ? begin : add(begin, shift_left(sum[j][row], 8));
          }
          UNROLL for (int step = part * PART_STEPS; step < (part + 1) * PART_STEPS; step++) {
            if (plane == 0 && !IS_WIDE) {
              prefetch.step<STEP_LINES>();
              ask_ahead(group, step * GROUP_LINES / GROUP_STEPS, (step + 1) * GROUP_LINES / GROUP_STEPS);
            }
            if (plane == 0) {
              const uint8_t *weights = lanes + step * Kind::STEP_BYTES;
              prefetch_streams<VECTORS, Kind::STEP_BYTES, NEAR_GROUPED_BYTES>(weights, in.far_bytes);
            }
            Ints w0[VECTORS], w1[VECTORS];
            UNROLL for (int j = 0; j < VECTORS; j++)
              unpack<Kind>(lanes + vector_offset(j, in.far_bytes, 4), step, w0[j], w1[j]);
            UNROLL for (int row = 0; row < ROWS; row++) {
              const int64_t offset = plane * GROUP + 8 * step;
              const Ints x0 = rows.broadcast(row, offset), x1 = rows.broadcast(row, offset + 4);
              UNROLL for (int j = 0; j < VECTORS; j++)
                sum[j][row] = dot_bytes<Kind::BITS>(sum[j][row], w0[j], x0, w1[j], x1);
            }
          }
        }
        UNROLL for (int j = 0; j < VECTORS; j++) {
          const Floats scale = factors<Kind>(block, group + part * PANEL_WIDTH, in, j);
          UNROLL for (int row = 0; row < ROWS; row++) {
            const Floats x_scale = all(x[row * in.num_groups].scale);
            add_scaled<Kind>(part, to_floats(sum[j][row]), scale, x_scale, first_part[j][row], total[j][row]);
          }
        }
        if constexpr (Kind::HAS_MINIMUMS) {
          UNROLL for (int j = 0; j < VECTORS; j++) {
            const Floats minimum = factors<Kind>(block + 2 * PANEL_WIDTH, group + PANEL_WIDTH, in, j);
            UNROLL for (int row = 0; row < ROWS; row++)
              total[j][row] = fma(minimum, all(x[row * in.num_groups].sum), total[j][row]);
          }
        }
      }
      rows.advance(PLANES * GROUP);
    }
  }
  put_sums(outs, total);
}

template <class Kind, int PLANES> struct GroupLanes {};

template <class Kind, int PLANES> struct Multiply<GroupLanes<Kind, PLANES>> {
  static constexpr int MAX_ROWS = MAX_GROUPED_ROWS;
  static constexpr bool ASKS_AHEAD = true;
  template <int VECTORS, int ROWS> static constexpr Tile tile() { return multiply_groups<Kind, PLANES, VECTORS, ROWS>; }
};

}  // namespace quire
