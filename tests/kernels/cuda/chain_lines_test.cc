// Which weights a chain of linears has fetched ahead: whole units of each block's share, in its
// order, and nothing of another's.
#include "kernels/cuda/matmul/chain_lines.h"

#include <catch2/catch.hpp>
#include <memory>
#include <random>
#include <span>
#include <vector>

namespace millrace::cuda {
namespace {

struct Run {
  int64_t begin, bytes;  // in the linear's weights
  bool operator==(const Run&) const = default;
};

// Addresses of weights, which nobody reads.
constexpr int64_t kMost = int64_t{2} * 8192 * 4096;
const auto memory = std::make_unique_for_overwrite<std::byte[]>(kMost);

// Of one block, by the definition: its units of all linears stand in a row, of which those begin
// where as many bytes as the largest share has are skipped.
std::vector<Run> RunsOf(const std::vector<ChainWeights>& weights, int64_t skipped, int64_t bytes,
                        int blocks, int block) {
  std::vector<Run> runs;
  for (const ChainWeights& w : weights) {
    const int64_t lines = w.gap_bytes != 0 ? 2 : 1, of_unit = lines * w.line_bytes;
    const int64_t most = (w.units + blocks - 1) / blocks;
    int64_t begin = 0;  // the block's first unit
    for (int b = 0; b < block; ++b) begin += w.units / blocks + (b < w.units % blocks);
    const int64_t own = w.units / blocks + (block < w.units % blocks);
    std::vector<int64_t> taken;
    bool full = false;
    for (int64_t unit = 0; unit < most; ++unit) {
      if (skipped >= of_unit) {
        skipped -= of_unit;
        continue;
      }
      skipped = 0;
      if (w.scattered || bytes < of_unit) {
        full = true;
        break;
      }
      bytes -= of_unit;
      if (unit < own) taken.push_back(begin + unit);
    }
    for (int64_t line = 0; !taken.empty() && line < lines; ++line)
      runs.push_back({w.gap_bytes * line + taken.front() * w.line_bytes,
                      static_cast<int64_t>(taken.size()) * w.line_bytes});
    if (full) break;
  }
  return runs;
}

TEST_CASE("a chain's lines are those of each block's units, in its order") {
  std::mt19937_64 random(5);
  const auto pick = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  int several = 0, pairs = 0, none = 0;
  for (int repeat = 0; repeat < 2000; ++repeat) {
    CAPTURE(repeat);
    const int blocks = static_cast<int>(pick(1, 140));
    std::vector<ChainWeights> weights;
    for (int64_t i = pick(1, 4); i > 0; --i) {
      ChainWeights w;
      w.data = memory.get();
      w.units = static_cast<int>(pick(1, 900)), w.line_bytes = static_cast<int>(16 * pick(1, 600));
      if (pick(0, 1) == 1) w.gap_bytes = int64_t{w.units} * w.line_bytes;
      w.scattered = pick(0, 5) == 0;
      weights.push_back(w);
    }
    const int64_t skipped = pick(0, 2) * pick(0, 60000), bytes = pick(0, 200000);
    ChainLines lines[8];
    const int count = LinesOf(weights, skipped, bytes, blocks, lines);
    for (const int block : {0, static_cast<int>(pick(0, blocks - 1)), blocks - 1}) {
      CAPTURE(block);
      std::vector<Run> runs;
      for (const ChainLines& l : std::span(lines, static_cast<size_t>(count)))
        if (l.CountOf(block) > 0)
          runs.push_back(
              {l.data - memory.get() + l.BeginOf(block), int64_t{l.CountOf(block)} * l.line_bytes});
      const std::vector<Run> expected = RunsOf(weights, skipped, bytes, blocks, block);
      CHECK(runs == expected);
      several += expected.size() > 2;
      pairs += expected.size() == 2;
      none += expected.empty();
    }
  }
  CHECK(several > 100);
  CHECK(pairs > 100);
  CHECK(none > 100);
}

TEST_CASE("a chain's lines of Llama 1B, on 132 multiprocessors") {
  const std::vector<ChainWeights> layer = {
      {.data = memory.get(), .units = 2048, .line_bytes = 4096},
      {.data = memory.get(), .units = 8192, .line_bytes = 4096, .gap_bytes = int64_t{8192} * 4096},
      {.data = memory.get(), .units = 2048, .line_bytes = 16384},
      {.data = memory.get(),
       .units = 1536,
       .line_bytes = 4096,
       .gap_bytes = 32 * 4096,
       .scattered = true}};
  ChainLines lines[3];
  // Of out a whole share, of up the first twelve of both halves.
  REQUIRE(LinesOf(layer, 0, 160 << 10, 132, lines) == 3);
  CHECK(lines[0].CountOf(67) == 16);
  CHECK(lines[0].CountOf(68) == 15);
  CHECK(lines[0].BeginOf(69) == (69 * 15 + 68) * 4096);
  CHECK(lines[2].data - lines[1].data == int64_t{8192} * 4096);
  CHECK(lines[1].CountOf(131) == 12);
  CHECK(lines[2].BeginOf(131) == (131 * 62 + 8) * 4096);
  // Behind rings of 192 KiB, which hold out and sixteen of up.
  REQUIRE(LinesOf(layer, 192 << 10, 32 << 10, 132, lines) == 2);
  CHECK(lines[0].first == 16);
  CHECK(lines[0].CountOf(5) == 4);
  CHECK(lines[0].BeginOf(5) == (5 * 63 + 16) * 4096);
  // No more than there is room for.
  CHECK(LinesOf(layer, 0, 1 << 30, 132, std::span(lines).first(2)) == 2);
}

}  // namespace
}  // namespace millrace::cuda
