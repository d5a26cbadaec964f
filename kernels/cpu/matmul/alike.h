// Products of a few rows with the bits of a product of many.
//
// How a BLAS forms a row depends on the product's sizes and on the row's place in it: small
// products go by kernels of their own, and so do the rows that are left over from a kernel's block.
// But there are few ways, and within one a row's bits follow from its operands alone. So a row is
// put where a product of as few rows as can be forms it in the way that it is formed in the whole
// product. Which places those are depends on the library and the processor, and is found by trial,
// once per process and sizes: rows that are equal must have equal products, and where they have
// not, the ways differ. (Two ways differ in about every third element of random rows.)
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace millrace::cpu {

// A tile of a product, of whose operands a [rows, k] is row-major, and b as given.
struct TileKey {
  int64_t n, k;
  bool b_transposed;
  bool adds;  // to what is there (beta 1)
  auto operator<=>(const TileKey&) const = default;
};

// A product of `tile_rows` rows, some of which have rows of the caller's: places[i] has row
// rows[i].
struct AlikeProduct {
  int64_t tile_rows = 0;
  std::vector<int64_t> places, rows;
};

// Where a row of a product of `rows` rows lies, which is cut into tiles of at most `most` rows: the
// rows of its tile, and its place in it.
std::pair<int64_t, int64_t> PlaceInTile(int64_t row, int64_t rows, int64_t most);

// The way, by number, in which a product of `tile_rows` rows forms the row at each of its places.
// Threads  Callable from several threads at once.
std::vector<int> WaysOf(int64_t tile_rows, const TileKey& tile);

// Products that together form each row r as place wanted[r].second of a product of wanted[r].first
// rows forms it. None has more rows than the largest wanted.first.
// Threads  Callable from several threads at once.
std::vector<AlikeProduct> ProductsAlike(const std::vector<std::pair<int64_t, int64_t>>& wanted,
                                        const TileKey& tile);

}  // namespace millrace::cpu
