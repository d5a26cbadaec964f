// What is written in part: columns of rows, until together they fill the bytes they lie in.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "runtime/plan/step_plan.h"

namespace millrace {

using CellId = Id<struct CellTag>;  // of the arena, cut where ops begin and end (access_table.h)

// Bytes [begin + i * stride, + width) of every row i of `rows`.
struct Columns {
  int64_t begin = 0, stride = 0, width = 0, rows = 0;
  bool operator==(const Columns&) const = default;
};

// Does the view leave out bytes of its span?
inline bool HasHoles(const View& view) {
  return view.layout.numel() * Bytes(view.layout.dtype) != view.layout.span_bytes();
}

// The bytes of a view with holes, from that of the buffer's first element on; of rank 0 and
// microbatch 0. None: its rows do not lie at one distance each.
std::optional<Columns> ColumnsOf(const View& view);

// Are they all of the same rows, and does each byte of these belong to exactly one?
bool Tile(std::vector<Columns> columns);

// Sorted and disjoint.
std::vector<ByteRange> Merged(std::vector<ByteRange> ranges);

// Cells that ops write in part, one after another.
class PartCover {
 public:
  // The columns are written in the cell, which lies in the span of their view. True: with what else
  // has been since Forget they fill it, and it is forgotten. Columns of rows at another distance
  // count for nothing from here on.
  bool Add(CellId cell, const ByteRange& bytes, const Columns& columns);
  void Forget(CellId cell) { cells_.erase(cell.value); }
  void Clear() { cells_.clear(); }
  bool operator==(const PartCover&) const = default;

 private:
  struct Written {
    int64_t stride = 0;
    std::vector<ByteRange> bytes;  // of the cell's first row, from its first byte on; Merged
    bool operator==(const Written& other) const {
      return stride == other.stride &&
             std::equal(bytes.begin(), bytes.end(), other.bytes.begin(), other.bytes.end(),
                        [](const ByteRange& a, const ByteRange& b) {
                          return a.begin == b.begin && a.end == b.end;
                        });
    }
  };
  std::unordered_map<int32_t, Written> cells_;  // by CellId
};

}  // namespace millrace
