#include "runtime/api/c/arrow_rows.h"

#include <fmt/core.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

// The layout is the standard's on every 64-bit machine.
static_assert(sizeof(ArrowSchema) == 72 && offsetof(ArrowSchema, release) == 56);
static_assert(sizeof(ArrowArray) == 80 && offsetof(ArrowArray, release) == 64);
static_assert(sizeof(ArrowArrayStream) == 40 && offsetof(ArrowArrayStream, release) == 24);

constexpr std::string_view kIntegers = "cCsSiIlL", kFloats = "fg";

[[noreturn]] void Refuse(std::string message) { throw Error(ErrorCode::kData, std::move(message)); }

// A call of the stream's that must return 0.
void RequireOk(int code, ArrowArrayStream* stream, const char* function) {
  if (code == 0) return;
  const char* said = stream->get_last_error(stream);
  Refuse(fmt::format("the Arrow stream's {} has failed: {} ({})", function,
                     said == nullptr ? "nothing is said" : said,
                     std::generic_category().message(code)));
}

bool IsNull(const ArrowArray& array, int64_t at) {
  const auto* const bits = static_cast<const uint8_t*>(array.buffers[0]);
  return bits != nullptr && (bits[at / 8] >> at % 8 & 1) == 0;
}

ArrowColumn ColumnOf(const ArrowSchema& schema, int64_t child, std::string_view values,
                     const char* kind, int64_t width) {
  const std::string name = schema.name, format = schema.format;
  const auto refuse = [&](const std::string& what) {
    Refuse(
        fmt::format("the Arrow stream's column {} {}; it has lists (list, large_list, "
                    "fixed_size_list) of {}",
                    name, what, kind));
  };
  ArrowColumn column{.child = child, .name = name, .width = width};
  if (format == "+l")
    column.list = ArrowColumn::List::kOffsets32;
  else if (format == "+L")
    column.list = ArrowColumn::List::kOffsets64;
  else if (!format.starts_with("+w:"))
    refuse(fmt::format("has the format '{}'", format));
  else if (format.substr(3) != std::to_string(width))
    Refuse(fmt::format("the Arrow stream's column {} has lists of {}; a row has {}", name,
                       format.substr(3), width));
  if (schema.n_children != 1) refuse(fmt::format("has {} children", schema.n_children));
  const ArrowSchema& of = *schema.children[0];
  const std::string_view letter = of.format;
  if (letter.size() != 1 || values.find(letter.front()) == values.npos || of.dictionary != nullptr)
    refuse(fmt::format("has {}values of the format '{}'",
                       of.dictionary != nullptr ? "a dictionary and " : "", letter));
  column.values = letter.front();
  return column;
}

// Of a buffer, which the standard recommends to align, and does not require.
template <class T>
T ValueAt(const void* buffer, int64_t at) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(buffer) + at * int64_t{sizeof value},
              sizeof value);
  return value;
}

// The values of a row, from value `at` on, each as a `To`.
template <class To, class From>
void Append(const void* data, int64_t at, const ArrowColumn& column, int64_t row,
            std::vector<To>* to) {
  const auto refuse = [&](From value, const char* what) {
    Refuse(fmt::format("row {} of column {} has {}, which is {}", row, column.name, value, what));
  };
  for (int64_t i = 0; i < column.width; ++i) {
    const auto value = ValueAt<From>(data, at + i);
    if constexpr (std::is_integral_v<To> && !std::is_same_v<To, From>) {
      if (!std::in_range<To>(value)) refuse(value, "no 32-bit integer");
    } else if constexpr (!std::is_same_v<To, From>) {
      if (std::isfinite(value) && std::abs(value) > std::numeric_limits<To>::max())
        refuse(value, "beyond float");
    }
    to->push_back(static_cast<To>(value));
  }
}

template <class To>
void AppendAs(const void* data, int64_t at, const ArrowColumn& column, int64_t row,
              std::vector<To>* to) {
  const auto append = [&]<class From>(From /*type*/) {
    Append<To, From>(data, at, column, row, to);
  };
  if constexpr (std::is_integral_v<To>) {
    switch (column.values) {
      case 'c':
        return append(int8_t{});
      case 'C':
        return append(uint8_t{});
      case 's':
        return append(int16_t{});
      case 'S':
        return append(uint16_t{});
      case 'i':
        return append(int32_t{});
      case 'I':
        return append(uint32_t{});
      case 'l':
        return append(int64_t{});
      default:
        return append(uint64_t{});
    }
  } else {
    return column.values == 'f' ? append(float{}) : append(double{});
  }
}

// Row `at` of the records, which is `row` of the stream.
template <class To>
void AppendRow(const ArrowArray& records, int64_t at, const ArrowColumn& column, int64_t row,
               std::vector<To>* to) {
  const auto refuse = [&](const std::string& what) {
    Refuse(fmt::format("row {} of column {} {}", row, column.name, what));
  };
  const ArrowArray& lists = *records.children[column.child];
  const ArrowArray& values = *lists.children[0];
  const int64_t list = lists.offset + records.offset + at;
  if (IsNull(records, records.offset + at) || IsNull(lists, list)) refuse("is null");
  int64_t begin = 0, end = 0;
  if (column.list == ArrowColumn::List::kFixed) {
    if (list >= values.length / column.width) refuse("has no values");
    begin = list * column.width;
    end = begin + column.width;
  } else if (column.list == ArrowColumn::List::kOffsets32) {
    begin = ValueAt<int32_t>(lists.buffers[1], list);
    end = ValueAt<int32_t>(lists.buffers[1], list + 1);
  } else {
    begin = ValueAt<int64_t>(lists.buffers[1], list);
    end = ValueAt<int64_t>(lists.buffers[1], list + 1);
  }
  if (begin < 0 || end < begin || end > values.length)
    refuse(fmt::format("has values {} to {}, of {}", begin, end, values.length));
  if (end - begin != column.width)
    refuse(fmt::format("has {} values; it needs {}", end - begin, column.width));
  begin += values.offset;
  for (int64_t i = 0; i < column.width; ++i)
    if (IsNull(values, begin + i)) refuse(fmt::format("has a null at {}", i));
  AppendAs(values.buffers[1], begin, column, row, to);
}

}  // namespace

ArrowRows::ArrowRows(ArrowArrayStream* stream, int64_t row_tokens) {
  ArrowOwned<ArrowSchema> schema;
  RequireOk(stream->get_schema(stream, &schema.value), stream, "get_schema");
  if (std::string_view(schema.value.format) != "+s")
    Refuse(fmt::format("the Arrow stream has the format '{}', and no columns ('+s')",
                       schema.value.format));
  children_ = schema.value.n_children;
  const auto read = [&](const char* name, std::string_view letters, const char* kind, int64_t width,
                        ArrowColumn* column) {
    for (int64_t i = 0; i < children_; ++i) {
      const ArrowSchema& child = *schema.value.children[i];
      if (child.name == nullptr || std::string_view(child.name) != name) continue;
      if (column->child >= 0) Refuse(fmt::format("the Arrow stream has two columns {}", name));
      *column = ColumnOf(child, i, letters, kind, width);
    }
  };
  read("tokens", kIntegers, "integers", row_tokens, &tokens_);
  if (tokens_.child < 0) Refuse("the Arrow stream has no column tokens");
  for (size_t v = 0; v < kValues.size(); ++v)
    read(kValues[v], kFloats, "float or double", row_tokens - 1, &values_[v]);
  // The standard's move: of the bytes, and who had it has none.
  stream_.value = *stream;
  stream->release = nullptr;
}

void ArrowRows::CheckRecords() const {
  const ArrowArray& records = records_.value;
  const auto require = [](bool holds, const std::string& name) {
    if (!holds) Refuse(fmt::format("the Arrow stream's {} is not what its schema says", name));
  };
  constexpr int64_t kMost = int64_t{1} << 48;  // of sums below, which then do not overflow
  const auto is_array = [](const ArrowArray& array, int64_t buffers, int64_t children) {
    return array.length >= 0 && array.length < kMost && array.offset >= 0 && array.offset < kMost &&
           array.n_buffers == buffers && array.n_children == children && array.release != nullptr;
  };
  require(is_array(records, 1, children_), "record batch");
  const int64_t rows = records.offset + records.length;
  const auto check = [&](const ArrowColumn& column) {
    if (column.child < 0) return;
    const ArrowArray& lists = *records.children[column.child];
    const bool is_fixed = column.list == ArrowColumn::List::kFixed;
    require(is_array(lists, is_fixed ? 1 : 2, 1) && lists.length >= rows &&
                (is_fixed || lists.buffers[1] != nullptr || rows == 0),
            "column " + column.name);
    const ArrowArray& values = *lists.children[0];
    require(is_array(values, 2, 0) && values.dictionary == nullptr &&
                (values.buffers[1] != nullptr || values.length == 0),
            "column " + column.name);
  };
  check(tokens_);
  for (const ArrowColumn& column : values_) check(column);
}

bool ArrowRows::Advance() {
  while (!ended_ && read_ == records_.value.length) {
    records_.Release();
    records_.value = {};
    read_ = 0;
    RequireOk(stream_.value.get_next(&stream_.value, &records_.value), &stream_.value, "get_next");
    ended_ = records_.value.release == nullptr;
    if (!ended_) CheckRecords();
  }
  return !ended_;
}

mr_batch ArrowRows::ReadNext(int64_t sequences) {
  // An array of no rows is an array: NULL would stand for the configuration's data.
  token_rows_.clear();
  token_rows_.reserve(1);
  for (std::vector<float>& rows : value_rows_) {
    rows.clear();
    rows.reserve(1);
  }
  int64_t rows = 0;
  for (; rows < sequences && Advance(); ++rows, ++read_, ++row_) {
    AppendRow(records_.value, read_, tokens_, row_, &token_rows_);
    for (size_t v = 0; v < values_.size(); ++v)
      if (values_[v].child >= 0)
        AppendRow(records_.value, read_, values_[v], row_, &value_rows_[v]);
  }
  const auto values = [&](size_t v) {
    return values_[v].child < 0 ? nullptr : value_rows_[v].data();
  };
  return {.size = 0,
          .tokens = token_rows_.data(),
          .sequences = rows,
          .weights = values(0),
          .advantages = values(1),
          .old_logprobs = values(2),
          .reference_logprobs = values(3)};
}

mr_batch ArrowRows::Next(int64_t sequences) {
  if (failed_ != nullptr) std::rethrow_exception(failed_);
  try {
    return ReadNext(sequences);
  } catch (...) {
    failed_ = std::current_exception();  // rows that were read are lost
    throw;
  }
}

}  // namespace millrace
