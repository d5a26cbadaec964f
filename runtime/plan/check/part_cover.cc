#include "runtime/plan/check/part_cover.h"

#include <algorithm>
#include <utility>

namespace millrace {

std::optional<Columns> ColumnsOf(const View& view) {
  if (view.microbatch_stride != 0) return std::nullopt;
  const Layout& layout = view.layout;
  int64_t width = 1, stride = 0, next = 0;  // next: where a further row of rows would begin
  for (int i = layout.rank - 1; i >= 0; --i) {
    const int64_t dim = layout.dims[static_cast<size_t>(i)],
                  step = layout.strides[static_cast<size_t>(i)];
    if (dim == 1) continue;
    if (stride == 0 && step == width) {
      width *= dim;
    } else if (stride == 0 && step > width) {
      stride = step;
      next = step * dim;
    } else if (stride != 0 && step == next) {
      next *= dim;
    } else {
      return std::nullopt;
    }
  }
  if (stride == 0) return std::nullopt;
  const int64_t size = Bytes(layout.dtype);
  return Columns{view.offset * size, stride * size, width * size, next / stride};
}

bool Tile(std::vector<Columns> columns) {
  std::sort(columns.begin(), columns.end(),
            [](const Columns& a, const Columns& b) { return a.begin < b.begin; });
  int64_t at = columns.front().begin;
  for (const Columns& part : columns) {
    const Columns& first = columns.front();
    if (part.stride != first.stride || part.rows != first.rows || part.begin != at) return false;
    at += part.width;
  }
  return at == columns.front().begin + columns.front().stride;
}

std::vector<ByteRange> Merged(std::vector<ByteRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  std::vector<ByteRange> merged;
  for (const ByteRange& range : ranges)
    if (merged.empty() || merged.back().end < range.begin)
      merged.push_back(range);
    else
      merged.back().end = std::max(merged.back().end, range.end);
  return merged;
}

bool PartCover::Add(CellId cell, const ByteRange& bytes, const Columns& columns) {
  Written& written = cells_[cell.value];
  if (written.stride != columns.stride) written = {columns.stride, {}};
  // What holds for a row's worth of bytes holds for all of the cell.
  const int64_t row = std::min(columns.stride, bytes.end - bytes.begin);
  int64_t at = (columns.begin - bytes.begin) % columns.stride;
  if (at > 0) at -= columns.stride;
  for (; at < row; at += columns.stride) {
    const ByteRange part{std::max<int64_t>(at, 0), std::min(at + columns.width, row)};
    if (part.begin < part.end) written.bytes.push_back(part);
  }
  written.bytes = Merged(std::move(written.bytes));
  if (written.bytes.size() != 1 || written.bytes[0].begin != 0 || written.bytes[0].end != row)
    return false;
  Forget(cell);
  return true;
}

}  // namespace millrace
