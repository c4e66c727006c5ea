// Paged attention: attention.h tells how it is cut up, attention_plan.h into which pieces of work.
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

// One thread at work on a step. Every thread walks the strips, to know which pieces are which.
template <class T, class Products> class Share {
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
    worker_.each(plan_.num_pieces(), 1, [this](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; piece++) attend_piece(piece);
    });
  }

  void merge() {
    worker_.each(plan_.num_folded(), FOLDS, [this](int64_t begin, int64_t end) {
      restart();
      for (int64_t first = 0, next; first < end; first = next, advance()) {
        next = first + (cut_.is_split ? heads_.num_kv * each() : 0);
        for (int64_t q = std::max(begin, first); q < std::min(end, next); q++) fold_parts(q - first);
      }
    });
  }

 private:
  static constexpr int64_t FOLDS = 16;  // query heads that are put together at a time

  // Goes to the strip of a piece; pieces mostly come in order. Then computes it.
  void attend_piece(int64_t piece) {
    if (!has_strip_ || piece < first_piece_) restart();
    while (piece >= first_piece_ + cut_.num_pieces()) advance();
    const int64_t part = (piece - first_piece_) / cut_.num_groups, group = (piece - first_piece_) % cut_.num_groups;
    const int64_t last = heads_.num_kv * (group + 1) / cut_.num_groups;
    const Tokens after = first_tile_after();
    for (int64_t first = heads_.num_kv * group / cut_.num_groups, next; first < last; first = next) {
      next = attender_.choose(strip_, first, last);
      if (cut_.is_split) attender_.attend(part, part_of(part).from(first * each(), heads_.padded), after);
      else attend_all(after);
    }
  }

  void restart() {
    slot_ = a_.parts + worker_.count * Workspace::floats(heads_);
    before_ = first_piece_ = 0;
    has_strip_ = true;
    take_strip(0);
  }

  void advance() {
    if (cut_.is_split) slot_ += slot_floats(heads_);
    before_ += plan_.work(strip_);
    first_piece_ += cut_.num_pieces();
    take_strip(strip_.row + strip_.count);
  }

  void take_strip(int64_t row) {
    if (row >= num_rows_) return;
    strip_ = strip_at(a_, heads_, row, num_rows_);
    cut_ = plan_.cut(strip_, before_);
  }

  // Computes all parts of the chosen heads, and the result.
  void attend_all(Tokens after) {
    const bool is_one = strip_.num_parts == 1;  // which folding would not change
    if (!is_one) clear(w_.whole, attender_.count(), heads_.padded);
    for (int64_t part = 0; part < strip_.num_parts; part++) {
      attender_.attend(part, w_.part, after);
      for (int64_t q = 0; !is_one && q < attender_.count(); q++)
        fold(w_.whole.from(q, heads_.padded), w_.part.from(q, heads_.padded), heads_.padded);
    }
    const Partial &whole = is_one ? w_.part : w_.whole;
    attender_.each_query([&](int64_t q, int64_t row, int64_t head) {
      finish<T>(a_, whole.from(q, heads_.padded), row, head);
    });
  }

  // Puts the parts of the strip's query head `q` together.
  void fold_parts(int64_t q) {
    clear(w_.whole, 1, heads_.padded);
    for (int64_t part = 0; part < strip_.num_parts; part++)
      fold(w_.whole, part_of(part).from(q, heads_.padded), heads_.padded);
    const int64_t row = strip_.row + q % each() / heads_.repeats, head = q / each() * heads_.repeats + q % heads_.repeats;
    finish<T>(a_, w_.whole, row, head);
  }

  // The first tile of the next strip, if this thread is likely to come to it and has not just read it.
  Tokens first_tile_after() const {
    const int64_t row = strip_.row + strip_.count;
    if (row >= num_rows_ || first_piece_ + cut_.num_pieces() >= worker_.end(plan_.num_pieces(), worker_.index))
      return NO_TOKENS;
    const Strip next = strip_at(a_, heads_, row, num_rows_);
    if (next.sequence == strip_.sequence) return NO_TOKENS;
    return {next.table, next.begin, std::min(next.end, next.begin / TILE * TILE + TILE)};
  }

  // Query heads of a key head in the strip.
  int64_t each() const { return strip_.count * heads_.repeats; }
  Partial part_of(int64_t part) const {
    return Partial::at(slot_ + part * Partial::floats(heads_.split, heads_.padded), heads_.split);
  }

  const Attention &a_;
  const Heads heads_;
  const int64_t num_rows_;
  const Worker worker_;
  const Plan plan_;
  const Workspace w_;
  Attender<T, Products> attender_;
  // The strip that this thread is at: the work and the pieces before it, and its slot if it is split.
  bool has_strip_ = false;
  Strip strip_;
  Plan::Cut cut_;
  int64_t before_, first_piece_;
  float *slot_;
};

// Calls `body` with this thread's share, for the cache's type and the products.
template <class Body> void with_share(const Attention &a, int64_t num_rows, Worker worker, Body body) {
  const auto go = [&](auto type) {
    using T = decltype(type);
    with_products<T>(Heads(a).padded, [&](auto products) {
      body(Share<T, typename decltype(products)::Type>(a, num_rows, worker));
    });
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
