#include "kernels/cpu/matmul/alike.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "kernels/cpu/matmul/gemm.h"
#include "runtime/base/error.h"
#include "runtime/base/philox.h"

namespace millrace::cpu {
namespace {

// Values in [-1, 1) that fill a float's fraction.
std::vector<float> Random(int64_t count, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(2 * UnitUniform(PhiloxBlock(1, stream, i)[0]) - 1);
  return values;
}

// The ways in which products with one tile's other sizes form rows, by number.
class Ways {
 public:
  explicit Ways(const TileKey& tile) : tile_(tile), b_(Random(tile.n * tile.k, 0)) {}

  // Of each place of a product of so many rows.
  const std::vector<int>& Of(int64_t tile_rows) {
    auto known = of_.find(tile_rows);
    if (known == of_.end()) known = of_.try_emplace(tile_rows, Try(tile_rows)).first;
    return known->second;
  }

 private:
  // As many elements of equal rows that all have to agree.
  static constexpr int64_t kTried = 256;

  std::vector<int> Try(int64_t tile_rows) {
    const int64_t trials = std::max<int64_t>(1, kTried / tile_.n);
    std::vector<std::vector<float>> formed(static_cast<size_t>(tile_rows));
    for (int64_t trial = 0; trial < trials; ++trial) {
      const std::vector<float> row = Random(tile_.k, static_cast<uint64_t>(2 * trial + 1)),
                               before = Random(tile_.n, static_cast<uint64_t>(2 * trial + 2));
      std::vector<float> a, c;
      for (int64_t i = 0; i < tile_rows; ++i) {
        a.insert(a.end(), row.begin(), row.end());
        c.insert(c.end(), before.begin(), before.end());
      }
      Gemm(tile_rows, tile_.n, tile_.k, 1.0f, {a.data(), tile_.k},
           {b_.data(), tile_.b_transposed ? tile_.k : tile_.n, tile_.b_transposed},
           tile_.adds ? 1.0f : 0.0f, c.data(), tile_.n);
      for (int64_t i = 0; i < tile_rows; ++i)
        formed[static_cast<size_t>(i)].insert(formed[static_cast<size_t>(i)].end(),
                                              c.begin() + i * tile_.n,
                                              c.begin() + (i + 1) * tile_.n);
    }
    std::vector<int> ways;
    for (const std::vector<float>& each : formed)
      ways.push_back(numbers_.try_emplace(each, static_cast<int>(numbers_.size())).first->second);
    return ways;
  }

  TileKey tile_;
  std::vector<float> b_;
  std::map<std::vector<float>, int> numbers_;  // by what is formed of the trials' rows
  std::map<int64_t, std::vector<int>> of_;
};

// The smallest product, of at most `most` rows, with `count` places of a way; else that with most.
AlikeProduct SmallestWith(Ways& ways, int way, int64_t count, int64_t most) {
  AlikeProduct best;
  const auto look = [&](int64_t tile_rows) {
    const std::vector<int>& of = ways.Of(tile_rows);
    std::vector<int64_t> places;
    for (size_t i = 0; i < of.size() && std::ssize(places) < count; ++i)
      if (of[i] == way) places.push_back(static_cast<int64_t>(i));
    if (places.size() > best.places.size()) best = {tile_rows, std::move(places), {}};
    return std::ssize(best.places) == count;
  };
  for (int64_t tile_rows = 4; tile_rows < most; tile_rows *= 2)
    if (look(tile_rows)) return best;
  look(most);
  return best;
}

// What was tried so far. Held while one looks at it or tries more.
class Found {
 public:
  explicit Found(const TileKey& tile)
      : lock_(mutex_), ways_(found_.try_emplace(tile, tile).first->second) {}
  Ways& ways() { return ways_; }

 private:
  static inline std::mutex mutex_;
  static inline std::map<TileKey, Ways> found_;
  std::lock_guard<std::mutex> lock_;
  Ways& ways_;
};

}  // namespace

std::pair<int64_t, int64_t> PlaceInTile(int64_t row, int64_t rows, int64_t most) {
  const int64_t begin = row / most * most;
  return {std::min(most, rows - begin), row - begin};
}

std::vector<int> WaysOf(int64_t tile_rows, const TileKey& tile) {
  return Found(tile).ways().Of(tile_rows);
}

std::vector<AlikeProduct> ProductsAlike(const std::vector<std::pair<int64_t, int64_t>>& wanted,
                                        const TileKey& tile) {
  Found found(tile);
  Ways& ways = found.ways();
  std::map<std::pair<int, int64_t>, std::vector<int64_t>> rows;  // by way, whole product's rows
  for (size_t r = 0; r < wanted.size(); ++r) {
    const auto [tile_rows, place] = wanted[r];
    MR_CHECK(place >= 0 && place < tile_rows, "place {} of {} rows", place, tile_rows);
    rows[{ways.Of(tile_rows)[static_cast<size_t>(place)], tile_rows}].push_back(
        static_cast<int64_t>(r));
  }
  std::vector<AlikeProduct> products;
  for (auto& [by, left] : rows)
    while (!left.empty()) {
      AlikeProduct product = SmallestWith(ways, by.first, std::ssize(left), by.second);
      const auto count = static_cast<std::ptrdiff_t>(product.places.size());
      product.rows.assign(left.begin(), left.begin() + count);
      left.erase(left.begin(), left.begin() + count);
      products.push_back(std::move(product));
    }
  return products;
}

}  // namespace millrace::cpu
