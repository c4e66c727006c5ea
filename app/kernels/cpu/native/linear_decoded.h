// Products of several rows with quantized panels without VNNI: groups are decoded once for all rows of a tile. The bits
// are those of linear_groups.h, so the number of rows chooses.
//
// There are two ways. Weights of at most six bits by activations of one byte are multiplied to sums of two products, which
// are added up in 16 bits while they fit. Other products take integers of 16 bits on both sides, and so both bytes of an
// activation at once: four instructions for four columns of a vector. Bytes with their signs moved to one side would take
// as many, but three of them run in only two of the four units of AMD's processors, instead of two.
//
// With VNNI decoding first does not pay: Q4_K would be 6 % slower with 32 rows, Q6_K 3 % faster.
#pragma once

#include "simd.h"

#ifndef __AVX512VNNI__

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "decoded_groups.h"

namespace quire {

// Bytes without a sign, as panels have them.
struct PlainBytes {
  static constexpr int WORDS = 1;
  static void put(Ints bytes, uint8_t *out) { store_ints(out, bytes); }
};

// Integers of 16 bits with a sign: the first two columns, then the others.
template <class Kind> struct Shorts {
  static constexpr int WORDS = 2;
  static void put(Ints bytes, uint8_t *out) {
    put_half(shuffle_bytes(bytes, _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1)), out);
    put_half(shuffle_bytes(bytes, _mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1)),
             out + PANEL_WIDTH * 4);
  }

 private:
  static void put_half(Ints shorts, uint8_t *out) {
    store_ints(out, Kind::HAS_MINIMUMS ? shorts : sub_shorts(shorts, all_shorts(1 << Kind::ZERO_SHIFT)));
  }
};

// A tile is up to 32 rows by a panel; a few groups of it are multiplied with a few rows at once. Those groups, the rows'
// activations and the totals, which wait in memory between groups, fit into L1 together.
template <class Kind, int PLANES> class DecodedTiles {
 public:
  static constexpr int MAX_ROWS = 32, PART_ROWS = LANES == 16 ? 8 : 4, WIDE_ROWS = 0;
  static constexpr int MIN_OWN_TILES = 2;
  static constexpr bool ASKS_FOR_OUT = false, ASKS_AHEAD = false;

  static constexpr bool IS_SHORT = PLANES == 2 || Kind::BITS > 6;
  static constexpr int64_t MIN_ROWS = IS_SHORT ? 3 : 8;  // fewer are faster without decoding first

  void multiply(int64_t num_rows, const TileInput &in, const TileOutput &out) {
    const int64_t num_parts = divide_up(num_rows, PART_ROWS);
    Prefetch prefetch = in.prefetch;
    for (int64_t row = 0; row < num_rows; row++)
      for (int lane = 0; lane < PANEL_WIDTH; lane += LANES) store(totals[row] + lane, zeros());
    for (int64_t first = 0; first < in.num_groups; first += Decoded::NUM) {
      const int count = static_cast<int>(std::min<int64_t>(Decoded::NUM, in.num_groups - first));
      for (int i = 0; i < count; i++) {
        decoded.decode(in, first + i, i);
        UNROLL for (int step = 0; step < GROUP_STEPS; step++) prefetch.template step<STEP_LINES>();
      }
      for (int64_t part = 0; part < num_parts; part++) {
        const int64_t begin = num_rows * part / num_parts, size = num_rows * (part + 1) / num_parts - begin;
        const uint8_t *x = in.x + begin * in.x_stride + first * PLANES * GROUP;
        const QuantizedGroup *groups = in.groups + begin * in.num_groups + first;
        multiply_part(size, {x, in.x_stride, groups, in.num_groups, count, totals[begin]});
      }
    }
    for (int64_t row = 0; row < num_rows; row++)
      for (int lane = 0; lane < PANEL_WIDTH; lane += LANES) out.put(row, lane, load(totals[row] + lane));
  }

 private:
  using Decoded = DecodedGroups<Kind, std::conditional_t<IS_SHORT, Shorts<Kind>, PlainBytes>, IS_SHORT ? 4 : 8>;
  static constexpr int STEP_LINES = divide_up(Kind::BLOCK_BYTES, Kind::BLOCK_GROUPS * GROUP_STEPS * 64);
  static constexpr int PART_WORDS = Decoded::WORDS / Kind::PARTS;
  static constexpr int X_BYTES = IS_SHORT ? 2 * GROUP : GROUP;  // of a group, as it is multiplied
  static constexpr bool ADDS_UP_SHORTS = !IS_SHORT && Kind::BITS == 4;   // a whole group's sums fit into 16 bits

  // A few rows, and the groups that are decoded.
  struct Part {
    const uint8_t *x;
    int64_t x_stride;
    const QuantizedGroup *groups;  // the first row's
    int64_t num_groups;            // of a row
    int count;
    float *totals;
  };
  template <int ROWS> using Sums = Ints[TILE_VECTORS][ROWS];

  void multiply_part(int64_t num_rows, Part part) {
    if constexpr (IS_SHORT) {
      for (int64_t row = 0; row < num_rows; row++) widen(part.x + row * part.x_stride, part.count, shorts[row]);
      part.x = shorts[0], part.x_stride = sizeof shorts[0];
    }
    for (int lane = 0; lane < PANEL_WIDTH; lane += TILE_VECTORS * LANES) FUNCTIONS[num_rows - 1](decoded, part, lane);
  }

  // Activations as 16-bit integers.
  static void widen(const uint8_t *x, int count, uint8_t *out) {
    const auto load_plane = [](const uint8_t *p) {
      return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
    };
    for (int i = 0; i < count; i++, x += PLANES * GROUP) {
      UNROLL for (int half = 0; half < 2; half++, out += GROUP) {
        const uint8_t *p = x + half * GROUP / 2;
        __m256i wide = load_plane(p);
        if constexpr (PLANES == 2) wide = _mm256_add_epi16(_mm256_slli_epi16(wide, 8), load_plane(p + GROUP));
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(out), wide);
      }
    }
  }

  template <int ROWS> static void multiply_rows(const Decoded &decoded, const Part &in, int first_lane) {
    const uint8_t *words = decoded.words[0] + first_lane * 4;
    const float *scales = decoded.scales[0][0] + first_lane, *minimums = decoded.minimums[0] + first_lane;
    float *const totals = in.totals + first_lane;
    const int64_t num_groups = in.num_groups;
    const QuantizedGroup *const end = in.groups + in.count;
    RowPointers<ROWS> rows(in.x, in.x_stride);
    for (const QuantizedGroup *x = in.groups; x < end; x++) {
      Floats first_part[TILE_VECTORS][ROWS];  // of groups of two parts
      UNROLL for (int part = 0; part < Kind::PARTS; part++) {
        Sums<ROWS> sum;
        begin_sums<ROWS>(part, x, num_groups, sum);
        add_products<ROWS>(words, rows, part, sum);
        UNROLL for (int j = 0; j < TILE_VECTORS; j++) {
          const Floats scale = load(scales + part * PANEL_WIDTH + j * LANES);
          UNROLL for (int row = 0; row < ROWS; row++) {
            float *place = totals + row * PANEL_WIDTH + j * LANES;
            Floats total = load(place);
            const Floats x_scale = all(x[row * num_groups].scale);
            add_scaled<Kind>(part, to_floats(sum[j][row]), scale, x_scale, first_part[j][row], total);
            if constexpr (Kind::HAS_MINIMUMS)
              total = fma(load(minimums + j * LANES), all(x[row * num_groups].sum), total);
            if (part + 1 == Kind::PARTS) store(place, total);
          }
        }
      }
      words += sizeof decoded.words[0], scales += Kind::PARTS * PANEL_WIDTH, minimums += PANEL_WIDTH;
      rows.advance(X_BYTES);
    }
  }

  // Bytes without minimums are too high by their zero, which is taken back here.
  template <int ROWS>
  static void begin_sums(int part, const QuantizedGroup *x, int64_t num_groups, Sums<ROWS> &sum) {
    UNROLL for (int row = 0; row < ROWS; row++) {
      Ints begin = int_zeros();
      if constexpr (!IS_SHORT && !Kind::HAS_MINIMUMS) begin = taken_back<Kind>(part, x[row * num_groups]);
      UNROLL for (int j = 0; j < TILE_VECTORS; j++) sum[j][row] = begin;
    }
  }

  template <int ROWS>
  static void add_products(const uint8_t *words, const RowPointers<ROWS> &rows, int part, Sums<ROWS> &sum) {
    const int begin = part * PART_WORDS;
    if constexpr (IS_SHORT) {
      add_each<ROWS>(words, rows, begin, sum, [](Ints sum, Ints w, Ints x) { return add(sum, dot_shorts(w, x)); });
    } else if constexpr (ADDS_UP_SHORTS) {
      Sums<ROWS> pairs;
      UNROLL for (int j = 0; j < TILE_VECTORS; j++) {
        UNROLL for (int row = 0; row < ROWS; row++) pairs[j][row] = int_zeros();
      }
      add_each<ROWS>(words, rows, begin, pairs, [](Ints sum, Ints w, Ints x) { return add_shorts(sum, pair_sums(w, x)); });
      UNROLL for (int j = 0; j < TILE_VECTORS; j++) {
        UNROLL for (int row = 0; row < ROWS; row++)
          sum[j][row] = add(sum[j][row], dot_shorts(pairs[j][row], all_shorts(1)));
      }
    } else {
      add_two<ROWS>(words, rows, begin, sum);
    }
  }

  // Adds the products of a part's words, one after the other.
  template <int ROWS, class Add>
  static void add_each(const uint8_t *words, const RowPointers<ROWS> &rows, int begin, Sums<ROWS> &sum, Add add) {
    UNROLL for (int s = begin; s < begin + PART_WORDS; s++) {
      Ints w[TILE_VECTORS];
      UNROLL for (int j = 0; j < TILE_VECTORS; j++) w[j] = load_ints(words + s * Decoded::WORD_BYTES + j * LANES * 4);
      UNROLL for (int row = 0; row < ROWS; row++) {
        const Ints x = rows.broadcast(row, 4 * s);
        UNROLL for (int j = 0; j < TILE_VECTORS; j++) sum[j][row] = in_turn(add(sum[j][row], w[j], x));
      }
    }
  }

  // The same, two words at a time, whose sums of products fit into 16 bits.
  template <int ROWS>
  static void add_two(const uint8_t *words, const RowPointers<ROWS> &rows, int begin, Sums<ROWS> &sum) {
    UNROLL for (int s = begin; s < begin + PART_WORDS; s += 2) {
      Ints w0[TILE_VECTORS], w1[TILE_VECTORS];
      UNROLL for (int j = 0; j < TILE_VECTORS; j++) {
        w0[j] = load_ints(words + s * Decoded::WORD_BYTES + j * LANES * 4);
        w1[j] = load_ints(words + (s + 1) * Decoded::WORD_BYTES + j * LANES * 4);
      }
      UNROLL for (int row = 0; row < ROWS; row++) {
        const Ints x0 = rows.broadcast(row, 4 * s), x1 = rows.broadcast(row, 4 * s + 4);
        UNROLL for (int j = 0; j < TILE_VECTORS; j++)
          sum[j][row] = in_turn(dot_bytes<Kind::BITS>(sum[j][row], w0[j], x0, w1[j], x1));
      }
    }
  }

  using Function = void (*)(const Decoded &, const Part &, int first_lane);
  template <int... ROWS> static constexpr std::array<Function, PART_ROWS> functions(std::integer_sequence<int, ROWS...>) {
    return {multiply_rows<ROWS + 1>...};
  }
  // By number of rows - 1.
  static constexpr std::array<Function, PART_ROWS> FUNCTIONS = functions(std::make_integer_sequence<int, PART_ROWS>());

  Decoded decoded;
  alignas(64) uint8_t shorts[IS_SHORT ? PART_ROWS : 1][Decoded::NUM * 2 * GROUP];
  alignas(64) float totals[MAX_ROWS][PANEL_WIDTH];
};

}  // namespace quire

#endif
