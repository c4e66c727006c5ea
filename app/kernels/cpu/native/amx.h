// AMX: eight registers of up to 16 rows of 64 bytes, and instructions that multiply two of them.
//
// The product of activations [rows, 64 bytes] and weights [16 steps, 16 lanes of 4 bytes] is added to sums [rows,
// 16 lanes]. Each row is computed by itself and in the order of k.
#pragma once

#include <cstdint>
#include <type_traits>

#include "simd.h"

#ifdef QUIRE_AMX

// Machines without AMX can test what is written with it: QUIRE_EMULATED_AMX names a file that has these instructions as
// functions.
#ifdef QUIRE_EMULATED_AMX
#include QUIRE_EMULATED_AMX
#else
namespace quire::amx {

static inline void configure(const void *shapes) {
  asm volatile("ldtilecfg %0" ::"m"(*static_cast<const uint8_t(*)[64]>(shapes)));
}
// Gives the registers back: a thread that has none in use is cheaper to interrupt.
static inline void release() { asm volatile("tilerelease"); }

template <int REGISTER> static inline void clear() { asm volatile("tilezero %%tmm%c0" ::"i"(REGISTER)); }
template <int REGISTER> static inline void load(const void *first_row, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(first_row), "r"(stride), "i"(REGISTER) : "memory");
}
template <int REGISTER> static inline void store(void *first_row, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(first_row), "r"(stride), "i"(REGISTER) : "memory");
}
// Of pairs of bf16, or of fours of bytes with a sign.
template <class T, int SUMS, int X, int WEIGHTS> static inline void add_products() {
  if constexpr (std::is_same_v<T, bf16>)
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(X), "i"(WEIGHTS));
  else
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(X), "i"(WEIGHTS));
}

}  // namespace quire::amx
#endif

namespace quire::amx {

constexpr int ROWS = 16;
constexpr int STEPS = 16;
constexpr int ROW_BYTES = 64;
constexpr int LANES_PER_ROW = 16;

// How many rows each register has, and how many bytes a row. Setting them clears the registers.
class Shapes {
 public:
  void set(int first, int end, int64_t rows, int64_t row_bytes = ROW_BYTES) {
    for (int i = first; i < end; i++) {
      row_bytes_[i] = static_cast<uint16_t>(row_bytes);
      num_rows_[i] = static_cast<uint8_t>(rows);
    }
  }
  void use() const { configure(this); }

 private:
  uint8_t palette_ = 1, start_row_ = 0, reserved_[14] = {};
  uint16_t row_bytes_[16] = {};
  uint8_t num_rows_[16] = {};
};
static_assert(sizeof(Shapes) == 64);

}  // namespace quire::amx

#endif
