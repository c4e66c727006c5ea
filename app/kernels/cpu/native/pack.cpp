// Packs rows of files into panels: the same numbers, or the same integers and factors, in the order of panels.h.
//
// A kind of panels holds one type of file: INT8 is Q8_0 and INT4 is Q4_1. A block of one group is float16 factors, four
// bytes of fifth bits if it has some, and its integers: bytes, or halves of bytes of which the low ones come first. In a
// block of eight groups (the K types) the high bits stand together before or behind the others, and so do the factors.
#include "panels.h"
#include "pool.h"

namespace quire {
namespace {

constexpr int COLUMN_WORDS = GROUP / 4;                       // of a group: words of four columns, a byte each
constexpr uint32_t EACH_BYTE = 0x01010101, NIBBLES = 15 * EACH_BYTE;
constexpr uint16_t HALF_SIGN = 0x8000;

// The numbers of one row's block, as panels hold them.
template <class Kind> struct Numbers {
  uint16_t halves[2];                                         // scale and minimum
  uint8_t factors[Kind::BLOCK_GROUPS][2];                     // of each group: scale and minimum, or the scales of its halves
  uint32_t columns[Kind::BLOCK_GROUPS][COLUMN_WORDS];
};

template <class Kind> constexpr int NUM_HALVES = Kind::HAS_MINIMUMS ? 2 : 1;
template <class Kind>
constexpr int64_t BLOCK_BYTES = 2 * NUM_HALVES<Kind> + (!Kind::HAS_BYTES ? 0 : Kind::HAS_MINIMUMS ? 12 : 16) +
                                Kind::BLOCK_GROUPS * GROUP * Kind::BITS / 8;

inline uint32_t word_at(const uint8_t *bytes, int index) {
  uint32_t word;
  std::memcpy(&word, bytes + 4 * index, 4);
  return word;
}

// Four bits, each in the lowest place of a byte: the products put them there.
inline uint32_t spread(uint32_t bits) { return bits * 0x00204081 & EACH_BYTE; }

template <class Kind> inline void split_group(const uint8_t *bytes, uint32_t *columns) {
  if constexpr (Kind::BITS == 8) {
    for (int w = 0; w < COLUMN_WORDS; w++) columns[w] = word_at(bytes, w) ^ 0x80 * EACH_BYTE;
    return;
  }
  const uint32_t fifth = Kind::BITS == 5 ? word_at(bytes, 0) : 0;
  if (Kind::BITS == 5) bytes += 4;
  for (int w = 0; w < COLUMN_WORDS; w++) {
    columns[w] = word_at(bytes, w % 4) >> w / 4 * 4 & NIBBLES;
    if (Kind::BITS == 5) columns[w] |= spread(fifth >> 4 * w & 15) << 4;
  }
}

// Q4_K and Q5_K: twelve bytes of 6-bit factors; bit j of byte i of the fifth bits, which is column i of group j; then
// pairs of groups in the low and in the high halves of 32 bytes.
template <class Kind> inline void split_eight_with_minimums(const uint8_t *bytes, Numbers<Kind> &out) {
  for (int g = 0; g < 4; g++) {
    const uint8_t low = bytes[g], middle = bytes[4 + g], high = bytes[8 + g];
    out.factors[g][0] = low & 63;
    out.factors[g][1] = middle & 63;
    out.factors[4 + g][0] = static_cast<uint8_t>((high & 15) | low >> 6 << 4);
    out.factors[4 + g][1] = static_cast<uint8_t>(high >> 4 | middle >> 6 << 4);
  }
  const uint8_t *fifth = bytes + 12, *low = Kind::BITS == 5 ? fifth + GROUP : fifth;
  for (int g = 0; g < 8; g++)
    for (int w = 0; w < COLUMN_WORDS; w++) {
      out.columns[g][w] = word_at(low + g / 2 * GROUP, w) >> g % 2 * 4 & NIBBLES;
      if (Kind::BITS == 5) out.columns[g][w] |= (word_at(fifth, w) >> g & EACH_BYTE) << 4;
    }
}

// Q6_K: for either half of the block 64 bytes with the low bits of two groups in their low halves and of two in their
// high ones; then 32 bytes each with two bits of four groups; then the scales.
template <class Kind> inline void split_eight_with_halves(const uint8_t *bytes, Numbers<Kind> &out) {
  const uint8_t *high = bytes + 128, *scales = bytes + 192;
  for (int g = 0; g < 8; g++) {
    const int half = g / 4, place = g % 4;
    for (int w = 0; w < COLUMN_WORDS; w++) {
      const uint32_t low = word_at(bytes + half * 64 + place % 2 * GROUP, w) >> place / 2 * 4 & NIBBLES;
      out.columns[g][w] = low | (word_at(high + half * GROUP, w) >> 2 * place & 3 * EACH_BYTE) << 4;
    }
    std::memcpy(out.factors[g], scales + 2 * g, 2);
  }
}

template <class Kind> inline void split(const uint8_t *block, Numbers<Kind> &out) {
  constexpr int HALVES = 2 * NUM_HALVES<Kind>;
  std::memcpy(out.halves, Kind::PARTS == 2 ? block + BLOCK_BYTES<Kind> - HALVES : block, HALVES);
  if constexpr (!Kind::HAS_BYTES) {
    split_group<Kind>(block + HALVES, out.columns[0]);
  } else if constexpr (Kind::HAS_MINIMUMS) {
    out.halves[1] ^= HALF_SIGN;  // the file subtracts the minimums
    split_eight_with_minimums<Kind>(block + HALVES, out);
  } else {
    split_eight_with_halves<Kind>(block, out);
  }
}

// Writes one row's words of a group whose lanes begin at `lanes`; the inverse of unpack_group.
template <class Kind> inline void pack_group(const uint32_t *columns, uint8_t *lanes, int64_t row) {
  lanes += 4 * row;
  const auto put = [lanes](int begin, uint32_t word) { std::memcpy(lanes + begin, &word, 4); };
  if constexpr (Kind::BITS == 8) {
    for (int w = 0; w < COLUMN_WORDS; w++) put(4 * PANEL_WIDTH * w, columns[w]);
    return;
  }
  for (int s = 0; s < GROUP_STEPS; s++)
    put(low_words<Kind>(s), (columns[2 * s] & NIBBLES) | (columns[2 * s + 1] & NIBBLES) << 4);
  constexpr int SIZE = Kind::BITS - 4, WORDS = COLUMN_WORDS / (SIZE > 0 ? SIZE : 1);
  constexpr uint32_t MASK = EACH_BYTE * ((1 << SIZE) - 1);
  for (int part = 0; part < SIZE; part++) {
    uint32_t high = 0;
    for (int w = 0; w < WORDS; w++) high |= (columns[part * WORDS + w] >> 4 & MASK) << SIZE * w;
    put(high_words<Kind>(2 * part), high);
  }
}

template <class Kind> inline void pack_block(const uint8_t *source, uint8_t *out, int64_t row) {
  Numbers<Kind> numbers;
  split<Kind>(source, numbers);
  for (int i = 0; i < NUM_HALVES<Kind>; i++) std::memcpy(out + 2 * (PANEL_WIDTH * i + row), numbers.halves + i, 2);
  out += Kind::HALVES_BYTES;
  for (int g = 0; g < Kind::BLOCK_GROUPS; g++, out += Kind::GROUP_BYTES) {
    for (int i = 0; i < Kind::FACTORS_BYTES / PANEL_WIDTH; i++) out[PANEL_WIDTH * i + row] = numbers.factors[g][i];
    pack_group<Kind>(numbers.columns[g], out + Kind::FACTORS_BYTES, row);
  }
}

// The row of the matrix in lane `lane` of a panel; -1: the matrix has none.
inline int64_t row_of_lane(const Packed &w, int64_t panel, int64_t lane) {
  if (!w.is_interleaved) return panel * PANEL_WIDTH + lane < w.n ? panel * PANEL_WIDTH + lane : -1;
  constexpr int64_t HALF = PANEL_WIDTH / 2;
  const int64_t row = panel * HALF + lane % HALF;
  return row < w.n / 2 ? lane / HALF * (w.n / 2) + row : -1;
}

template <class Kind>
void pack_groups(const Packed &w, const uint8_t *const *rows, uint8_t *panels, int64_t panel) {
  static constexpr uint8_t ZEROS[BLOCK_BYTES<Kind>] = {};
  const int64_t num_blocks = w.k / (GROUP * Kind::BLOCK_GROUPS);
  uint8_t *out = panels + panel * num_blocks * Kind::BLOCK_BYTES;
  for (int64_t b = 0; b < num_blocks; b++, out += Kind::BLOCK_BYTES)
    for (int64_t lane = 0; lane < PANEL_WIDTH; lane++)
      pack_block<Kind>(rows[lane] == nullptr ? ZEROS : rows[lane] + b * BLOCK_BYTES<Kind>, out, lane);
}

// Numbers of T: a lane of each row side by side, those of a line of memory of each row at a time. Zeros are the lanes of
// rows that the matrix lacks, and the column that the last lane lacks if their number is odd.
template <class T> void pack_numbers(const Packed &w, const uint8_t *const *rows, uint8_t *panels, int64_t panel) {
  using Lane = std::conditional_t<sizeof(T) * LANE_COLUMNS<T> == 4, uint32_t, uint16_t>;
  constexpr int64_t SIZE = sizeof(Lane), LINE = 64 / SIZE;
  const int64_t num_lanes = divide_up(w.k, LANE_COLUMNS<T>), num_whole = w.k / LANE_COLUMNS<T>;
  Lane *out = reinterpret_cast<Lane *>(panels) + panel * num_lanes * PANEL_WIDTH;
  for (int64_t begin = 0; begin < num_whole; begin += LINE) {
    const int64_t end = std::min(begin + LINE, num_whole);
    for (int64_t row = 0; row < PANEL_WIDTH; row++) {
      Lane *column = out + row;
      if (rows[row] == nullptr)
        for (int64_t i = begin; i < end; i++) column[i * PANEL_WIDTH] = 0;
      else
        for (int64_t i = begin; i < end; i++) std::memcpy(column + i * PANEL_WIDTH, rows[row] + i * SIZE, SIZE);
    }
  }
  for (int64_t row = 0; num_whole < num_lanes && row < PANEL_WIDTH; row++) {
    Lane last = 0;
    if (rows[row] != nullptr) std::memcpy(&last, rows[row] + num_whole * SIZE, sizeof(T));
    out[num_whole * PANEL_WIDTH + row] = last;
  }
}

}  // namespace

void pack(const Pack &p, int64_t num_panels, Worker worker) {
  const Packed &w = p.weight;
  uint8_t *const panels = static_cast<uint8_t *>(const_cast<void *>(w.panels));
  worker.each(num_panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; panel++) {
      const uint8_t *rows[PANEL_WIDTH];
      for (int64_t lane = 0; lane < PANEL_WIDTH; lane++) {
        const int64_t row = row_of_lane(w, panel, lane);
        rows[lane] = row < 0 ? nullptr : p.rows[row];
      }
      switch (w.type) {
        case FLOAT32: pack_numbers<float>(w, rows, panels, panel); break;
        case FLOAT16: pack_numbers<f16>(w, rows, panels, panel); break;
        case BFLOAT16: pack_numbers<bf16>(w, rows, panels, panel); break;
        default: with_kind(w.type, [&](auto kind) { pack_groups<decltype(kind)>(w, rows, panels, panel); });
      }
    }
  });
}

}  // namespace quire
