#include "runtime/exec/input_rows.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace millrace {

void CopyScaled(std::span<const std::byte> from, float factor, std::byte* to) {
  for (size_t at = 0; at < from.size(); at += sizeof(float)) {
    float value;
    std::memcpy(&value, from.data() + at, sizeof value);
    value *= factor;
    std::memcpy(to + at, &value, sizeof value);
  }
}

std::vector<std::byte> ChunksOf(std::span<const std::byte> rows, const InputWindow& window,
                                int64_t size, int64_t n, int64_t c) {
  const int64_t row = (window.positions + window.extra) * size, bytes = std::ssize(rows);
  const int64_t chunk = window.positions / (2 * n);
  std::vector<std::byte> chunks;
  for (int64_t begin = 0; begin < bytes; begin += row) {
    for (const int64_t j : {c, 2 * n - 1 - c}) {
      const int64_t from = begin + j * chunk * size, end = from + (chunk + window.extra) * size;
      chunks.insert(chunks.end(), rows.begin() + std::min(from, bytes),
                    rows.begin() + std::min(end, bytes));
      chunks.resize(chunks.size() +
                    static_cast<size_t>(end - std::max(from, std::min(end, bytes))));
    }
  }
  return chunks;
}

std::vector<std::byte> Filled(std::span<const std::byte> rows, const InputWindow& window,
                              DType dtype) {
  const auto given = static_cast<size_t>((window.positions + window.extra - window.filled) * 4),
             more = static_cast<size_t>(window.filled * 4);
  std::vector<std::byte> filled;
  filled.reserve(rows.size() / given * (given + more) + given);
  for (size_t begin = 0; begin < rows.size(); begin += given) {
    const std::span<const std::byte> row =
        rows.subspan(begin, std::min(given, rows.size() - begin));
    filled.insert(filled.end(), row.begin(), row.end());
    filled.resize(filled.size() + more, dtype == DType::kI32 ? std::byte{0xff} : std::byte{0});
  }
  return filled;
}

}  // namespace millrace
