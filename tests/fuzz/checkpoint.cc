// A checkpoint's folder: the content of manifest.json, and after a line "%%" the file of rank 0.
// The seal around the content (checkpoint_manifest.h) is made here: it is a checksum against
// damage, which no input would meet by chance, and whoever forges a checkpoint can compute it too.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/checkpoint/checkpoint_manifest.h"
#include "runtime/data/checkpoint/checkpoint_reader.h"
#include "runtime/data/checkpoint/checkpoint_store.h"
#include "runtime/data/hash.h"
#include "tests/fuzz/fuzz.h"
#include "tests/runtime/data/temp_dir.h"

using namespace millrace;

namespace {

std::string Sealed(std::string_view content) {
  return "{\"format\":\"millrace-checkpoint\",\"version\":1,\"xxh3\":\"" + Hash128(content) +
         "\",\"content\":\n" + std::string(content) + "\n}\n";
}

void CheckTexts(std::string_view input) {
  fuzz::Accepts({ErrorCode::kCheckpoint}, [&] { ParseManifest(input, "unsealed"); });
  const std::string sealed = Sealed(input);
  CheckpointManifest manifest;
  if (fuzz::Accepts({ErrorCode::kCheckpoint},
                    [&] { manifest = ParseManifest(sealed, "manifest"); }))
    FUZZ_REQUIRE(ParseManifest(PrintManifest(manifest), "printed") == manifest);
  CheckpointFile record;
  if (fuzz::Accepts({ErrorCode::kCheckpoint}, [&] { record = ParseRecord(sealed, "record"); }))
    FUZZ_REQUIRE(ParseRecord(PrintRecord(record), "printed") == record);
}

void ReadAllBlobs(const std::string& folder) {
  CheckpointReader reader(folder);
  for (const CheckpointFile& file : reader.manifest().files)
    for (const CheckpointBlob& blob : file.blobs) {
      std::vector<char> bytes(
          static_cast<size_t>(std::min<int64_t>(reader.Blob(file.rank, blob.name).bytes, 1 << 16)));
      reader.Read(file.rank, blob.name, 0, bytes.data(), static_cast<int64_t>(bytes.size()));
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TempDir root;
  static const std::string folder = root / CheckpointFolderName(7);
  static const bool made = std::filesystem::create_directories(folder);
  FUZZ_REQUIRE(made);
  const std::vector<std::string_view> parts =
      fuzz::Parts({reinterpret_cast<const char*>(data), size}, 2);
  const fuzz::MemoryLimit limit(size);
  CheckTexts(parts[0]);
  WriteBytes(folder + "/" + kManifestName, Sealed(parts[0]));
  WriteBytes(folder + "/" + CheckpointFileName(0), std::string(parts[1]));
  const std::vector<CheckpointEntry> entries = ListCheckpoints(root.path());
  FUZZ_REQUIRE(entries.size() == 1 && entries[0].step == 7);
  const std::vector<std::string> problems = VerifyCheckpoint(folder);
  for (const std::string& problem : problems) FUZZ_REQUIRE(!problem.empty());
  const bool readable = fuzz::Accepts({ErrorCode::kCheckpoint}, [] { ReadAllBlobs(folder); });
  // Nothing that cannot be read passes as sound, nor does what is listed as unusable for its sizes.
  if (problems.empty())
    FUZZ_REQUIRE(readable && (entries[0].usable() || entries[0].manifest->step != 7));
  return 0;
}
