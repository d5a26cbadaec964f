#include "runtime/record/report/timeline_picture.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "runtime/record/report/chart.h"

namespace millrace {
namespace {

// Of the SVG's own coordinates, which the page stretches.
constexpr double kWidth = 1000, kLane = 20, kBar = 16;
constexpr double kLeastWidth = 0.5;
constexpr double kShares = 800;  // a pixel's share of the width, at first
constexpr double kLeast = 1e-9;  // ms that a picture shows

// Groups of kinds that have one colour, and their CSS class.
struct Group {
  const char* name;
  const char* style;
};
constexpr std::array<Group, 6> kGroups = {{{"products", "k0"},
                                           {"reductions", "k1"},
                                           {"optimizer", "k2"},
                                           {"attention", "k3"},
                                           {"gathers", "k4"},
                                           {"rest", "k5"}}};

size_t GroupOf(std::string_view kind) {
  const auto is = [&](std::initializer_list<std::string_view> kinds) {
    return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
  };
  if (is({"matmul"})) return 0;
  if (is({"reduce_scatter", "all_reduce"})) return 1;
  if (is({"adamw", "begin_step", "finite_scan", "step_stats", "sum_squares"})) return 2;
  if (is({"attention", "attention_grad"})) return 3;
  if (is({"all_gather"})) return 4;
  return 5;
}

struct Bar {
  std::vector<const TimelineOp*> ops;
  std::array<double, kGroups.size()> time{};
  double begin = 0, end = 0;
  size_t group = 0;    // that takes most of it
  bool of_one = true;  // group
  bool narrow = true;  // all ops are

  void Add(const TimelineOp& op, bool is_narrow) {
    const size_t its = GroupOf(op.kind);
    of_one = of_one && (ops.empty() || its == group);
    narrow = narrow && is_narrow;
    begin = ops.empty() ? op.begin : begin;
    end = ops.empty() ? op.end : std::max(end, op.end);
    time[its] += op.end - op.begin;
    group = ops.empty() || time[its] > time[group] ? its : group;
    ops.push_back(&op);
  }
};

// `ops` by rising begin. What is narrower than `share` joins a neighbour of its group, or of any
// group that begins within the same share.
std::vector<Bar> BarsOf(const std::vector<const TimelineOp*>& ops, double share) {
  std::vector<Bar> bars;
  for (const TimelineOp* op : ops) {
    const bool narrow = op->end - op->begin < share;
    bool joins = false;
    if (narrow && !bars.empty() && bars.back().narrow) {
      const Bar& last = bars.back();
      joins = (last.of_one && last.group == GroupOf(op->kind) && op->begin - last.end < share) ||
              (std::floor(last.begin / share) == std::floor(op->begin / share) &&
               last.end - last.begin < share);
    }
    if (!joins) bars.emplace_back();
    bars.back().Add(*op, narrow);
  }
  return bars;
}

using Lanes = std::array<std::vector<Bar>, kStreams>;

Lanes LanesOf(const TimelinePicture& picture) {
  std::array<std::vector<const TimelineOp*>, kStreams> ops;
  for (const TimelineOp& op : picture.ops) ops[static_cast<size_t>(op.stream)].push_back(&op);
  for (auto& lane : ops)
    std::stable_sort(lane.begin(), lane.end(),
                     [](const auto* a, const auto* b) { return a->begin < b->begin; });
  // Wider than the picture, a share leaves one bar of each lane.
  for (double share = std::max(picture.until, kLeast) / kShares;; share *= 2) {
    Lanes lanes;
    size_t bars = 0;
    for (size_t s = 0; s < lanes.size(); ++s) bars += (lanes[s] = BarsOf(ops[s], share)).size();
    if (bars <= kMostBars) return lanes;
  }
}

std::string Ms(double ms) { return fmt::format("{:.4g} ms", ms); }
const std::string& LabelOf(const TimelineOp& op) { return op.label.empty() ? op.kind : op.label; }

std::string TitleOf(const Bar& bar) {
  const TimelineOp& first = *bar.ops.front();
  if (bar.ops.size() == 1)
    return fmt::format("{}\n{}\nat {} for {}", LabelOf(first), first.kind, Ms(first.begin),
                       Ms(first.end - first.begin));
  double busy = 0;
  std::string groups;
  for (size_t g = 0; g < kGroups.size(); ++g) {
    const bool any = std::any_of(bar.ops.begin(), bar.ops.end(),
                                 [&](const auto* op) { return GroupOf(op->kind) == g; });
    if (any) groups += (groups.empty() ? "" : ", ") + std::string(kGroups[g].name);
    busy += bar.time[g];
  }
  return fmt::format("{} ops, {} to {}\n{}\nat {} for {}, busy {}", bar.ops.size(), LabelOf(first),
                     LabelOf(*bar.ops.back()), groups, Ms(bar.begin), Ms(bar.end - bar.begin),
                     Ms(busy));
}

std::string BarSvg(const Bar& bar, size_t lane, double until) {
  const double scale = until >= kLeast ? kWidth / until : 0;
  const double width = std::clamp((bar.end - bar.begin) * scale, kLeastWidth, kWidth);
  const double x = std::clamp(bar.begin * scale, 0.0, kWidth - width);
  return fmt::format(
      "<rect class=\"{}\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" "
      "height=\"{}\"><title>{}</title></rect>\n",
      kGroups[bar.group].style, x, static_cast<double>(lane) * kLane + (kLane - kBar) / 2, width,
      kBar, HtmlText(TitleOf(bar)));
}

}  // namespace

double EndOf(const std::vector<TimelineOp>& ops) {
  double end = 0;
  for (const TimelineOp& op : ops) end = std::max(end, op.end);
  return end;
}

std::string TimelineLegend() {
  std::string legend;
  for (const Group& group : kGroups)
    legend += fmt::format("<span><i class=\"{}\"></i>{}</span>\n", group.style, group.name);
  return "<p class=\"legend\">" + legend + "</p>\n";
}

std::string TimelineHtml(const TimelinePicture& picture) {
  std::string names, lines, bars;
  size_t count = 0;
  const Lanes lanes = LanesOf(picture);
  for (size_t s = 0; s < lanes.size(); ++s) {
    names += fmt::format("<span>{}</span>", Name(static_cast<StreamId>(s)));
    if (s > 0) lines += fmt::format("M0 {}H{}", static_cast<double>(s) * kLane, kWidth);
    for (const Bar& bar : lanes[s]) bars += BarSvg(bar, s, picture.until);
    count += lanes[s].size();
  }
  return fmt::format(
      R"(<figure class="lanes" id="{id}">
<h3>{title}</h3>
<div class="plot"><div class="y">{names}</div>
<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" aria-label="{title}">
<path class="grid" d="{lines}"/>
{bars}</svg>
<div class="x"><span>0 ms</span><span>{middle}</span><span>{end}</span></div></div>
<figcaption>{ops} ops, drawn as {count} bars; the last one ends at {last}.</figcaption>
</figure>
)",
      fmt::arg("id", picture.id), fmt::arg("title", HtmlText(picture.title)),
      fmt::arg("names", names), fmt::arg("width", kWidth), fmt::arg("height", kLane * kStreams),
      fmt::arg("lines", lines), fmt::arg("bars", bars), fmt::arg("middle", Ms(picture.until / 2)),
      fmt::arg("end", Ms(picture.until)), fmt::arg("ops", picture.ops.size()),
      fmt::arg("count", count), fmt::arg("last", Ms(EndOf(picture.ops))));
}

}  // namespace millrace
