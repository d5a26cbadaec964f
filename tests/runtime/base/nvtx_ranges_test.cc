// Ranges reach a profiler that listens, by NVTX's own way of finding it; where there is
// none, there are no ranges. NVTX decides once per process, so each case runs in a process
// of its own. No GPU is needed.
#include "runtime/base/cuda/nvtx_ranges.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

namespace millrace {
namespace {

constexpr const char* kListener = "tests/runtime/base/nvtx_listener.so";
constexpr const char* kVariable = "NVTX_INJECTION64_PATH";

// What `work` returns, from a process in which NVTX was not used before.
template <class F>
std::string InFreshProcess(F&& work) {
  int ends[2] = {};
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const std::string text = work();
    const bool written =
        write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  return text;
}

TEST_CASE("without a profiler there are no ranges", "[cuda]") {
  unsetenv(kVariable);
  CHECK(InFreshProcess([] { return MakeNvtxRanges() == nullptr ? "none" : "some"; }) == "none");
  setenv(kVariable, "/no/such/profiler.so", 1);
  CHECK(InFreshProcess([] { return MakeNvtxRanges() == nullptr ? "none" : "some"; }) == "none");
}

TEST_CASE("a profiler is told ranges of the domain millrace, by registered names and by text",
          "[cuda]") {
  setenv(kVariable, kListener, 1);
  const std::string log = InFreshProcess([]() -> std::string {
    {
      const std::unique_ptr<ProfilerRanges> ranges = MakeNvtxRanges();
      if (ranges == nullptr) return "no profiler was found";
      const RangeName gather = ranges->Register("all_gather gather/h.3");
      const RangeName again = ranges->Register("all_gather gather/h.3");
      const RangeName matmul = ranges->Register("matmul h.3/mlp.up");
      const int64_t step = 12;
      const RangeScope outer(ranges.get(), [&] { return "step " + std::to_string(step); });
      { const RangeScope inner(ranges.get(), gather); }
      { const RangeScope inner(ranges.get(), matmul); }
      { const RangeScope inner(ranges.get(), again); }
    }
    void* const listener = dlopen(kListener, RTLD_NOW | RTLD_NOLOAD);
    if (listener == nullptr) return "the profiler was not loaded";
    return reinterpret_cast<const char* (*)()>(dlsym(listener, "NvtxListenerLog"))();
  });
  CHECK(log ==
        "millrace: registered all_gather gather/h.3\n"
        "millrace: registered matmul h.3/mlp.up\n"
        "millrace: begin step 12\n"
        "millrace: begin all_gather gather/h.3 (registered)\n"
        "millrace: end\n"
        "millrace: begin matmul h.3/mlp.up (registered)\n"
        "millrace: end\n"
        "millrace: begin all_gather gather/h.3 (registered)\n"
        "millrace: end\n"
        "millrace: end\n"
        "millrace: destroyed\n");
}

}  // namespace
}  // namespace millrace
