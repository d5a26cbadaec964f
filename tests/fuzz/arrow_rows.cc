// Streams of Arrow's: formats, offsets, bits and values of columns, within memory that is as large
// as the stream says.
#include "runtime/api/c/arrow_rows.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "tests/runtime/api/c/arrow_source.h"

using namespace millrace;

namespace {

constexpr int64_t kRowTokens = 3;

std::vector<uint8_t> Bytes(fuzz::ByteSource& source, int64_t count) {
  std::vector<uint8_t> bytes;
  for (int64_t i = 0; i < count; ++i) bytes.push_back(static_cast<uint8_t>(source.Integer(1)));
  return bytes;
}

// Of a bitmap that is mostly not there.
std::vector<uint8_t> Bits(fuzz::ByteSource& source) {
  if (source.Below(4) != 1) return {};
  return Bytes(source, 8);  // for 64 elements, of which there are fewer
}

test::ArrowLists Lists(fuzz::ByteSource& source, int64_t rows, int64_t width) {
  test::ArrowLists lists;
  lists.offset = source.Below(3);
  lists.value_offset = source.Below(3);
  lists.value_count = (lists.offset + rows) * width + source.Below(3) - 1;
  lists.row_bits = Bits(source);
  lists.value_bits = Bits(source);
  for (int64_t i = 0; i <= lists.offset + rows; ++i)
    lists.offsets.push_back(source.Below(8) == 1 ? static_cast<int8_t>(source.Integer(1))
                                                 : i * width);
  lists.values = Bytes(source, 8 * (lists.value_offset + std::max<int64_t>(lists.value_count, 0)));
  return lists;
}

template <class T>
T AnyOf(fuzz::ByteSource& source, std::initializer_list<T> all) {
  return all.begin()[source.Below(static_cast<int64_t>(all.size()))];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::ByteSource source({reinterpret_cast<const char*>(data), size});
  const fuzz::MemoryLimit limit(size);
  test::ArrowSource arrow;
  if (source.Below(16) == 1) arrow.format = source.Text();
  arrow.schema_fails = source.Below(32) == 1;
  if (source.Below(16) == 1) arrow.fails_at = static_cast<size_t>(source.Below(3));
  const int64_t columns = 1 + source.Below(3);
  for (int64_t c = 0; c < columns; ++c) {
    const bool is_tokens = c == 0;
    const std::string name = source.Below(16) == 1 ? source.Text()
                             : is_tokens           ? "tokens"
                             : c == 1              ? "weights"
                                                   : "more";
    const std::string list =
        source.Below(16) == 1
            ? source.Text()
            : AnyOf<std::string>(source, {"+l", "+L", is_tokens ? "+w:3" : "+w:2"});
    const std::string values =
        source.Below(16) == 1 ? source.Text()
        : is_tokens           ? AnyOf<std::string>(source, {"c", "C", "s", "S", "i", "I", "l", "L"})
                              : AnyOf<std::string>(source, {"f", "g"});
    arrow.columns.push_back({name, list, values});
  }
  for (int64_t left = source.Below(3); left > 0; --left) {
    test::ArrowSource::Records& records = arrow.records.emplace_back();
    records.rows = source.Below(5);
    records.offset = source.Below(2);
    records.row_bits = Bits(source);
    for (int64_t c = 0; c < columns; ++c)
      records.columns.push_back(
          Lists(source, records.offset + records.rows, kRowTokens - (c == 0 ? 0 : 1)));
  }

  ArrowArrayStream stream = arrow.Stream();
  {
    std::unique_ptr<ArrowRows> rows;
    const bool opened = fuzz::Accepts(
        {ErrorCode::kData}, [&] { rows = std::make_unique<ArrowRows>(&stream, kRowTokens); });
    FUZZ_REQUIRE(opened == (stream.release == nullptr));
    int64_t sum = 0;
    for (int calls = 0; opened && calls < 16; ++calls) {
      const int64_t asked = 1 + source.Below(4);
      mr_batch batch{};
      if (!fuzz::Accepts({ErrorCode::kData}, [&] { batch = rows->Next(asked); })) {
        FUZZ_REQUIRE(!fuzz::Accepts({ErrorCode::kData}, [&] { rows->Next(asked); }));
        break;
      }
      FUZZ_REQUIRE(batch.sequences >= 0 && batch.sequences <= asked && batch.tokens != nullptr);
      // All of it can be read.
      for (int64_t i = 0; i < batch.sequences * kRowTokens; ++i) sum += batch.tokens[i];
      for (int64_t i = 0; batch.weights != nullptr && i < batch.sequences * 2; ++i)
        sum += batch.weights[i] < 0 ? 1 : 0;
      if (batch.sequences == 0) break;
    }
    FUZZ_REQUIRE(sum != INT64_MIN);
  }
  if (stream.release != nullptr) stream.release(&stream);
  FUZZ_REQUIRE(arrow.live == 0);
  return 0;
}
