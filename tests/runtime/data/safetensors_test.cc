#include "runtime/data/safetensors/safetensors.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "runtime/base/dtype.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

std::string File(const std::string& json, const std::string& data) {
  const uint64_t n = json.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &n, 8);
  return bytes + json + data;
}

// Element i of each tensor is 100 * (its letter) + i: misplacement shows.
const std::string kJson =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]},)"
    R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"empty":{"dtype":"F32","shape":[0,7],"data_offsets":[24,24]},)"
    R"("scalar":{"dtype":"F64","shape":[],"data_offsets":[30,38]}}    )";

std::string Data() {
  const std::vector<BFloat16> b = {ToBFloat16(200), ToBFloat16(201), ToBFloat16(202)};
  return AsBytes(std::vector<float>{100, 101, 102, 103, 104, 105}) + AsBytes(b) +
         AsBytes(std::vector<double>{300.5});
}

TEST_CASE("a file written by hand reads back, whole and in ranges", "[data][safetensors]") {
  const TempDir dir;
  WriteBytes(dir / "m.safetensors", File(kJson, Data()));
  const SafetensorsFile file(dir / "m.safetensors");
  REQUIRE(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
  REQUIRE(file.tensors().size() == 4);
  REQUIRE(file.Tensor("a").spec == TensorSpec{"a", "F32", {2, 3}});
  REQUIRE(file.Tensor("a").numel == 6);
  REQUIRE(file.Tensor("empty").numel == 0);
  REQUIRE(file.Tensor("scalar").numel == 1);
  for (int64_t begin = 0; begin <= 6; ++begin) {
    for (int64_t n = 0; begin + n <= 6; ++n) {
      std::vector<float> out(n + 1, -1);
      file.ReadFloats(file.Tensor("a"), begin, n, out.data());
      for (int64_t i = 0; i < n; ++i) REQUIRE(out[i] == 100 + begin + i);
      REQUIRE(out[n] == -1);
    }
  }
  float value = 0;
  for (int i = 0; i < 3; ++i) {
    file.ReadFloats(file.Tensor("b"), i, 1, &value);
    REQUIRE(value == 200 + i);
  }
  file.ReadFloats(file.Tensor("scalar"), 0, 1, &value);
  REQUIRE(value == 300.5f);
  file.ReadFloats(file.Tensor("empty"), 0, 0, &value);
  uint16_t bits = 0;
  file.ReadBytes(file.Tensor("b"), 2, 2, &bits);
  REQUIRE(bits == ToBFloat16(201).bits);
  REQUIRE(file.Find("c") == nullptr);
  RequireError(ErrorCode::kData, {"m.safetensors", "no tensor \"c\""}, [&] { file.Tensor("c"); });
  REQUIRE_THROWS_AS(file.ReadFloats(file.Tensor("a"), 5, 2, &value), Error);
  REQUIRE_THROWS_AS(file.ReadFloats(file.Tensor("a"), -1, 1, &value), Error);
  REQUIRE_THROWS_AS(file.ReadBytes(file.Tensor("a"), 24, 1, &value), Error);
}

TEST_CASE("F16 reads exactly: every one of its 65,536 values", "[data][safetensors]") {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const TempDir dir;
  WriteBytes(
      dir / "h.safetensors",
      File(R"({"h":{"dtype":"F16","shape":[256,256],"data_offsets":[0,131072]}})", AsBytes(all)));
  const SafetensorsFile file(dir / "h.safetensors");
  std::vector<float> out(65536);
  file.ReadFloats(file.Tensor("h"), 0, 65536, out.data());
  int64_t wrong = 0;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = int(bits >> 10) & 31, fraction = int(bits & 1023);
    double expected = exponent == 31  ? (fraction ? NAN : INFINITY)
                      : exponent == 0 ? std::ldexp(fraction, -24)
                                      : std::ldexp(1024 + fraction, exponent - 25);
    if (bits & 0x8000) expected = -expected;
    wrong += std::isnan(expected) ? !std::isnan(out[bits])
                                  : double(out[bits]) != expected ||
                                        std::signbit(out[bits]) != std::signbit(expected);
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("every way a file can be malformed is refused by name", "[data][safetensors]") {
  const TempDir dir;
  const std::string path = dir / "bad.safetensors";
  struct Row {
    std::string bytes;
    std::vector<std::string> message;
  };
  const auto one = [](const std::string& body, int64_t data) {
    return File("{\"w\":{" + body + "}}", std::string(data, 'd'));
  };
  const std::string deep(50'000, '[');
  using namespace std::string_literals;
  const std::vector<Row> rows = {
      {"", {"0 bytes"}},
      {"\x02\0\0\0\0\0\0"s, {"7 bytes"}},
      {std::string(8, '\0'), {"header's size is 0"}},
      {"\xff\xff\xff\xff\xff\xff\xff\xff{}"s, {"header's size is 18446744073709551615"}},
      {"\x01\xe1\xf5\x05\0\0\0\0{}"s, {"header's size is 100000001", "100000000"}},
      {"\x03\0\0\0\0\0\0\0{}"s, {"10 bytes", "header alone takes 11", "truncated"}},
      {File("[]", ""), {"does not start with '{'"}},
      {File(" {}", ""), {"does not start with '{'"}},
      {File("{]", ""), {"not valid JSON"}},
      {File("{}x", ""), {"not valid JSON"}},
      {File("{\"a\xff\":1}", ""), {"not valid JSON"}},
      {File("{\"w\":" + deep, ""), {"nested deeper than 3"}},
      {File("{\"w\":{\"shape\":[[1]]}}", ""), {"nested deeper than 3"}},
      {File("{}", "x"), {"take 0 bytes", "has 1", "something follows"}},
      {File("{\"w\":1}", ""), {"\"w\"", "expected an object"}},
      {File("{\"__metadata__\":[]}", ""), {"__metadata__", "expected an object"}},
      {File("{\"__metadata__\":{\"n\":1}}", ""), {"__metadata__", "\"n\" must be a string"}},
      {File(
           R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
           "ab"),
       {"\"w\" is given twice"}},
      {File(R"({"w":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", "a"),
       {"\"dtype\" is given twice"}},
      {one(R"("shape":[1],"data_offsets":[0,1])", 1), {"\"w\"", "\"dtype\" is missing"}},
      {one(R"("dtype":"U8","data_offsets":[0,1])", 1), {"\"w\"", "\"shape\" is missing"}},
      {one(R"("dtype":"U8","shape":[1])", 1), {"\"w\"", "\"data_offsets\" is missing"}},
      {one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"x":0)", 1),
       {"\"w\"", "unknown key \"x\""}},
      {one(R"("dtype":"F4","shape":[1],"data_offsets":[0,1])", 1),
       {"\"w\"", "unknown dtype \"F4\""}},
      {one(R"("dtype":1,"shape":[1],"data_offsets":[0,1])", 1),
       {"\"w\"", "\"dtype\" must be a string"}},
      {one(R"("dtype":"U8","shape":1,"data_offsets":[0,1])", 1),
       {"\"w\"", "shape must be an array"}},
      {one(R"("dtype":"U8","shape":[-1],"data_offsets":[0,1])", 1),
       {"\"w\"", "integer from 0", "-1"}},
      {one(R"("dtype":"U8","shape":[1.0],"data_offsets":[0,1])", 1),
       {"\"w\"", "integer from 0", "1.0"}},
      {one(R"("dtype":"U8","shape":["1"],"data_offsets":[0,1])", 1),
       {"\"w\"", "integer from 0", "\"1\""}},
      {one(R"("dtype":"U8","shape":[1],"data_offsets":[0])", 1), {"\"w\"", "[begin, end]"}},
      {one(R"("dtype":"U8","shape":[1],"data_offsets":[0,1,1])", 1), {"\"w\"", "[begin, end]"}},
      {one(R"("dtype":"U8","shape":[1],"data_offsets":[1,0])", 1),
       {"\"w\"", "[1, 0] are not the 1 bytes"}},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,7])", 7),
       {"\"w\"", "[0, 7] are not the 8 bytes"}},
      {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,9])", 9),
       {"\"w\"", "[0, 9] are not the 8 bytes"}},
      {one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0),
       {"\"w\"", "too many elements"}},
      {one(R"("dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0])", 0),
       {"\"w\"", "too many elements"}},
      {one(R"("dtype":"U8","shape":[9223372036854775807,9,0],"data_offsets":[0,0])", 0),
       {"\"w\"", "too many elements"}},
      {one(R"("dtype":"U8","shape":[0,9223372036854775807,9],"data_offsets":[0,0])", 0),
       {"\"w\"", "too many elements"}},
      {one(R"("dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,0])", 0),
       {"\"w\"", "integer from 0"}},
      {one(R"("dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,0])", 0),
       {"\"w\"", "integer from 0"}},
      {one(R"("dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807])",
           1),
       {"truncated"}},
      {one(R"("dtype":"U8","shape":[2],"data_offsets":[0,2])", 1),
       {"take 2 bytes", "has 1", "truncated"}},
      {one(R"("dtype":"U8","shape":[2],"data_offsets":[0,2])", 3),
       {"take 2 bytes", "has 3", "something follows"}},
      {one(R"("dtype":"U8","shape":[2],"data_offsets":[1,3])", 3),
       {"\"w\" starts at byte 1", "hole"}},
      {File(
           R"({"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
           "abc"),
       {"\"w\" starts at byte 1", "\"v\" ends at 2", "overlap"}},
      {File(
           R"({"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
           "abcde"),
       {"\"w\" starts at byte 3", "\"v\" ends at 2", "hole"}},
      {File(
           R"({"v":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
           "ab"),
       {"overlap"}},
      {File(
           R"({"v":{"dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807]},)"
           R"("w":{"dtype":"U8","shape":[0],"data_offsets":[9223372036854775807,9223372036854775807]}})",
           "ab"),
       {"truncated"}},
  };
  for (const Row& row : rows) {
    WriteBytes(path, row.bytes);
    std::vector<std::string> parts = row.message;
    parts.push_back(path);
    RequireError(ErrorCode::kData, parts, [&] { SafetensorsFile file(path); });
  }
  std::string dims;
  for (int i = 0; i < 65; ++i) dims += i ? ",1" : "1";
  WriteBytes(path, one("\"dtype\":\"U8\",\"shape\":[" + dims + "],\"data_offsets\":[0,1]", 1));
  RequireError(ErrorCode::kData, {"at most 64 dims"}, [&] { SafetensorsFile file(path); });
  RequireError(ErrorCode::kCheckpoint, {"absent"},
               [&] { SafetensorsFile file(dir / "absent", ErrorCode::kCheckpoint); });
  RequireError(ErrorCode::kData, {dir.path(), "not a regular file"},
               [&] { SafetensorsFile file(dir.path()); });
}

TEST_CASE("every truncation is an error", "[data][safetensors]") {
  const TempDir dir;
  const std::string whole = File(kJson, Data());
  for (size_t size = 0; size < whole.size(); ++size) {
    WriteBytes(dir / "t", whole.substr(0, size));
    REQUIRE_THROWS_AS(SafetensorsFile(dir / "t"), Error);
  }
}

TEST_CASE("whatever a byte of the header becomes, the reader refuses it or stays inside the file",
          "[data][safetensors]") {
  const TempDir dir;
  std::string bytes = File(kJson, Data());
  const int64_t header = 8 + int64_t(kJson.size());
  int64_t refused = 0, accepted = 0;
  for (int64_t i = 0; i < header; ++i) {
    const char original = bytes[i];
    for (const char replacement : {'0', '9', '"', '}', '[', ',', '-', '\0', '\xff',
                                   char(original ^ 1), char(original ^ 16)}) {
      bytes[i] = replacement;
      WriteBytes(dir / "f", bytes);
      try {
        const SafetensorsFile file(dir / "f");
        for (const TensorInfo& tensor : file.tensors()) {
          REQUIRE((tensor.offset >= header - 8 &&
                   tensor.offset + tensor.bytes <= int64_t(bytes.size())));
          std::vector<char> data(tensor.bytes);
          file.ReadBytes(tensor, 0, tensor.bytes, data.data());
        }
        ++accepted;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kData) throw;
        ++refused;
      }
    }
    bytes[i] = original;
  }
  // Names, padding and dims may change into something valid; most changes are caught.
  REQUIRE(refused > 4 * accepted);
}

}  // namespace
}  // namespace millrace
