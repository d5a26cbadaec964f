// How a kernel op touches one operand. Lifetimes, stream edges and race checks derive from these
// alone.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace millrace {

enum class Access {
  kRead,        // defined before, unchanged
  kWrite,       // every element of the view is overwritten; contents before do not matter
  kAccumulate,  // read and written: defined before, changed
  kScratch,     // undefined before and after
};

constexpr bool Reads(Access a) { return a == Access::kRead || a == Access::kAccumulate; }
constexpr bool Writes(Access a) { return a != Access::kRead; }

constexpr std::string_view Name(Access a) {
  switch (a) {
    case Access::kRead:
      return "read";
    case Access::kWrite:
      return "write";
    case Access::kAccumulate:
      return "accumulate";
    case Access::kScratch:
      return "scratch";
  }
  return "?";
}

// Whether an output replaces or adds to what its view holds: beta 0 or beta 1 of a GEMM.
enum class Update { kOverwrite, kAccumulate };

// Base of an op without attributes. Ops inherit their attributes (what is not a view), so that an
// op over one kind of view converts to the same op over another: see ConvertOp.
struct NoAttrs {
  bool operator==(const NoAttrs&) const = default;
};

constexpr Access AccessOf(Update u) {
  return u == Update::kOverwrite ? Access::kWrite : Access::kAccumulate;
}

// What Visit says of an output that has an Update of its own, an attribute of the op: converts to
// the Access that follows from it. A visitor that takes this type may set the update. U is Update
// or const Update.
template <class U>
struct Updated {
  U& update;
  constexpr operator Access() const { return AccessOf(update); }
};
template <class U>
Updated(U&) -> Updated<U>;  // clang 14 does not deduce it of an aggregate

// The same op over another kind of view: attributes copied, each operand mapped by
// `map(const From&) -> To`.
template <template <class> class Op, class From, class To, class Map>
Op<To> ConvertOp(const Op<From>& from, Map&& map) {
  Op<To> to;
  static_cast<typename Op<To>::Attrs&>(to) = from;
  std::vector<const From*> operands;
  Op<From>::Visit(from,
                  [&](const From& view, Access, std::string_view) { operands.push_back(&view); });
  size_t next = 0;
  Op<To>::Visit(to, [&](To& view, Access, std::string_view) { view = map(*operands[next++]); });
  return to;
}

// f(integer, name) for each attribute of the op that depends on the rank (RankInt). An op that has
// such lists them in VisitRankInts.
template <class Op, class F>
void ForEachRankInt(Op& op, F&& f) {
  if constexpr (requires { Op::VisitRankInts(op, f); }) Op::VisitRankInts(op, f);
}

}  // namespace millrace
