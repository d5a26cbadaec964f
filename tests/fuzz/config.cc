// A configuration file and --set arguments: the text, then each argument after a line "%%".
#include <string>
#include <vector>

#include "runtime/config/document.h"
#include "runtime/config/load.h"
#include "tests/fuzz/fuzz.h"

using namespace millrace;

namespace {

void Load(std::string_view input, const ConfigContext& context) {
  constexpr size_t kMostSets = 4;
  const std::vector<std::string_view> parts = fuzz::Parts(input, 1 + kMostSets);
  const ConfigText text{"fuzz.json", std::string(parts[0])};
  std::vector<std::string> sets;
  for (size_t i = 1; i < parts.size(); ++i)
    if (!parts[i].empty()) sets.emplace_back(parts[i]);
  LoadedConfig loaded;
  const bool accepted = fuzz::Accepts({ErrorCode::kConfig}, [&] {
    loaded = LoadConfigTexts({&text, 1}, sets, context);
  });
  if (!accepted) return;
  FUZZ_REQUIRE(!ConfigShow(loaded).empty());
  // All keys written out give the same configuration; so do those that were given, alone. But in
  // one text they have one author, for whom an idle key may be an error.
  if (!loaded.notes.empty()) return;
  const std::string all = ConfigToJson(loaded.config);
  for (const std::string& again : {all, loaded.merged}) {
    const ConfigText written{"again.json", again};
    const LoadedConfig reloaded = LoadConfigTexts({&written, 1}, {}, context);
    FUZZ_REQUIRE(reloaded.config == loaded.config);
    FUZZ_REQUIRE(ConfigToJson(reloaded.config) == all);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const fuzz::MemoryLimit limit(size);
  Load(input, {.world = 8, .has_cuda = false});
  Load(input, {.world = {}, .has_cuda = true});
  return 0;
}
