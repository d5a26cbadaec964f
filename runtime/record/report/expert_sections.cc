#include "runtime/record/report/expert_sections.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/picture/html.h"

namespace millrace {
namespace {

// "h.2" is ahead of "h.10".
struct ByNumber {
  bool operator()(const std::string& a, const std::string& b) const { return Of(a) < Of(b); }

 private:
  static std::tuple<std::string, size_t, std::string> Of(const std::string& block) {
    const size_t dot = block.rfind('.'), number = dot == block.npos ? 0 : dot + 1;
    return {block.substr(0, number), block.size() - number, block.substr(number)};
  }
};

// How far from even: white, to a quarter of the mean or four times it.
std::string Cell(size_t expert, double pairs, double mean) {
  const double ratio = pairs / mean;
  const double depth = ratio > 0 ? std::min(1.0, std::abs(std::log2(ratio)) / 2) : 1.0;
  return fmt::format(
      "<rect class=\"{}\" x=\"{}\" width=\"1\" height=\"1\" fill-opacity=\"{:.2f}\">"
      "<title>expert {}: {} pairs, {:.3g} of the mean</title></rect>",
      ratio < 1 ? "under" : "over", expert, depth, expert, pairs, ratio);
}

std::string RowOf(const std::string& block, const std::vector<double>& pairs) {
  const double mean =
      std::accumulate(pairs.begin(), pairs.end(), 0.0) / static_cast<double>(pairs.size());
  if (!(mean > 0)) return Row({HtmlText(block), "no pairs", "", "", ""}, "  nnn");
  std::string cells;
  for (size_t e = 0; e < pairs.size(); ++e) cells += Cell(e, pairs[e], mean);
  const auto [least, most] = std::ranges::minmax_element(pairs);
  const auto text = [&](double value) { return fmt::format("{:.3g}", value / mean); };
  return Row({HtmlText(block),
              fmt::format("<svg class=\"loads\" viewBox=\"0 0 {} 1\" preserveAspectRatio=\"none\" "
                          "role=\"img\" aria-label=\"loads of {}\">{}</svg>",
                          pairs.size(), HtmlText(block), cells),
              text(*least), text(*most), fmt::format("{}", std::ranges::count(pairs, 0.0))},
             "  nnn");
}

}  // namespace

std::string ExpertsSection(const RunRecord& record) {
  std::map<std::string, std::vector<double>, ByNumber> blocks;
  int64_t lines = 0, last = 0;
  for (const StepRow& row : record.rows) {
    if (row.loads.empty()) continue;
    ++lines;
    last = row.step;
    for (const auto& [block, loads] : row.loads) {
      std::vector<double>& sums = blocks[block];
      sums.resize(std::max(sums.size(), loads.size()));
      for (size_t e = 0; e < loads.size(); ++e) sums[e] += loads[e];
    }
  }
  if (lines == 0) return "";
  std::string rows;
  for (const auto& [block, pairs] : blocks) rows += RowOf(block, pairs);
  return Section(
      "experts", "Loads of experts",
      Table({"block", "experts, from the first", "least", "most", "never chosen"}, rows, "  nnn") +
          Hint(fmt::format("Pairs of token and expert, over the {} recorded steps whose lines have "
                           "them (run.loads_every), the last of them {}. Least and most are over "
                           "the mean. Full colour is a quarter of the mean or less, or four times "
                           "it or more.",
                           lines, last)),
      true);
}

}  // namespace millrace
