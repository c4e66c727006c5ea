// Norm and rotation of queries and keys, and the writing of keys and values to the paged cache.
//
// A unit of work is one head of one row; each is computed from left to right, so its bits depend on nothing else.
#include <algorithm>

#include "record.h"
#include "simd.h"

namespace quire {
namespace {

// Calls `body(i, lanes)` for each vector of `width` values; the last one may have fewer lanes.
template <class Body> void each_vector(int64_t width, Body body) {
  for (int64_t i = 0; i < width; i += LANES) body(i, static_cast<int>(std::min<int64_t>(LANES, width - i)));
}
template <class T> Floats take(const T *p, int lanes) { return lanes == LANES ? load(p) : load_part(p, lanes); }
template <class T> void put(T *p, Floats v, int lanes) { lanes == LANES ? store(p, v) : store_part(p, v, lanes); }

// The largest number a cache can hold; INT8 ones hold what a float can.
template <class T> constexpr float LARGEST = 3.40282347e38f;
template <> constexpr float LARGEST<bf16> = 3.38953139e38f;
template <> constexpr float LARGEST<f16> = 65504.0f;

// What does not fit is as large as possible, what is not a number is 0: max and min return 0 for it.
template <class T> Floats finite(Floats x) {
  return min(max(x, zeros()), all(LARGEST<T>)) + max(min(x, zeros()), all(-LARGEST<T>));
}

float inverse_rms(const float *x, int64_t width, float eps) {
  Floats squares = zeros();
  each_vector(width, [&](int64_t i, int lanes) {
    const Floats v = take(x + i, lanes);
    squares = fma(v, v, squares);
  });
  return 1.0f / std::sqrt(sum(squares) / static_cast<float>(width) + eps);
}

// Writes the head whose vectors `each` passes to its argument.
template <class T, class Each> void write(T *out, int64_t, Each each) {
  each([out](int64_t i, Floats v, int lanes) { put(out + i, v, lanes); });
}
// As integers round(x / scale), then the scale: 127 is the largest one.
template <class Each> void write(int8_t *out, int64_t width, Each each) {
  Floats most = zeros();
  each([&most](int64_t, Floats v, int) { most = max(abs(finite<int8_t>(v)), most); });
  const float scale = largest(most) / 127.0f;
  // Of a scale of 0, or nearly, nothing is left: its quotients would not be integers up to 127.
  const Floats divisor = all(std::fmax(scale, 1e-37f)), limit = all(127.0f);
  each([=](int64_t i, Floats v, int lanes) {
    const Ints rounded = to_ints(max(min(finite<int8_t>(v) / divisor, limit), zeros() - limit));
    uint8_t bytes[LANES];
    store_bytes(bytes, rounded);
    std::memcpy(out + i, bytes, static_cast<size_t>(lanes));
  });
  std::memcpy(out + width, &scale, sizeof(scale));
}

// One row: its queries, and where its keys and values go in caches of T.
template <class T, class Query> class Row {
 public:
  Row(const Rotate &r, int64_t row) : r_(r), width_(r.head_dim) {
    const PagedRows &p = r.paged_rows;
    const int64_t position = p.positions[row], size = p.block_size;
    const int64_t block = p.block_tables[p.state_rows[row] * p.table_stride + position / size];
    const int64_t bytes = width_ * static_cast<int64_t>(sizeof(T)) + (std::is_same_v<T, int8_t> ? sizeof(float) : 0);
    heads_ = static_cast<const float *>(r.qkv.data) + row * r.qkv.stride;
    rope_ = r.rope + position * width_;
    queries_ = static_cast<Query *>(r.queries.data) + row * r.queries.stride;
    query_scale_ = r.query_scale == nullptr ? nullptr : r.query_scale + position;
    const auto slot = [&](const Cache &cache) {
      return static_cast<char *>(cache.data) + block * cache.block_stride * static_cast<int64_t>(sizeof(T)) +
             position % size * r.num_kv_heads * bytes;
    };
    keys_ = slot(r.keys), values_ = slot(r.values), head_bytes_ = bytes;
  }

  // Heads are numbered through: queries, keys, values.
  void write_head(int64_t head) const {
    const int64_t key = head - r_.num_heads, value = key - r_.num_kv_heads;
    const auto rotated = [this, head](auto put) { each_rotated(head, put); };
    const auto scaled = [this, rotated](auto put) { rotated(scaling(put)); };
    if (key < 0 && query_scale_ == nullptr) write(queries_ + head * width_, width_, rotated);
    else if (key < 0) write(queries_ + head * width_, width_, scaled);
    else if (value < 0) write(reinterpret_cast<T *>(keys_ + key * head_bytes_), width_, rotated);
    else write(reinterpret_cast<T *>(values_ + value * head_bytes_), width_, [this, head](auto put) {
      each_finite(head, put);
    });
  }

 private:
  // Passes vectors times the factor of the position on to `put`.
  template <class Put> auto scaling(Put put) const {
    return [put, factor = all(*query_scale_)](int64_t i, Floats v, int lanes) { put(i, v * factor, lanes); };
  }

  // The two halves of a head are the coordinates of points, each turned by an angle of its own.
  template <class Put> void each_rotated(int64_t head, Put put) const {
    const float *x = heads_ + head * width_;
    const float *weight = r_.norm_weight == nullptr ? nullptr : r_.norm_weight + head * width_;
    const Floats scale = all(weight == nullptr ? 1.0f : inverse_rms(x, width_, r_.eps));
    const int64_t half = width_ / 2;
    each_vector(half, [&](int64_t i, int lanes) {
      Floats a = take(x + i, lanes), b = take(x + half + i, lanes);
      if (weight != nullptr) {
        a = a * scale * take(weight + i, lanes);
        b = b * scale * take(weight + half + i, lanes);
      }
      const Floats cos = take(rope_ + i, lanes), sin = take(rope_ + half + i, lanes);
      put(i, a * cos - b * sin, lanes);
      put(half + i, b * cos + a * sin, lanes);
    });
  }

  // An overflowed value must not affect later owners of the block, which multiply the values of hidden slots by 0.
  template <class Put> void each_finite(int64_t head, Put put) const {
    const float *x = heads_ + head * width_;
    each_vector(width_, [&](int64_t i, int lanes) { put(i, finite<T>(take(x + i, lanes)), lanes); });
  }

  const Rotate &r_;
  const int64_t width_;
  const float *heads_, *rope_, *query_scale_;
  Query *queries_;
  char *keys_, *values_;
  int64_t head_bytes_;
};

// Claiming costs nothing beside so many values.
constexpr int64_t STRETCH = 2048;

template <class T, class Query> void rotate_rows(const Rotate &r, int64_t num_rows, Worker worker) {
  const int64_t heads = r.num_heads + 2 * r.num_kv_heads;
  worker.each(num_rows * heads, STRETCH / r.head_dim + 1, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end;) {
      const int64_t row = unit / heads;
      const Row<T, Query> target(r, row);
      for (; unit < std::min(end, (row + 1) * heads); unit++) target.write_head(unit - row * heads);
    }
  });
}

template <class T> void rotate_into(const Rotate &r, int64_t num_rows, Worker worker) {
  if (r.queries.type == BFLOAT16) rotate_rows<T, bf16>(r, num_rows, worker);
  else rotate_rows<T, float>(r, num_rows, worker);
}

}  // namespace

void rotate(const Rotate &r, int64_t num_rows, Worker worker) {
  switch (r.keys.type) {
    case FLOAT32: return rotate_into<float>(r, num_rows, worker);
    case FLOAT16: return rotate_into<f16>(r, num_rows, worker);
    case BFLOAT16: return rotate_into<bf16>(r, num_rows, worker);
    case INT8: return rotate_into<int8_t>(r, num_rows, worker);
  }
}

}  // namespace quire
