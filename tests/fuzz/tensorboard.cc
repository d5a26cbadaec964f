// TensorBoard events with any tags and numbers: what is written decodes to what was given.
#include "runtime/record/tensorboard.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/data/crc32c.h"
#include "tests/fuzz/fuzz.h"

using namespace millrace;

namespace {

template <typename T>
T Fixed(std::string_view& bytes) {
  FUZZ_REQUIRE(bytes.size() >= sizeof(T));
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return value;
}

uint64_t Varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    FUZZ_REQUIRE(!bytes.empty() && shift < 64);
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

std::string_view Bytes(std::string_view& bytes) {
  const uint64_t size = Varint(bytes);
  FUZZ_REQUIRE(size <= bytes.size());
  const std::string_view inner = bytes.substr(0, size);
  bytes.remove_prefix(size);
  return inner;
}

std::string_view Unframed(std::string_view record) {
  const auto masked = [](std::string_view of) { return std::rotr(Crc32c(of), 15) + 0xa282ead8; };
  const std::string_view length = record.substr(0, 8);
  const auto size = Fixed<uint64_t>(record);
  FUZZ_REQUIRE(Fixed<uint32_t>(record) == masked(length));
  FUZZ_REQUIRE(record.size() == size + 4);
  const std::string_view payload = record.substr(0, size);
  record.remove_prefix(size);
  FUZZ_REQUIRE(Fixed<uint32_t>(record) == masked(payload));
  return payload;
}

void CheckScalars(std::string_view event, int64_t step, const std::vector<EventScalar>& scalars) {
  FUZZ_REQUIRE(Varint(event) == (1 << 3 | 1));
  Fixed<double>(event);
  if (step != 0) {
    FUZZ_REQUIRE(Varint(event) == (2 << 3 | 0));
    FUZZ_REQUIRE(static_cast<int64_t>(Varint(event)) == step);
  }
  FUZZ_REQUIRE(Varint(event) == (5 << 3 | 2));
  std::string_view summary = Bytes(event);
  FUZZ_REQUIRE(event.empty());
  for (const EventScalar& scalar : scalars) {
    FUZZ_REQUIRE(Varint(summary) == (1 << 3 | 2));
    std::string_view value = Bytes(summary);
    FUZZ_REQUIRE(Varint(value) == (1 << 3 | 2));
    FUZZ_REQUIRE(Bytes(value) == scalar.tag);
    FUZZ_REQUIRE(Varint(value) == (2 << 3 | 5));
    const float written = Fixed<float>(value), expected = static_cast<float>(scalar.value);
    FUZZ_REQUIRE(std::isnan(expected) ? std::isnan(written) : written == expected);
    FUZZ_REQUIRE(value.empty());
  }
  FUZZ_REQUIRE(summary.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::ByteSource in({reinterpret_cast<const char*>(data), size});
  const fuzz::MemoryLimit limit(size);
  const double time = in.Number();
  const auto step = static_cast<int64_t>(in.Integer(8));
  std::vector<std::string> tags;
  std::vector<double> values;
  while (!in.empty()) {
    tags.push_back(in.Text());
    values.push_back(in.Number());
  }
  std::vector<EventScalar> scalars;
  for (size_t i = 0; i < tags.size(); ++i) scalars.push_back({tags[i], values[i]});
  const std::string record = TfRecord(ScalarsEvent(time, step, scalars));
  CheckScalars(Unframed(record), step, scalars);
  Unframed(TfRecord(FileVersionEvent(time)));
  Unframed(TfRecord(SessionStartEvent(time, step)));
  return 0;
}
