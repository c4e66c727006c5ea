// Paged attention: attention.h tells how it is cut up, attention_plan.h who computes what.
#include "attention.h"

#include "attention_plan.h"
#include "attention_tile.h"
#include "record.h"
#include "simd.h"

namespace quire {
namespace attending {
namespace {

void clear(const Partial &p, int64_t count, int64_t padded) {
  std::fill_n(p.largest, count, NOTHING);
  std::fill_n(p.sum, count, 0.0f);
  std::fill_n(p.values, count * padded, 0.0f);
}

// Adds a part of one query head to the parts before it.
void fold(const Partial &whole, const Partial &part, int64_t padded) {
  const float largest = std::fmax(*whole.largest, *part.largest);
  const float before = exp2_of(*whole.largest - largest), now = exp2_of(*part.largest - largest);
  *whole.largest = largest;
  *whole.sum = *whole.sum * before + *part.sum * now;
  for (int64_t i = 0; i < padded; i += LANES)
    store(whole.values + i, fma(load(part.values + i), all(now), load(whole.values + i) * all(before)));
}

template <class T, class Out> void write(Out *out, const Partial &whole, int64_t dim) {
  const auto put = [dim, out](int64_t i, Floats v) {
    if (i + LANES <= dim) store(out + i, v);
    else if (i < dim) store_part(out + i, v, static_cast<int>(dim - i));
  };
  const Floats scale = all(1.0f / *whole.sum);
  for (int64_t i = 0; i < dim; i += 2 * LANES) {
    Floats low = load(whole.values + i) * scale, high = load(whole.values + i + LANES) * scale;
    if constexpr (Stored<T>::Family::PER_WORD == 2) reorder(low, high);
    put(i, low), put(i + LANES, high);
  }
}

template <class T> void finish(const Attention &a, const Partial &whole, int64_t row, int64_t head) {
  const int64_t at = row * a.out.stride + head * a.head_dim;
  if (a.out.type == BFLOAT16) write<T>(static_cast<bf16 *>(a.out.data) + at, whole, a.head_dim);
  else write<T>(static_cast<float *>(a.out.data) + at, whole, a.head_dim);
}

// One thread's share of a step. Every thread walks all strips, to know where its own begin.
template <class T, class Way> class Share {
 public:
  Share(const Attention &a, int64_t num_rows, Worker worker)
      : a_(a),
        heads_(a),
        num_rows_(num_rows),
        worker_(worker),
        plan_(a, heads_, num_rows, worker.count),
        w_(Workspace::at(a.parts + worker.index * Workspace::floats(heads_), heads_)),
        attender_(a, heads_, w_) {}

  void attend() {
    each_strip([this](const Strip &strip, int64_t before, float *slot) {
      const Tokens after = first_tile_after(strip, before);
      if (slot == nullptr) each_choice(strip, before, ALL, [&](int64_t) { attend_all(strip, after); });
      else for (int64_t part = 0; part < strip.num_parts; part++)
        each_choice(strip, before, part, [&](int64_t first) {
          attender_.attend(part, part_of(slot, part).from(first * each(strip), heads_.padded), after);
        });
    });
  }

  void merge() {
    each_strip([this](const Strip &strip, int64_t, float *slot) {
      const int64_t repeats = heads_.repeats, count = slot == nullptr ? 0 : heads_.num_kv * each(strip);
      for (int64_t q = worker_.begin(count); q < worker_.end(count); q++) {
        clear(w_.whole, 1, heads_.padded);
        for (int64_t part = 0; part < strip.num_parts; part++)
          fold(w_.whole, part_of(slot, part).from(q, heads_.padded), heads_.padded);
        const int64_t row = strip.row + q % each(strip) / repeats, head = q / each(strip) * repeats + q % repeats;
        finish<T>(a_, w_.whole, row, head);
      }
    });
  }

 private:
  // Calls `body(strip, before, slot)` for each strip; `slot` is null unless several threads share its parts.
  template <class Body> void each_strip(Body body) {
    float *slots = a_.parts + worker_.count * Workspace::floats(heads_);
    int64_t before = 0;
    for (int64_t row = 0; row < num_rows_;) {
      const Strip strip = strip_at(a_, heads_, row, num_rows_);
      const bool is_split = plan_.is_split(strip, before);
      body(strip, before, is_split ? slots : nullptr);
      if (is_split) slots += slot_floats(heads_);
      before += plan_.work(strip);
      row += strip.count;
    }
  }

  // Calls `body(first)` after choosing this thread's key heads, as many at a time as the workspace holds.
  template <class Body> void each_choice(const Strip &strip, int64_t before, int64_t part, Body body) {
    const Unit unit = plan_.unit(strip, before, part, worker_.index);
    for (int64_t first = unit.first, last; first < unit.last; first = last) {
      last = attender_.choose(strip, first, unit.last);
      body(first);
    }
  }

  // Computes all parts of the chosen heads, and the result.
  void attend_all(const Strip &strip, Tokens after) {
    const bool is_one = strip.num_parts == 1;  // which folding would not change
    if (!is_one) clear(w_.whole, attender_.count(), heads_.padded);
    for (int64_t part = 0; part < strip.num_parts; part++) {
      attender_.attend(part, w_.part, after);
      for (int64_t q = 0; !is_one && q < attender_.count(); q++)
        fold(w_.whole.from(q, heads_.padded), w_.part.from(q, heads_.padded), heads_.padded);
    }
    const Partial &whole = is_one ? w_.part : w_.whole;
    attender_.each_query([&](int64_t q, int64_t row, int64_t head) {
      finish<T>(a_, whole.from(q, heads_.padded), row, head);
    });
  }

  // The first tile of the next strip, if it is this thread's and has not just been read.
  Tokens first_tile_after(const Strip &s, int64_t before) const {
    const int64_t row = s.row + s.count;
    if (row >= num_rows_ || plan_.owner(before + plan_.work(s)) != worker_.index) return NO_TOKENS;
    const Strip next = strip_at(a_, heads_, row, num_rows_);
    if (next.sequence == s.sequence) return NO_TOKENS;
    return {next.table, next.begin, std::min(next.end, next.begin / TILE * TILE + TILE)};
  }

  int64_t each(const Strip &s) const { return s.count * heads_.repeats; }
  Partial part_of(float *slot, int64_t part) const {
    return Partial::at(slot + part * Partial::floats(heads_.split, heads_.padded), heads_.split);
  }

  const Attention &a_;
  const Heads heads_;
  const int64_t num_rows_;
  const Worker worker_;
  const Plan plan_;
  const Workspace w_;
  Attender<T, Way> attender_;
};

// Calls `body` with this thread's share, of what the cache stores and the way it is computed.
template <class Body> void with_share(const Attention &a, int64_t num_rows, Worker worker, Body body) {
  const auto go = [&](auto type) {
    using T = decltype(type);
    with_way<T>(Heads(a).padded, [&](auto way) { body(Share<T, typename decltype(way)::Type>(a, num_rows, worker)); });
  };
  switch (a.keys.type) {
    case FLOAT32: return go(float{});
    case FLOAT16: return go(f16{});
    case BFLOAT16: return go(bf16{});
    case INT8: return go(int8_t{});
  }
}

}  // namespace
}  // namespace attending

void attention(const Attention &a, int64_t num_rows, Worker worker) {
  attending::with_share(a, num_rows, worker, [](auto share) { share.attend(); });
}

void merge_attention(const Attention &a, int64_t num_rows, Worker worker) {
  attending::with_share(a, num_rows, worker, [](auto share) { share.merge(); });
}

}  // namespace quire
