#include "runtime/data/safetensors/safetensors_writer.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/data/safetensors/safetensors_folder.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

float Value(int tensor, int64_t i) { return float(tensor * 1000 + i % 997); }

TEST_CASE("the layout: header to a multiple of 8, wide dtypes first, known bytes",
          "[data][safetensors]") {
  const SafetensorsLayout layout = PlanSafetensors(
      {{"b", "BF16", {3}}, {"a", "F32", {1, 2}}, {"c", "BF16", {}}}, {{"format", "pt"}});
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]},"c":{"dtype":"BF16","shape":[],"data_offsets":[14,16]}})";
  const int64_t padded = (int64_t(json.size()) + 7) / 8 * 8;
  REQUIRE(layout.header.substr(8) == json + std::string(padded - json.size(), ' '));
  REQUIRE(uint8_t(layout.header[0]) == padded);
  REQUIRE(layout.header.substr(1, 7) == std::string(7, '\0'));
  REQUIRE(layout.tensors[0].offset == 8 + padded + 8);
  REQUIRE(layout.tensors[1].offset == 8 + padded);
  REQUIRE(layout.tensors[2].offset == 8 + padded + 14);
  REQUIRE(layout.file_bytes == 8 + padded + 16);
}

TEST_CASE("declared tensors come back, whatever the order and size of the pieces",
          "[data][safetensors]") {
  const TempDir dir;
  const std::vector<TensorSpec> specs = {{"half", "BF16", {50, 701}},
                                         {"full", "F32", {3, 5, 7}},
                                         {"wide", "F64", {40001}},
                                         {"none", "F32", {0}},
                                         {"one", "F32", {}}};
  {
    SafetensorsWriter writer(dir / "m.safetensors", specs, {{"format", "pt"}, {"quote", "\"\n"}});
    std::vector<int64_t> done(specs.size(), 0), numel = {35050, 105, 40001, 0, 1};
    for (int64_t turn = 0; done != numel; ++turn) {
      const int t = int(turn % 5);
      const int64_t n = std::min<int64_t>(numel[t] - done[t], 1 + turn * 7919 % 20000);
      std::vector<float> values(n);
      for (int64_t i = 0; i < n; ++i) values[i] = Value(t, done[t] + i);
      writer.WriteFloats(t, values.data(), n);
      done[t] += n;
    }
    REQUIRE_FALSE(std::filesystem::exists(dir / "m.safetensors"));
    writer.Finish();
  }
  REQUIRE_FALSE(std::filesystem::exists(dir / "m.safetensors.tmp"));
  const SafetensorsFile file(dir / "m.safetensors");
  REQUIRE(file.metadata().at("quote") == "\"\n");
  for (int t = 0; t < 5; ++t) {
    const TensorInfo& tensor = file.Tensor(specs[t].name);
    REQUIRE(tensor.spec == specs[t]);
    REQUIRE(tensor.offset % SafetensorsElementBytes(tensor.spec.dtype) == 0);
    std::vector<float> out(tensor.numel);
    file.ReadFloats(tensor, 0, tensor.numel, out.data());
    int64_t wrong = 0;
    for (int64_t i = 0; i < tensor.numel; ++i)
      wrong += out[i] != (t == 0 ? ToFloat(ToBFloat16(Value(t, i))) : Value(t, i));
    CAPTURE(t);
    REQUIRE(wrong == 0);
  }
}

TEST_CASE("an unfinished file never appears, and mistakes are errors", "[data][safetensors]") {
  const TempDir dir;
  const float values[4] = {1, 2, 3, 4};
  {
    SafetensorsWriter writer(dir / "m", {{"w", "F32", {4}}, {"i", "I32", {1}}}, {});
    writer.WriteFloats(0, values, 3);
    REQUIRE_THROWS_AS(writer.WriteFloats(0, values, 2), Error);
    REQUIRE_THROWS_AS(writer.WriteFloats(2, values, 1), Error);
    REQUIRE_THROWS_AS(writer.WriteFloats(1, values, 1), Error);
    RequireError(ErrorCode::kInternal, {"\"w\"", "not complete"}, [&] { writer.Finish(); });
  }
  REQUIRE(std::filesystem::is_empty(dir.path()));

  constexpr ErrorCode kCode = ErrorCode::kInvalidArgument;
  const auto plan = [](const std::vector<TensorSpec>& specs) {
    return [specs] { PlanSafetensors(specs, {}); };
  };
  RequireError(kCode, {"\"w\"", "twice"}, plan({{"w", "F32", {1}}, {"w", "F32", {1}}}));
  RequireError(kCode, {"__metadata__"}, plan({{"__metadata__", "F32", {1}}}));
  RequireError(kCode, {"\"w\"", "f32"}, plan({{"w", "f32", {1}}}));
  RequireError(kCode, {"\"w\"", "negative"}, plan({{"w", "F32", {-1}}}));
  RequireError(kCode, {"\"w\""}, plan({{"w", "F32", {int64_t{1} << 62}}}));
  RequireError(kCode, {"2^63"},
               plan({{"v", "F32", {int64_t{1} << 60}}, {"w", "F32", {int64_t{1} << 60}}}));
  RequireError(kCode, {"UTF-8"}, plan({{"\xff", "F32", {1}}}));
}

class FolderFixture {
 protected:
  // Tensor t of `file` holds Value(t, i).
  void WriteModel(const std::string& file, const std::vector<int>& tensors) {
    std::vector<TensorSpec> specs;
    for (const int t : tensors) specs.push_back({"t" + std::to_string(t), "F32", {t + 1}});
    SafetensorsWriter writer(dir_ / file, specs, {});
    for (size_t k = 0; k < tensors.size(); ++k)
      for (int64_t i = 0; i <= tensors[k]; ++i) {
        const float value = Value(tensors[k], i);
        writer.WriteFloats(int64_t(k), &value, 1);
      }
    writer.Finish();
  }
  void CheckTensors(const SafetensorsFolder& folder, int n) {
    REQUIRE(int(folder.names().size()) == n);
    for (int t = 0; t < n; ++t) {
      const std::string name = "t" + std::to_string(t);
      REQUIRE(folder.Tensor(name).spec.shape == std::vector<int64_t>{t + 1});
      for (int64_t i = 0; i <= t; ++i) {
        float value = -1;
        folder.ReadFloats(name, i, 1, &value);
        REQUIRE(value == Value(t, i));
      }
    }
  }
  void RequireRefused(const std::string& index, const std::vector<std::string>& parts) {
    WriteBytes(dir_ / "model.safetensors.index.json", index);
    RequireError(ErrorCode::kData, parts, [&] { SafetensorsFolder folder(dir_.path()); });
  }
  TempDir dir_;
};

TEST_CASE_METHOD(FolderFixture, "a folder with one file, or a file by its path",
                 "[data][safetensors]") {
  RequireError(ErrorCode::kData, {dir_.path(), "neither model.safetensors nor"},
               [&] { SafetensorsFolder folder(dir_.path()); });
  WriteModel("model.safetensors", {0, 1, 2});
  CheckTensors(SafetensorsFolder(dir_.path()), 3);
  CheckTensors(SafetensorsFolder(dir_ / "model.safetensors"), 3);
  const SafetensorsFolder folder(dir_.path());
  REQUIRE(folder.Has("t2"));
  REQUIRE_FALSE(folder.Has("t3"));
  RequireError(ErrorCode::kData, {dir_.path(), "t3"}, [&] { folder.Tensor("t3"); });
  RequireError(ErrorCode::kData, {"absent"}, [&] { SafetensorsFolder gone(dir_ / "absent"); });
}

TEST_CASE_METHOD(FolderFixture, "a sharded folder through its index", "[data][safetensors]") {
  WriteModel("model-00001-of-00002.safetensors", {0, 3});
  WriteModel("model-00002-of-00002.safetensors", {1, 2});
  WriteSafetensorsIndex(dir_.path(),
                        {{"t0", "model-00001-of-00002.safetensors"},
                         {"t3", "model-00001-of-00002.safetensors"},
                         {"t1", "model-00002-of-00002.safetensors"},
                         {"t2", "model-00002-of-00002.safetensors"}},
                        40);
  CheckTensors(SafetensorsFolder(dir_.path()), 4);
}

TEST_CASE_METHOD(FolderFixture, "an index that lies, or points out of the folder, is refused",
                 "[data][safetensors]") {
  WriteModel("a.safetensors", {0, 1});
  WriteModel("b.safetensors", {2});
  const auto index = [](const std::string& map) { return "{\"weight_map\":{" + map + "}}"; };
  for (const std::string bad :
       {"../a.safetensors", "/etc/a.safetensors", "x/a.safetensors", "..", ".", ".safetensors",
        "a.bin", ".a.safetensors", "x\\\\a.safetensors", "a\\u0000.safetensors", ""})
    RequireRefused(index(R"("t0":")" + bad + "\""), {"index.json", "\"t0\"", "only the name"});
  RequireRefused(index(R"("t0":"a.safetensors")"), {"a.safetensors", "\"t1\"", "does not list"});
  RequireRefused(index(R"("t0":"a.safetensors","t1":"a.safetensors","t9":"a.safetensors")"),
                 {"\"t9\"", "no such tensor"});
  RequireRefused(index(R"("t0":"a.safetensors","t1":"b.safetensors","t2":"b.safetensors")"),
                 {"\"t1\"", "b.safetensors"});
  RequireRefused(index(R"("t0":"a.safetensors","t1":"a.safetensors","t2":"c.safetensors")"),
                 {"c.safetensors"});
  RequireRefused(index(R"("t0":"a.safetensors","t0":"a.safetensors")"), {"\"t0\" is given twice"});
  RequireRefused(index(R"("t0":1)"), {"\"t0\" must be a string"});
  RequireRefused(index(""), {"weight_map", "non-empty"});
  RequireRefused("{}", {"\"weight_map\" is missing"});
  RequireRefused("[]", {"expected an object"});
  RequireRefused("{", {"not valid JSON"});
  WriteModel("b.safetensors", {1, 2});
  RequireRefused(index(R"("t0":"a.safetensors","t1":"a.safetensors","t2":"b.safetensors")"),
                 {"both have", "\"t1\""});
}

}  // namespace
}  // namespace millrace
