// What every Communicator must do, as one list of cases that each implementation's test runs:
// comm/local on threads, comm/mpi on processes, comm/nccl and comm/peer on copies in device memory.
//
// A case runs on all ranks at once and says what is wrong in a Report: Catch2's assertions are not
// thread-safe, and a rank that stopped in the middle of a case would leave the others waiting.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/comm_factory.h"
#include "comm/communicator.h"

namespace millrace::testing {

class Report {
 public:
  template <typename... Args>
  void Expect(bool ok, fmt::format_string<Args...> text, Args&&... args) {
    ++checks_;
    if (ok) return;
    ++failures_;
    if (failures_ <= kKept) text_ += fmt::format(text, std::forward<Args>(args)...) + "\n";
  }
  bool ok() const { return failures_ == 0 && checks_ > 0; }
  // The first failures, a line each, and how many there were.
  std::string Text() const {
    return fmt::format("{} of {} checks failed\n{}", failures_, checks_, text_);
  }

 private:
  static constexpr int64_t kKept = 5;
  int64_t checks_ = 0, failures_ = 0;
  std::string text_;
};

// The communicators under test have this chunk size, small so that modest
// buffers span several chunks.
inline constexpr int64_t kContractChunkBytes = 1024;

enum class Promise {
  kEvery,      // of every implementation
  kRankOrder,  // of host transports and of peers: sums in rank order, rounded once
  kHost        // of host transports: scratch; counts of what has moved
};

struct ContractCase {
  Promise promise;
  const char* name;  // the sentence that it proves
  void (*run)(Communicator& comm, Report& report);
};
const std::vector<ContractCase>& CommunicatorContract();

// The same for a factory over a world of any size: groups, meshes, communicator sets.
struct FactoryCase {
  const char* name;
  void (*run)(CommFactory& factory, Report& report);
};
const std::vector<FactoryCase>& FactoryContract();

// Runs sums and gathers of all dtypes and many sizes, and returns a digest of the bits of every
// result on this rank. Equal for every transport and chunk size. `chunk_bytes` is that of `comm`.
std::string ResultDigest(Communicator& comm, int64_t chunk_bytes);

}  // namespace millrace::testing
