// Folders of safetensors files: what an index may say, and that it leads nowhere else.
#include "runtime/data/safetensors/safetensors_folder.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <vector>

#include "runtime/data/safetensors/safetensors_writer.h"
#include "tests/runtime/data/error_matchers.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

// A file of one tensor of one element.
void WriteOne(const std::string& path, const std::string& tensor, float value) {
  SafetensorsWriter writer(path, {{tensor, "F32", {1}}}, {});
  writer.WriteFloats(0, &value, 1);
  writer.Finish();
}

void WriteIndex(const TempDir& dir, const std::string& weight_map) {
  WriteBytes(dir / "model.safetensors.index.json", "{\"weight_map\":" + weight_map + "}");
}

void RequireRefused(const TempDir& dir, const std::vector<std::string>& parts) {
  RequireError(ErrorCode::kData, parts, [&] { SafetensorsFolder folder(dir.path()); });
}

TEST_CASE("an index names files of its own folder by plain names, and nothing else",
          "[data][safetensors]") {
  const TempDir outside;
  const TempDir dir;
  WriteOne(dir / "a.safetensors", "x", 3);
  WriteIndex(dir, R"({"x":"a.safetensors"})");
  float value = 0;
  SafetensorsFolder(dir.path()).ReadFloats("x", 0, 1, &value);
  CHECK(value == 3);
  // Each of these is there, so that nothing but its name is wrong.
  std::filesystem::create_directory(dir / "sub");
  for (const char* name :
       {"sub/a.safetensors", ".hidden.safetensors", ".safetensors", "b\\a.safetensors", "a.bin"})
    WriteOne(dir / name, "x", 4);
  WriteOne(outside / "a.safetensors", "x", 4);
  const std::string up =
      "../" + std::filesystem::path(outside.path()).filename().string() + "/a.safetensors";
  for (const std::string& name :
       {std::string("sub/a.safetensors"), std::string("./a.safetensors"),
        std::string(".hidden.safetensors"), std::string(".safetensors"),
        std::string(R"(b\\a.safetensors)"), std::string("a.bin"),
        std::string(R"(a\u0000.safetensors)"), up, outside / "a.safetensors", std::string()}) {
    CAPTURE(name);
    WriteIndex(dir, R"({"x":")" + name + "\"}");
    RequireRefused(dir, {dir / "model.safetensors.index.json", "tensor \"x\"",
                         "in the same folder is allowed"});
  }
}

TEST_CASE("an index and its files agree, tensor by tensor", "[data][safetensors]") {
  const TempDir dir;
  WriteOne(dir / "a.safetensors", "x", 3);
  WriteOne(dir / "b.safetensors", "y", 4);
  WriteIndex(dir, R"({"x":"a.safetensors","y":"b.safetensors"})");
  CHECK(SafetensorsFolder(dir.path()).names() == std::vector<std::string>{"x", "y"});
  WriteIndex(dir, R"({"x":"b.safetensors","y":"a.safetensors"})");
  RequireRefused(dir, {"says that \"x\" is in b.safetensors, which has no such tensor"});
  WriteIndex(dir, R"({"x":"a.safetensors","z":"b.safetensors"})");
  RequireRefused(dir, {"says that \"z\" is in b.safetensors, which has no such tensor"});
  WriteIndex(dir, R"({"x":"a.safetensors","x":"a.safetensors"})");
  RequireRefused(dir, {"\"x\" is given twice"});
  WriteIndex(dir, "{}");
  RequireRefused(dir, {"must be a non-empty object"});
  {
    SafetensorsWriter writer(dir / "b.safetensors", {{"y", "F32", {1}}, {"more", "F32", {1}}}, {});
    const float values[] = {4, 5};
    writer.WriteFloats(0, values, 1);
    writer.WriteFloats(1, values + 1, 1);
    writer.Finish();
  }
  WriteIndex(dir, R"({"x":"a.safetensors","y":"b.safetensors"})");
  RequireRefused(dir, {"b.safetensors has the tensor \"more\", which", "does not list"});
  WriteOne(dir / "b.safetensors", "x", 4);
  WriteIndex(dir, R"({"x":"a.safetensors","y":"b.safetensors"})");
  RequireRefused(dir, {"a.safetensors and ", "b.safetensors both have the tensor \"x\""});
  std::filesystem::remove(dir / "b.safetensors");
  RequireRefused(dir, {"b.safetensors", "No such file"});
}

TEST_CASE("an index is refused by its size before it is read", "[data][safetensors]") {
  const TempDir dir;
  WriteIndex(dir, "{}");
  std::filesystem::resize_file(dir / "model.safetensors.index.json", 100'000'001);  // of holes
  RequireRefused(dir, {"100000001 bytes, at most 100000000 are allowed"});
}

}  // namespace
}  // namespace millrace
