#include "runtime/plan/graph/placement.h"

#include <fmt/core.h>

#include <algorithm>

#include "runtime/base/error.h"

namespace millrace {

bool operator==(const ValuePlacement& a, const ValuePlacement& b) {
  for (size_t dim = 0; dim < std::max(a.cut.size(), b.cut.size()); ++dim)
    if (a.Cut(dim) != b.Cut(dim)) return false;
  return a.partial == b.partial;
}

std::string ToString(const ValuePlacement& placement) {
  if (placement.whole()) return "whole";
  std::string text = "[";
  for (size_t dim = 0; dim < placement.cut.size(); ++dim)
    text += fmt::format("{}{}", dim == 0 ? "" : ", ", ToString(placement.cut[dim]));
  text += "]";
  if (!placement.partial.empty()) text += " partial " + ToString(placement.partial);
  return text;
}

bool Valid(const ValuePlacement& placement) {
  AxisSet used = placement.partial;
  for (const AxisSet axes : placement.cut) {
    if (!(used & axes).empty()) return false;
    used = used | axes;
  }
  return true;
}

ValuePlacement ProductPlacement(const ValuePlacement& x, const ValuePlacement& weight,
                                const std::string& label) {
  MR_CHECK(weight.partial.empty(), "node {}: the weight is a sum that is not formed: {}", label,
           ToString(weight));
  MR_CHECK(x.Cut(1) == weight.Cut(1), "node {}: columns of x are {}, those of the weight {}", label,
           ToString(x), ToString(weight));
  // An axis of its own for each: of blocks (i, i) alone no product comes, nor of parts of a sum by
  // other columns of the weight.
  const ValuePlacement product{{x.Cut(0), weight.Cut(0)}, x.partial | x.Cut(1)};
  MR_CHECK(Valid(product) && (x.partial & x.Cut(1)).empty(),
           "node {}: no rank has what its part of {} by {} needs", label, ToString(x),
           ToString(weight));
  return product;
}

ValuePlacement SumPlacement(const ValuePlacement& a, const ValuePlacement& b,
                            const std::string& label) {
  MR_CHECK(a == b, "node {}: the terms are {} and {}", label, ToString(a), ToString(b));
  return a;
}

ValuePlacement ElementwisePlacement(const ValuePlacement& x, const std::string& label) {
  MR_CHECK(x.partial.empty(), "node {}: its input is a sum that is not formed: {}", label,
           ToString(x));
  return x;
}

ValuePlacement RowwisePlacement(const ValuePlacement& x, const std::string& label) {
  MR_CHECK(x.partial.empty() && x.Cut(1).empty(), "node {}: it needs whole rows, its input is {}",
           label, ToString(x));
  return x;
}

}  // namespace millrace
