// Keys, values, queries and weights as 32-bit words, and how vectors of words are multiplied and summed.
//
// A word is one float, or two bf16, or two int16: what one lane of a product takes. Keys pair neighbouring dimensions
// of a token, values pair neighbouring tokens of a dimension. INT8 caches widen to int16, against queries and weights
// rounded to int16: exact sums at the price of bf16 ones.
#pragma once

#include "simd.h"

namespace quire::attending {

using Words = Ints;

// --- Arithmetic ---------------------------------------------------------------------------------------------------

struct FloatWords {
  using Sum = Floats;
  static constexpr int PER_WORD = 1;
  static Sum zero() { return zeros(); }
  static Sum dot(Sum sum, Words a, Words b) { return fma(as_floats(a), as_floats(b), sum); }
};

struct BfloatWords {
  using Sum = Floats;
  static constexpr int PER_WORD = 2;
  static Sum zero() { return zeros(); }
  static Sum dot(Sum sum, Words a, Words b) { return dot_pairs(sum, a, b); }
};

struct ShortWords {
  using Sum = Ints;
  static constexpr int PER_WORD = 2;
  static Sum zero() { return int_zeros(); }
  static Sum dot(Sum sum, Words a, Words b) {
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(sum, a, b);
#elif defined(__AVX512BW__)
    return add(sum, _mm512_madd_epi16(a, b));
#else
    return add(sum, _mm256_madd_epi16(a, b));
#endif
  }
};

static inline Floats plus(Floats a, Floats b) { return a + b; }
static inline Ints plus(Ints a, Ints b) { return add(a, b); }
static inline Floats floats_of(Floats a) { return a; }
static inline Floats floats_of(Ints a) { return to_floats(a); }
static inline Words word(const int32_t *p) { return all_ints(*p); }

// --- What the caches store ----------------------------------------------------------------------------------------

// How a vector of words is read; `HAS_SCALE`: a float stands behind each head.
template <class T> struct Stored;
template <> struct Stored<float> {
  using Family = FloatWords;
  static constexpr bool HAS_SCALE = false;
  static Words load(const void *p) { return load_ints(p); }
};
template <> struct Stored<f16> {
  using Family = FloatWords;
  static constexpr bool HAS_SCALE = false;
  static Words load(const void *p) { return as_ints(quire::load(static_cast<const f16 *>(p))); }
};
template <> struct Stored<bf16> {
  using Family = BfloatWords;
  static constexpr bool HAS_SCALE = false;
  static Words load(const void *p) { return load_ints(p); }
};
template <> struct Stored<int8_t> {
  using Family = ShortWords;
  static constexpr bool HAS_SCALE = true;
  static Words load(const void *p) {
#ifdef __AVX512F__
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i *>(p)));
#else
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i *>(p)));
#endif
  }
};

template <class T> constexpr int64_t HEAD_TRAILER = Stored<T>::HAS_SCALE ? sizeof(float) : 0;
// Values in a vector of words, and the bytes they take in the cache.
template <class T> constexpr int64_t VALUES = LANES * Stored<T>::Family::PER_WORD;
template <class T> constexpr int64_t VECTOR_BYTES = VALUES<T> * static_cast<int64_t>(sizeof(T));

static inline void store_shorts(void *p, Ints v) {
#ifdef __AVX512F__
  _mm256_storeu_si256(static_cast<__m256i *>(p), _mm512_cvtepi32_epi16(v));
#else
  const __m128i packed = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  _mm_storeu_si128(static_cast<__m128i *>(p), packed);
#endif
}

// --- Shuffles: within each 128 bits, except the last ones ----------------------------------------------------------

#ifdef __AVX512F__
static inline Words low_words(Words a, Words b) { return _mm512_unpacklo_epi32(a, b); }
static inline Words high_words(Words a, Words b) { return _mm512_unpackhi_epi32(a, b); }
static inline Words low_doubles(Words a, Words b) { return _mm512_unpacklo_epi64(a, b); }
static inline Words high_doubles(Words a, Words b) { return _mm512_unpackhi_epi64(a, b); }
static inline Words low_shorts(Words a, Words b) { return _mm512_unpacklo_epi16(a, b); }
static inline Words high_shorts(Words a, Words b) { return _mm512_unpackhi_epi16(a, b); }
// Quarters 0 and 2, or 1 and 3, of a, then of b.
static inline Words even_quarters(Words a, Words b) { return _mm512_shuffle_i32x4(a, b, 0x88); }
static inline Words odd_quarters(Words a, Words b) { return _mm512_shuffle_i32x4(a, b, 0xdd); }
#else
static inline Words low_words(Words a, Words b) { return _mm256_unpacklo_epi32(a, b); }
static inline Words high_words(Words a, Words b) { return _mm256_unpackhi_epi32(a, b); }
static inline Words low_doubles(Words a, Words b) { return _mm256_unpacklo_epi64(a, b); }
static inline Words high_doubles(Words a, Words b) { return _mm256_unpackhi_epi64(a, b); }
static inline Words low_shorts(Words a, Words b) { return _mm256_unpacklo_epi16(a, b); }
static inline Words high_shorts(Words a, Words b) { return _mm256_unpackhi_epi16(a, b); }
static inline Words low_halves(Words a, Words b) { return _mm256_permute2x128_si256(a, b, 0x20); }
static inline Words high_halves(Words a, Words b) { return _mm256_permute2x128_si256(a, b, 0x31); }
#endif

static inline Words bits(Floats a) { return as_ints(a); }
static inline Words bits(Ints a) { return a; }
template <class Sum> static inline Sum sum_of(Words a);
template <> inline Floats sum_of<Floats>(Words a) { return as_floats(a); }
template <> inline Ints sum_of<Ints>(Words a) { return a; }
template <class Sum> static inline Words folded(Words a, Words b) { return bits(plus(sum_of<Sum>(a), sum_of<Sum>(b))); }

// The sums across LANES vectors, as one vector, in two steps: of four vectors within each 128 bits, then of those.
template <class Sum> static inline Words sums_of_four(const Sum (&v)[4]) {
  const Words a = bits(v[0]), b = bits(v[1]), c = bits(v[2]), d = bits(v[3]);
  const Words ab = folded<Sum>(low_words(a, b), high_words(a, b)), cd = folded<Sum>(low_words(c, d), high_words(c, d));
  return folded<Sum>(low_doubles(ab, cd), high_doubles(ab, cd));
}
template <class Sum> static inline Sum sums_across(const Words (&fours)[LANES / 4]) {
#ifdef __AVX512F__
  const Words low = folded<Sum>(even_quarters(fours[0], fours[1]), odd_quarters(fours[0], fours[1]));
  const Words high = folded<Sum>(even_quarters(fours[2], fours[3]), odd_quarters(fours[2], fours[3]));
  return sum_of<Sum>(folded<Sum>(even_quarters(low, high), odd_quarters(low, high)));
#else
  return sum_of<Sum>(folded<Sum>(low_halves(fours[0], fours[1]), high_halves(fours[0], fours[1])));
#endif
}

// Undoes what pairing tokens with low_shorts and high_shorts does to the order of dimensions.
static inline void reorder(Floats &low, Floats &high) {
#ifdef __AVX512F__
  const Ints first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const Ints second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  const Floats start = _mm512_permutex2var_ps(low, first, high);
  high = _mm512_permutex2var_ps(low, second, high);
#else
  const Floats start = as_floats(low_halves(as_ints(low), as_ints(high)));
  high = as_floats(high_halves(as_ints(low), as_ints(high)));
#endif
  low = start;
}

}  // namespace quire::attending
