// Checkpoints with known contents: element i of a blob is a function of step, rank, blob and i, so
// that a byte from the wrong step, rank or place shows.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/checkpoint/checkpoint_reader.h"
#include "runtime/data/checkpoint/checkpoint_store.h"
#include "runtime/data/checkpoint/checkpoint_writer.h"
#include "tests/runtime/data/faulty_file_system.h"

namespace millrace {

inline std::vector<CheckpointWriter::Blob> FixtureBlobs(int64_t rank) {
  return {{"unit0.master", DType::kF32, 40 + rank},
          {"unit0.shadow", DType::kBF16, 7},
          {"unit0.m", DType::kF32, 40 + rank},
          {"nothing", DType::kF32, 0},
          {"counters", DType::kI64, 3}};
}

inline std::string FixtureBytes(int64_t step, int64_t rank, size_t blob) {
  const CheckpointWriter::Blob spec = FixtureBlobs(rank)[blob];
  std::string bytes(static_cast<size_t>(spec.numel * Bytes(spec.dtype)), '\0');
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<char>(step * 101 + rank * 37 + int64_t(blob) * 11 + int64_t(i) * 3 +
                                 int64_t(i) / 256);
  return bytes;
}

inline CheckpointPlace FixturePlace(const std::string& root, int64_t step) {
  return {.root = root, .step = step, .id = "try-1"};
}

inline void WriteRank(const CheckpointPlace& place, int64_t rank, FileSystem& files) {
  const std::vector<CheckpointWriter::Blob> blobs = FixtureBlobs(rank);
  CheckpointWriter writer(place, rank, blobs, files);
  for (size_t b = 0; b < blobs.size(); ++b) {
    const std::string bytes = FixtureBytes(place.step, rank, b);
    const size_t half = bytes.size() / 2;  // two pieces
    writer.Write(int64_t(b), bytes.data(), int64_t(half));
    writer.Write(int64_t(b), bytes.data() + half, int64_t(bytes.size() - half));
  }
  writer.Finish();
}

inline void SaveFixture(const std::string& root, int64_t step, int64_t world, FileSystem& files) {
  const CheckpointPlace place = FixturePlace(root, step);
  PrepareCheckpoint(place, files);
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < world; ++rank) {
    WriteRank(place, rank, files);
    ranks.push_back(rank);
  }
  CheckpointManifest manifest;
  manifest.world = world;
  manifest.identity = "model-hash";
  manifest.user = "{\"adam_t\":" + std::to_string(step) + "}";
  PublishCheckpoint(place, manifest, ranks, files);
}

inline void SaveFixture(const std::string& root, int64_t step, int64_t world) {
  FaultyFileSystem fast;  // without a fault
  SaveFixture(root, step, world, fast);
}

// "" if the folder holds exactly what SaveFixture(step, world) put there.
inline std::string CheckFixture(const std::string& folder, int64_t step, int64_t world) {
  for (const std::string& problem : VerifyCheckpoint(folder)) return problem;
  CheckpointReader reader(folder);
  const CheckpointManifest& manifest = reader.manifest();
  if (manifest.step != step || manifest.world != world || manifest.identity != "model-hash" ||
      manifest.user != "{\"adam_t\":" + std::to_string(step) + "}")
    return "wrong manifest";
  for (int64_t rank = 0; rank < world; ++rank) {
    for (size_t b = 0; b < FixtureBlobs(rank).size(); ++b) {
      const std::string expected = FixtureBytes(step, rank, b);
      std::string found(expected.size(), '\0');
      reader.Read(rank, FixtureBlobs(rank)[b].name, 0, found.data(), int64_t(found.size()));
      if (found != expected) return "wrong bytes in " + FixtureBlobs(rank)[b].name;
    }
  }
  return "";
}

// What a run finds when it starts: the newest usable checkpoint that verifies; -1 if there is none.
inline int64_t NewestSound(const std::string& root) {
  for (const CheckpointEntry& entry : ListCheckpoints(root))
    if (entry.usable() && VerifyCheckpoint(entry.folder).empty()) return entry.step;
  return -1;
}

}  // namespace millrace
