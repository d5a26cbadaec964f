#include "runtime/run/data/known_documents.h"

#include <catch2/catch.hpp>
#include <cstdint>

#include "runtime/run/huggingface/exchange.h"
#include "tests/runtime/data/megatron_files.h"
#include "tests/runtime/data/temp_dir.h"

namespace millrace {
namespace {

using Words = std::vector<std::string>;
using Catch::Matchers::Contains;

const ConfigContext kCpu{.world = 1, .auto_is_cpu = true}, kGpu{.world = 1, .has_cuda = true};
const Words kText = {"data.kind=text", "data.path=x"};

LoadedConfig Load(const ConfigContext& context, const Words& first, const Words& more = {}) {
  Words sets = first;
  sets.insert(sets.end(), more.begin(), more.end());
  return LoadRunConfig({}, sets, context);
}

// The mask that is in force, and what is said about it.
std::pair<bool, std::string> MaskOf(const LoadedConfig& loaded) {
  REQUIRE(loaded.config.data.document_mask);
  std::string said;
  for (const std::string& note : loaded.notes)
    if (note.find("data.document_mask") != std::string::npos) said += note;
  return {loaded.config.data.MasksDocuments(), said};
}

TEST_CASE("documents are masked where the id that ends them is given", "[config]") {
  const Words end = {"data.end_of_document=10"};
  const auto [mask, said] = MaskOf(Load(kCpu, kText, end));
  CHECK(mask);
  CHECK_THAT(said, Contains("is on") && Contains("end with 10"));
  CHECK(MaskOf(Load(kCpu, kText, {end[0], "data.document_mask=true"})) ==
        std::pair(true, std::string()));
  CHECK_FALSE(MaskOf(Load(kCpu, kText, {"data.document_mask=false"})).first);
}

TEST_CASE("a run without known documents is what it was before there was a default", "[config]") {
  const LoadedConfig loaded = Load(kGpu, kText);
  CHECK(MaskOf(loaded) == std::pair(false, std::string()));
  CHECK(ConfigToJson(loaded.config) ==
        ConfigToJson(Load(kGpu, kText, {"data.document_mask=false"}).config));
}

TEST_CASE("documents are masked where every file has an index that knows them", "[config]") {
  TempDir dir;
  const MegatronParts parts{.dtype = 8, .lengths = {100, 200}, .documents = {0, 1, 2}};
  const std::string path = dir / "ids.bin";
  WriteBytes(path, std::string(600, 0));
  const Words tokens = {"data.kind=tokens", "data.path=" + path, "model.vocab=509"};
  CHECK_FALSE(MaskOf(Load(kCpu, tokens)).first);
  WriteBytes(dir / "ids.idx", parts.Index());
  const auto [mask, said] = MaskOf(Load(kCpu, tokens));
  CHECK(mask);
  CHECK_THAT(said, Contains("is on") && Contains("Megatron's indices"));
  CHECK_FALSE(MaskOf(Load(kCpu, {tokens[0], "data.path=/nowhere/ids.bin", tokens[2]})).first);
}

TEST_CASE("known documents are not masked by default where that is refused or slow", "[config]") {
  const auto off = [](const ConfigContext& context, const Words& sets) {
    const auto [mask, said] = MaskOf(Load(context, kText, sets));
    CHECK_FALSE(said.empty());
    return mask ? std::string() : said;
  };
  const std::string end = "data.end_of_document=10";
  ConfigContext two = kCpu;
  two.world = 2;
  CHECK_THAT(off(two, {end, "parallel.context=2", "model.seq_len=64"}),
             Contains("is off, although documents end with 10") && Contains("share"));
  CHECK_THAT(off(kCpu, {end, "model.family=qwen3", "model.mtp.depth=1"}),
             Contains("predict further"));
  CHECK_THAT(off(kGpu, {end}), Contains("is off") && Contains("on GPUs steps take longer"));
  CHECK(off(kGpu, {end, "execution.backend=cpu"}).empty());
  CHECK(off(kCpu, {end, "model.family=nemotron_h", "model.pattern=M*-"}).empty());
}

TEST_CASE("a program that makes the steps has to ask for masks", "[config]") {
  ConfigContext caller = kCpu;
  caller.caller_steps = true;
  CHECK_FALSE(MaskOf(Load(caller, kText, {"data.end_of_document=10"})).first);
  caller.needs_data = false;
  CHECK_FALSE(MaskOf(Load(caller, {"data.end_of_document=10"})).first);
}

}  // namespace
}  // namespace millrace
