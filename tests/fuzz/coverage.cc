// What g++'s -fsanitize-coverage=trace-pc calls, for libFuzzer, which since LLVM 9 reads counters
// that only clang's instrumentation has: it is given a table of counters, and each basic block
// counts in the place that its address hashes to. The linker sends calls of
// __sanitizer_cov_trace_pc here (--wrap, in BUILD), as libFuzzer's own ends the program.
#include <cstddef>
#include <cstdint>

extern "C" void __sanitizer_cov_8bit_counters_init(uint8_t* start, uint8_t* stop);

namespace {

// The largest target has 120 thousand blocks, and one input reaches a few thousand of them.
constexpr size_t kCounters = size_t{1} << 16;
uint8_t counters[kCounters];

const struct Announce {
  Announce() { __sanitizer_cov_8bit_counters_init(counters, counters + kCounters); }
} announce;

}  // namespace

extern "C" void __wrap___sanitizer_cov_trace_pc() {
  const auto pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  // Fibonacci hashing; the top bits of the product are the best ones.
  ++counters[(pc * 0x9E3779B97F4A7C15u) >> 48];
}
