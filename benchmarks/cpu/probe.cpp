// What the machine can do: bytes read and products per second, as the limits of the kernels.
#include <omp.h>

#include "amx.h"
#include "exported.h"
#include "simd.h"

// Reads `num_bytes` (a multiple of 256 per thread) once with each of `num_threads` threads' share; returns a checksum.
QUIRE_EXPORTED int64_t quire_read(const void *data, int64_t num_bytes, int32_t num_threads) {
  using namespace quire;
  int64_t total = 0;
#pragma omp parallel num_threads(num_threads) reduction(+ : total)
  {
    const int64_t lines = num_bytes / 256, index = omp_get_thread_num(), count = omp_get_num_threads();
    const char *p = static_cast<const char *>(data) + lines * index / count * 256;
    const char *end = static_cast<const char *>(data) + lines * (index + 1) / count * 256;
    constexpr int STEP = sizeof(Ints);
    Ints sums[4] = {int_zeros(), int_zeros(), int_zeros(), int_zeros()};
    for (; p < end; p += 256)
      for (int i = 0; i < 256 / STEP; i++) sums[i % 4] = add(sums[i % 4], load_ints(p + i * STEP));
    const Ints all_sums = add(add(sums[0], sums[1]), add(sums[2], sums[3]));
    alignas(64) int32_t lanes[LANES];
    store_ints(lanes, all_sums);
    for (int32_t lane : lanes) total += lane;
  }
  return total;
}

#ifdef QUIRE_AMX
namespace quire {

// Multiplies registers of one thread `rounds` times; returns the number of multiplications and additions.
template <class T> static int64_t compute_with_amx(int64_t rounds) {
  amx::Shapes shapes;
  shapes.set(0, 8, amx::ROWS);
  shapes.use();
  for (int64_t r = 0; r < rounds; r++) {
    amx::add_products<T, 0, 4, 6>(), amx::add_products<T, 1, 4, 7>();
    amx::add_products<T, 2, 5, 6>(), amx::add_products<T, 3, 5, 7>();
  }
  amx::release();
  return rounds * 4 * amx::ROWS * amx::LANES_PER_ROW * amx::ROW_BYTES / static_cast<int64_t>(sizeof(T)) * 2;
}

}  // namespace quire
#endif

// Runs `rounds` x some dot products of bf16 pairs, or of quads of bytes, in registers, in each of `num_threads` threads;
// returns the number of multiplications and additions done by all of them together.
QUIRE_EXPORTED int64_t quire_compute(int32_t is_bytes, int64_t rounds, int32_t num_threads) {
  using namespace quire;
  constexpr int NUM = LANES == 16 ? 16 : 10;
  int64_t done = 0;
#ifdef QUIRE_AMX
#pragma omp parallel num_threads(num_threads) reduction(+ : done)
  done += is_bytes ? compute_with_amx<int8_t>(rounds) : compute_with_amx<bf16>(rounds);
  return done;
#else
#pragma omp parallel num_threads(num_threads) reduction(+ : done)
  {
    Floats sums[NUM];
    Ints counts[NUM];
    for (int i = 0; i < NUM; i++) sums[i] = zeros(), counts[i] = int_zeros();
    Ints w = all_ints(0x3f803f80), x = all_ints(0x3a803a80);
    for (int64_t r = 0; r < rounds; r++) {
      asm volatile("" : "+v"(w), "+v"(x));  // or the loop would be done once
      if (is_bytes)
#pragma GCC unroll 16
        for (int i = 0; i < NUM; i++) counts[i] = dot_bytes(counts[i], w, x);
      else
#pragma GCC unroll 16
        for (int i = 0; i < NUM; i++) sums[i] = dot_pairs(sums[i], w, x);
    }
    for (int i = 0; i < NUM; i++) asm volatile("" ::"v"(sums[i]), "v"(counts[i]));
    done += rounds * NUM * LANES * (is_bytes ? 8 : 4);
  }
  return done;
#endif
}
