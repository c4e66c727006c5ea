// One vector of floats, integers or packed pairs on each instruction set: what nearly all kernels are written in.
//
// The same sources are compiled for each instruction set (see compiling.py): AVX2, AVX-512, that with VNNI, with VNNI and
// bf16, and the latter with AMX, which amx.h adds. A vector has LANES lanes; what needs a fixed number of values, such as a panel of
// packed weights, takes WIDTH / LANES vectors. Results differ between instruction sets in rounding, never between two
// calls on one of them.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

// Whether there are AMX instructions: the compiler's, or functions that tests put in their place, see amx.h.
#if defined(__AMX_TILE__) || defined(QUIRE_EMULATED_AMX)
#define QUIRE_AMX
#endif

namespace quire {

// Storage types: 16-bit floats are bits until they are loaded.
struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };

#ifdef __AVX512F__

constexpr int LANES = 16;
using Floats = __m512;
using Ints = __m512i;

static inline Floats zeros() { return _mm512_setzero_ps(); }
static inline Ints int_zeros() { return _mm512_setzero_si512(); }
static inline Floats all(float x) { return _mm512_set1_ps(x); }
static inline Ints all_ints(int32_t x) { return _mm512_set1_epi32(x); }
static inline Floats load(const float *p) { return _mm512_loadu_ps(p); }
static inline Floats load(const bf16 *p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
static inline Floats load(const f16 *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
}
static inline Ints load_ints(const void *p) { return _mm512_loadu_si512(p); }
// As many bytes as there are lanes, one in each.
static inline Ints load_lanes(const uint8_t *p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}
static inline Ints load_lanes(const int8_t *p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}
static inline void store_ints(void *p, Ints v) { _mm512_storeu_si512(p, v); }
static inline void store(float *p, Floats v) { _mm512_storeu_ps(p, v); }
static inline void store(f16 *p, Floats v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
static inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
static inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
static inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
static inline Floats abs(Floats a) { return _mm512_abs_ps(a); }
static inline Floats rounded(Floats a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline Ints to_ints(Floats a) { return _mm512_cvtps_epi32(a); }
static inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
static inline Floats as_floats(Ints a) { return _mm512_castsi512_ps(a); }
static inline Ints as_ints(Floats a) { return _mm512_castps_si512(a); }
static inline float sum(Floats a) { return _mm512_reduce_add_ps(a); }
static inline float largest(Floats a) { return _mm512_reduce_max_ps(a); }
static inline int32_t sum_ints(Ints a) { return _mm512_reduce_add_epi32(a); }
static inline Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
static inline Ints sub(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
static inline Ints both(Ints a, Ints b) { return _mm512_and_si512(a, b); }
static inline Ints either(Ints a, Ints b) { return _mm512_or_si512(a, b); }
static inline Ints shift_left(Ints a, int n) { return _mm512_slli_epi32(a, n); }
static inline Ints shift_right(Ints a, int n) { return _mm512_srli_epi32(a, n); }
// 16-bit integers: sums of two products of bytes, unsigned by signed, which must fit; sums of two products of theirs.
static inline Ints pair_sums(Ints w, Ints x) { return _mm512_maddubs_epi16(w, x); }
static inline Ints dot_shorts(Ints a, Ints b) { return _mm512_madd_epi16(a, b); }
static inline Ints add_shorts(Ints a, Ints b) { return _mm512_add_epi16(a, b); }
static inline Ints sub_shorts(Ints a, Ints b) { return _mm512_sub_epi16(a, b); }
static inline Ints all_shorts(int16_t x) { return _mm512_set1_epi16(x); }
static inline Ints low_bytes(Ints a) { return _mm512_srai_epi16(_mm512_slli_epi16(a, 8), 8); }
static inline Ints high_bytes(Ints a) { return _mm512_srai_epi16(a, 8); }
static inline Ints unsigned_high_bytes(Ints a) { return _mm512_srli_epi16(a, 8); }
static inline Ints shuffle_bytes(Ints a, __m128i places) {
  return _mm512_shuffle_epi8(a, _mm512_broadcast_i32x4(places));
}
// x * 2^n for integral n.
static inline Floats scale_by_power(Floats x, Floats n) { return _mm512_scalef_ps(x, n); }
// The lanes of `a` where `lane < count`, else of `b`.
static inline Floats first_lanes(int count, Floats a, Floats b) {
  return _mm512_mask_blend_ps(static_cast<__mmask16>((1u << count) - 1u), b, a);
}
// Eight-bit results of 32-bit lanes, modulo 256.
static inline void store_bytes(uint8_t *p, Ints v) {
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm512_cvtepi32_epi8(v));
}

#else  // AVX2 with FMA and F16C

constexpr int LANES = 8;
using Floats = __m256;
using Ints = __m256i;

static inline Floats zeros() { return _mm256_setzero_ps(); }
static inline Ints int_zeros() { return _mm256_setzero_si256(); }
static inline Floats all(float x) { return _mm256_set1_ps(x); }
static inline Ints all_ints(int32_t x) { return _mm256_set1_epi32(x); }
static inline Floats load(const float *p) { return _mm256_loadu_ps(p); }
static inline Floats load(const bf16 *p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
static inline Floats load(const f16 *p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))); }
static inline Ints load_ints(const void *p) { return _mm256_loadu_si256(static_cast<const __m256i *>(p)); }
static inline Ints load_lanes(const uint8_t *p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)));
}
static inline Ints load_lanes(const int8_t *p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p)));
}
static inline void store_ints(void *p, Ints v) { _mm256_storeu_si256(static_cast<__m256i *>(p), v); }
static inline void store(float *p, Floats v) { _mm256_storeu_ps(p, v); }
static inline void store(f16 *p, Floats v) {
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
static inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
static inline Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
static inline Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
static inline Floats abs(Floats a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline Floats rounded(Floats a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline Ints to_ints(Floats a) { return _mm256_cvtps_epi32(a); }
static inline Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
static inline Floats as_floats(Ints a) { return _mm256_castsi256_ps(a); }
static inline Ints as_ints(Floats a) { return _mm256_castps_si256(a); }
static inline float sum(Floats a) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
static inline float largest(Floats a) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
static inline int32_t sum_ints(Ints a) {
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}
static inline Ints add(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
static inline Ints sub(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
static inline Ints both(Ints a, Ints b) { return _mm256_and_si256(a, b); }
static inline Ints either(Ints a, Ints b) { return _mm256_or_si256(a, b); }
static inline Ints shift_left(Ints a, int n) { return _mm256_slli_epi32(a, n); }
static inline Ints shift_right(Ints a, int n) { return _mm256_srli_epi32(a, n); }
static inline Ints pair_sums(Ints w, Ints x) { return _mm256_maddubs_epi16(w, x); }
static inline Ints dot_shorts(Ints a, Ints b) { return _mm256_madd_epi16(a, b); }
static inline Ints add_shorts(Ints a, Ints b) { return _mm256_add_epi16(a, b); }
static inline Ints sub_shorts(Ints a, Ints b) { return _mm256_sub_epi16(a, b); }
static inline Ints all_shorts(int16_t x) { return _mm256_set1_epi16(x); }
static inline Ints low_bytes(Ints a) { return _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8); }
static inline Ints high_bytes(Ints a) { return _mm256_srai_epi16(a, 8); }
static inline Ints unsigned_high_bytes(Ints a) { return _mm256_srli_epi16(a, 8); }
static inline Ints shuffle_bytes(Ints a, __m128i places) {
  return _mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(places));
}
static inline Floats scale_by_power(Floats x, Floats n) {
  return x * as_floats(shift_left(add(to_ints(n), all_ints(127)), 23));
}
static inline Floats first_lanes(int count, Floats a, Floats b) {
  const Ints lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_blendv_ps(b, a, as_floats(_mm256_cmpgt_epi32(all_ints(count), lane)));
}
static inline void store_bytes(uint8_t *p, Ints v) {
  alignas(32) int32_t lanes[LANES];
  _mm256_store_si256(reinterpret_cast<__m256i *>(lanes), v);
  for (int i = 0; i < LANES; i++) p[i] = static_cast<uint8_t>(lanes[i]);
}

#endif

// As many integers without a sign as a vector has lanes, with operators.
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));

static inline int64_t sum(Words counts) {
  int64_t total = 0;
  for (int i = 0; i < LANES; i++) total += counts[i];
  return total;
}

// --- Sixteen-bit floats -------------------------------------------------------------------------------------------

// Rounds to nearest even, as torch does; the hardware's conversion would flush denormals.
static inline bf16 to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
static inline float to_float(bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}
static inline float to_float(f16 x) { return _cvtsh_ss(x.bits); }
static inline float to_float(float x) { return x; }
static inline void assign(float &out, float x) { out = x; }
static inline void assign(bf16 &out, float x) { out = to_bf16(x); }
static inline void assign(f16 &out, float x) { out = {static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT))}; }

static inline void store(bf16 *p, Floats v) {
#ifdef __AVX512BF16__
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), (__m256i)_mm512_cvtneps_pbh(v));
#else
  const Ints bits = as_ints(v);
  const Ints odd = both(shift_right(bits, 16), all_ints(1));
  const Ints kept = shift_right(add(add(bits, all_ints(0x7fff)), odd), 16);
#ifdef __AVX512F__
  const __mmask16 broken = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const Ints out = _mm512_mask_mov_epi32(kept, broken, all_ints(0x7fc0));
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm512_cvtepi32_epi16(out));
#else
  const Floats broken = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  const Ints out = as_ints(_mm256_blendv_ps(as_floats(kept), as_floats(all_ints(0x7fc0)), broken));
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(out), _mm256_extracti128_si256(out, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p), packed);
#endif
#endif
}

// --- Parts of vectors ---------------------------------------------------------------------------------------------

// The first `count` < LANES values, and zeros.
template <class T> static inline Floats load_part(const T *p, int count) {
  alignas(64) float lanes[LANES] = {};
  for (int i = 0; i < LANES; i++)
    if (i < count) lanes[i] = to_float(p[i]);
  return load(lanes);
}
template <class T> static inline void store_part(T *p, Floats v, int count) {
  alignas(64) float lanes[LANES];
  store(lanes, v);
  for (int i = 0; i < LANES; i++)
    if (i < count) assign(p[i], lanes[i]);
}

// --- Dot products: one 32-bit lane of weights with one of activations ----------------------------------------------

// acc + lo·lo + hi·hi of bf16 pairs. The instruction rounds both products at once; without it there are two roundings.
static inline Floats dot_pairs(Floats acc, Ints w, Ints x) {
#ifdef __AVX512BF16__
  return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x);
#else
  const Ints high = all_ints(static_cast<int32_t>(0xffff0000u));
  acc = fma(as_floats(shift_left(w, 16)), as_floats(shift_left(x, 16)), acc);
  return fma(as_floats(both(w, high)), as_floats(both(x, high)), acc);
#endif
}
// acc + the four products of bytes: unsigned weights, signed activations. Exact.
static inline Ints dot_bytes(Ints acc, Ints w, Ints x) {
#ifdef __AVX512VNNI__
  return _mm512_dpbusd_epi32(acc, w, x);
#else
  const Ints even = dot_shorts(both(w, all_shorts(0xff)), low_bytes(x));
  const Ints odd = dot_shorts(unsigned_high_bytes(w), high_bytes(x));
  return add(acc, add(even, odd));
#endif
}
// The same of two lanes each, whose weights have at most `BITS` bits: the sums of up to four products of six bits fit
// into sixteen.
template <int BITS> static inline Ints dot_bytes(Ints acc, Ints w0, Ints x0, Ints w1, Ints x1) {
#ifdef __AVX512VNNI__
  constexpr bool FITS = false;  // one instruction does all of it
#else
  constexpr bool FITS = BITS <= 6;
#endif
  if constexpr (!FITS) return dot_bytes(dot_bytes(acc, w0, x0), w1, x1);
  return add(acc, dot_shorts(add_shorts(pair_sums(w0, x0), pair_sums(w1, x1)), all_shorts(1)));
}

// `x`. What it was made of is computed here and in this order: gcc would add many products up as a tree, for which it
// has too few registers.
static inline Ints in_turn(Ints x) {
  asm("" : "+v"(x));
  return x;
}

// --- Functions ----------------------------------------------------------------------------------------------------

// An exponent of 2 within the limits of a float, and in two parts: a NaN is one, max and min return what comes second.
struct Exponent {
  Floats whole, rest;  // the latter within a half

  explicit Exponent(Floats x) {
    x = min(all(127.0f), max(all(-126.0f), x));
    whole = rounded(x), rest = x - whole;
  }
  // (2^rest - 1) / rest, by as many terms of its series.
  template <int TERMS> Floats slope() const {
    constexpr float SERIES[] = {6.93147181e-1f, 2.40226507e-1f, 5.55041087e-2f,
                                9.61812910e-3f, 1.33335581e-3f, 1.54035304e-4f};
    Floats p = all(SERIES[TERMS - 1]);
#pragma GCC unroll 8
    for (int i = TERMS - 2; i >= 0; i--) p = fma(p, rest, all(SERIES[i]));
    return p;
  }
};

// 2^x, relative error up to 4e-6; below -126 it stays at 2^-126.
static inline Floats exp2(Floats x) {
  const Exponent e(x);
  return scale_by_power(fma(e.slope<5>(), e.rest, all(1.0f)), e.whole);
}
constexpr float LOG2_E = 1.44269504f;
static inline Floats silu(Floats x) { return x / (all(1.0f) + exp2(x * all(-LOG2_E))); }
// x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))), which is x · sigmoid of twice what tanh is of.
static inline Floats gelu(Floats x) {
  constexpr float FACTOR = -LOG2_E * 1.59576912f;
  return x / (all(1.0f) + exp2(x * fma(x * x, all(FACTOR * 0.044715f), all(FACTOR))));
}

// x -> cap · tanh(x / cap), relative error up to 6e-7.
class Capping {
 public:
  explicit Capping(float cap) : cap_(all(cap)), factor_(all(2.0f * LOG2_E / cap)) {}

  Floats operator()(Floats x) const {
    const Exponent e(x * factor_);
    // e^(2 x / cap) - 1, exact where it is small
    const Floats power = scale_by_power(all(1.0f), e.whole);
    const Floats grown = fma(e.slope<6>(), e.rest * power, power - all(1.0f));
    return cap_ * (grown / (grown + all(2.0f)));
  }

 private:
  const Floats cap_, factor_;
};

// A sum of floats in double: exact but for the last digits, however many there are. Always in the same order.
class WideSum {
 public:
#ifdef __AVX512F__
  void add(Floats x) {
    low_ = low_ + _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    high_ = high_ + _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
  }
  double total() const { return _mm512_reduce_add_pd(low_ + high_); }

 private:
  __m512d low_ = _mm512_setzero_pd(), high_ = _mm512_setzero_pd();
#else
  void add(Floats x) {
    low_ = low_ + _mm256_cvtps_pd(_mm256_castps256_ps128(x));
    high_ = high_ + _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
  }
  double total() const {
    const __m256d both = low_ + high_;
    return (both[0] + both[1]) + (both[2] + both[3]);
  }

 private:
  __m256d low_ = _mm256_setzero_pd(), high_ = _mm256_setzero_pd();
#endif
};

// Asks for a cache line in L2. In assembly, because gcc deletes loops that hold nothing but `_mm_prefetch`.
static inline void prefetch(const void *p) { asm volatile("prefetcht1 %0" ::"m"(*static_cast<const char *>(p))); }
// The same, in L1.
static inline void prefetch_near(const void *p) { asm volatile("prefetcht0 %0" ::"m"(*static_cast<const char *>(p))); }

}  // namespace quire
