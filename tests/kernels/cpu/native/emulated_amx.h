// AMX's instructions as functions, so that what is written with them can be tested on any machine: what amx.h has, with
// the results and the restrictions of Intel's manual. A violation ends the process, as the processor would.
//
// Included by amx.h. Sums of bf16 products keep the order of the manual, but not its treatment of denormal numbers.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

namespace quire::amx {

constexpr int NUM_REGISTERS = 8, MAX_REGISTER_ROWS = 16, MAX_ROW_BYTES = 64;

// A register's shape, zeros if it has none, and its rows.
struct Register {
  int num_rows = 0, row_bytes = 0;
  uint8_t data[MAX_REGISTER_ROWS][MAX_ROW_BYTES] = {};
};
inline thread_local Register registers[NUM_REGISTERS];

static inline void require(bool is_met, const char *rule) {
  if (is_met) return;
  std::fprintf(stderr, "AMX: %s\n", rule);
  std::abort();
}

static inline Register &shaped(int index) {
  require(registers[index].num_rows > 0, "a register without a shape was used");
  return registers[index];
}

static inline void release() {
  for (Register &each : registers) each = Register();
}

static inline void configure(const void *shapes) {
  uint8_t bytes[64];
  std::memcpy(bytes, shapes, sizeof bytes);
  require(bytes[0] == 1 && bytes[1] == 0, "palette 1 and start row 0 are needed");
  for (int i = 2; i < 16; i++) require(bytes[i] == 0, "reserved bytes must be zero");
  release();
  for (int i = 0; i < 16; i++) {
    const int row_bytes = bytes[16 + 2 * i] + 256 * bytes[17 + 2 * i], num_rows = bytes[48 + i];
    require(i < NUM_REGISTERS || (row_bytes == 0 && num_rows == 0), "there are eight registers");
    require(num_rows <= MAX_REGISTER_ROWS && row_bytes <= MAX_ROW_BYTES, "a register has 16 rows of 64 bytes at most");
    require((num_rows == 0) == (row_bytes == 0), "a shape has both rows and bytes, or neither");
    if (i < NUM_REGISTERS) registers[i].num_rows = num_rows, registers[i].row_bytes = row_bytes;
  }
}

template <int REGISTER> static inline void clear() {
  Register &to = shaped(REGISTER);
  std::memset(to.data, 0, sizeof to.data);
}

template <int REGISTER> static inline void load(const void *first_row, int64_t stride) {
  clear<REGISTER>();
  Register &to = registers[REGISTER];
  for (int i = 0; i < to.num_rows; i++)
    std::memcpy(to.data[i], static_cast<const uint8_t *>(first_row) + i * stride, to.row_bytes);
}

template <int REGISTER> static inline void store(void *first_row, int64_t stride) {
  const Register &from = shaped(REGISTER);
  for (int i = 0; i < from.num_rows; i++)
    std::memcpy(static_cast<uint8_t *>(first_row) + i * stride, from.data[i], from.row_bytes);
}

// One row of sums: of floats, the even columns are summed apart from the odd ones.
static inline void add_row(float *sums, const Register &x, int row, const Register &weights) {
  float even[MAX_ROW_BYTES / 4] = {}, odd[MAX_ROW_BYTES / 4] = {};
  for (int k = 0; k < weights.num_rows; k++) {
    bf16 of_x[2], w[MAX_ROW_BYTES / 4][2];
    std::memcpy(of_x, x.data[row] + 4 * k, sizeof of_x);
    std::memcpy(w, weights.data[k], sizeof w);
    for (int lane = 0; lane < weights.row_bytes / 4; lane++) {
      even[lane] = __builtin_fmaf(to_float(of_x[0]), to_float(w[lane][0]), even[lane]);
      odd[lane] = __builtin_fmaf(to_float(of_x[1]), to_float(w[lane][1]), odd[lane]);
    }
  }
  for (int lane = 0; lane < weights.row_bytes / 4; lane++) sums[lane] += even[lane] + odd[lane];
}

// The sums of four products of bytes in each lane, whose weights are zeros where a register has no lanes. Exact, and so
// in any order: the even bytes as integers of 16 bits, then the odd ones.
static inline void add_row(int32_t *sums, const Register &x, int row, const Register &weights) {
  __m512i total = _mm512_loadu_si512(sums);
  for (int k = 0; k < weights.num_rows; k++) {
    int32_t word;
    std::memcpy(&word, x.data[row] + 4 * k, sizeof word);
    const __m512i of_x = _mm512_set1_epi32(word), w = _mm512_loadu_si512(weights.data[k]);
    const __m512i even_x = _mm512_srai_epi16(_mm512_slli_epi16(of_x, 8), 8), odd_x = _mm512_srai_epi16(of_x, 8);
    const __m512i even_w = _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8), odd_w = _mm512_srai_epi16(w, 8);
    total = _mm512_add_epi32(total, _mm512_madd_epi16(even_x, even_w));
    total = _mm512_add_epi32(total, _mm512_madd_epi16(odd_x, odd_w));
  }
  _mm512_storeu_si512(sums, total);
}

template <class T, int SUMS, int X, int WEIGHTS> static inline void add_products() {
  static_assert(SUMS != X && X != WEIGHTS && SUMS != WEIGHTS, "the registers differ");
  Register &to = shaped(SUMS);
  const Register &x = shaped(X), &weights = shaped(WEIGHTS);
  require(to.num_rows == x.num_rows, "sums and activations have the same rows");
  require(to.row_bytes == weights.row_bytes, "sums and weights have the same lanes");
  require(x.row_bytes == 4 * weights.num_rows, "activations have as many words as weights have rows");
  using Sum = std::conditional_t<std::is_same_v<T, bf16>, float, int32_t>;
  for (int row = 0; row < to.num_rows; row++) {
    Sum sums[MAX_ROW_BYTES / 4];
    std::memcpy(sums, to.data[row], sizeof sums);
    add_row(sums, x, row, weights);
    std::memcpy(to.data[row], sums, sizeof sums);
  }
}

}  // namespace quire::amx
