// Which pages of an arena a part is.
#include "runtime/exec/arena/arena_part.h"

#include <catch2/catch.hpp>

namespace millrace {
namespace {

constexpr int64_t kPage = 4096;

// Bytes, by name; the two that are copies have the master weights before them.
StateLayout States() {
  StateLayout states;
  const auto add = [&](const std::string& name, int64_t bytes, StateScope scope, StateWriter writer,
                       BufferId source) {
    return states.Add({.name = name,
                       .layout = DenseLayout(DType::kU8, {bytes}),
                       .scope = scope,
                       .writer = writer,
                       .source = source});
  };
  const BufferId master = add("master", 2 * kPage + 256, StateScope::kRun, StateWriter::kHost, {});
  add("compute", 3 * kPage, StateScope::kRun, StateWriter::kPrologue, master);
  add("moments", kPage, StateScope::kRun, StateWriter::kHost, {});
  add("compute/more", 100, StateScope::kRun, StateWriter::kPrologue, master);
  add("rope", 5 * kPage, StateScope::kRun, StateWriter::kPrologue, {});  // a constant
  add("gathered/a", 2 * kPage, StateScope::kEra, StateWriter::kPrologue, master);
  add("gathered/b", 2 * kPage, StateScope::kEra, StateWriter::kPrologue, master);
  add("cache", kPage, StateScope::kEra, StateWriter::kPrologue, {});
  return states;
}

std::vector<std::pair<int64_t, int64_t>> Pages(ArenaPart part, int64_t arena_bytes,
                                               int64_t page = kPage) {
  std::vector<std::pair<int64_t, int64_t>> pages;
  for (const ByteRange& range : PagesOf(part, States(), arena_bytes, page))
    pages.emplace_back(range.begin / kPage, range.end / kPage);
  return pages;
}

// In pages: master [0, 2.06), compute to 5.06, moments to 6.06, compute/more to 6.13, rope to
// 11.13, which is the end of the run's; gathered to 15.13, cache to 16.13.
TEST_CASE("a part's pages lie inside its bytes, and hold nobody else's", "[exec][release]") {
  const int64_t end = 20 * kPage + 1;  // activations of training go on behind the era
  using P = std::vector<std::pair<int64_t, int64_t>>;
  CHECK(Pages(ArenaPart::kEra, end) == P{{12, 21}});
  CHECK(Pages(ArenaPart::kCopies, end) == P{{3, 5}, {12, 15}});
  CHECK(Pages(ArenaPart::kAll, end) == P{{0, 21}});
  // Pages as large as copies leave them where they are.
  CHECK(Pages(ArenaPart::kCopies, end, 4 * kPage).empty());
  CHECK(Pages(ArenaPart::kEra, end, 4 * kPage) == P{{12, 24}});
  CHECK(Pages(ArenaPart::kEra, end, 16 * kPage) == P{{16, 32}});
  CHECK(BytesOf(PagesOf(ArenaPart::kCopies, States(), end, kPage)) == 5 * kPage);
}

TEST_CASE("ranges begin and end at cuts", "[exec][release]") {
  std::vector<int64_t> cuts;
  for (const int64_t cut : CutsOf(States(), 20 * kPage + 1, kPage)) cuts.push_back(cut / kPage);
  CHECK(cuts == std::vector<int64_t>{0, 3, 5, 12, 15, 21});
}

TEST_CASE("a state in part of whose bytes is a released page is touched", "[exec][release]") {
  const std::vector<ByteRange> ranges = {{10, 20}, {30, 40}};
  CHECK(!Touches(ranges, 0, 10));
  CHECK(Touches(ranges, 0, 11));
  CHECK(!Touches(ranges, 20, 30));
  CHECK(Touches(ranges, 39, 50));
  CHECK(!Touches(ranges, 40, 50));
}

}  // namespace
}  // namespace millrace
