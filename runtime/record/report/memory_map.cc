#include "runtime/record/report/memory_map.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <tuple>

#include "runtime/plan/report/plan_text.h"
#include "runtime/record/report/chart.h"

namespace millrace {
namespace {

// Of the SVG's own coordinates, which the page stretches.
constexpr double kWidth = 1000, kHeight = 320;
constexpr double kLeastSide = 0.4;
constexpr double kColumns = 1000, kRows = 320;  // a pixel's share, at first

// One or more stays of a class.
struct Block {
  const BufferStay *first = nullptr, *last = nullptr;
  int64_t count = 0;
  int64_t begin = 0, end = 0, bottom = 0, top = 0;
  bool small = false;  // all of them

  void Add(const BufferStay& stay, bool is_small) {
    begin = count == 0 ? stay.begin : std::min(begin, stay.begin);
    end = count == 0 ? stay.end : std::max(end, stay.end);
    bottom = count == 0 ? stay.offset : std::min(bottom, stay.offset);
    top = std::max(top, stay.offset + stay.bytes);
    small = is_small && (count == 0 || small);
    first = count == 0 ? &stay : first;
    last = &stay;
    ++count;
  }
};

// A stay lower than `row` bytes or shorter than `column` positions joins the one before of its
// class that begins and ends in the same rows, if it begins within a column of its end.
std::vector<Block> BlocksOf(const ArenaMap& map, double column, double row) {
  const auto row_of = [&](int64_t offset) {
    return static_cast<int64_t>(static_cast<double>(offset) / row);
  };
  const auto place = [&](const BufferStay& stay) {
    return std::tuple(stay.cls, row_of(stay.offset), row_of(stay.offset + stay.bytes));
  };
  std::vector<const BufferStay*> stays;
  for (const BufferStay& stay : map.stays) stays.push_back(&stay);
  std::stable_sort(stays.begin(), stays.end(), [&](const BufferStay* a, const BufferStay* b) {
    return std::tuple(place(*a), a->begin, a->end, a->offset) <
           std::tuple(place(*b), b->begin, b->end, b->offset);
  });
  std::vector<Block> blocks;
  for (const BufferStay* stay : stays) {
    const bool small = static_cast<double>(stay->bytes) < row ||
                       static_cast<double>(stay->end - stay->begin) < column;
    const bool joins = small && !blocks.empty() && blocks.back().small &&
                       place(*blocks.back().last) == place(*stay) &&
                       static_cast<double>(stay->begin - blocks.back().end) < column;
    if (!joins) blocks.emplace_back();
    blocks.back().Add(*stay, small);
  }
  return blocks;
}

std::vector<Block> FewBlocks(const ArenaMap& map) {
  // Beyond the picture's size, shares leave one block of each class.
  for (double share = 1;; share *= 2) {
    std::vector<Block> blocks = BlocksOf(map, share * static_cast<double>(map.positions) / kColumns,
                                         share * static_cast<double>(map.arena) / kRows);
    if (blocks.size() <= kMostStays) return blocks;
  }
}

std::string TitleOf(const Block& block) {
  const BufferStay& one = *block.first;
  const std::string when = fmt::format("ops {} to {}", block.begin, block.end - 1);
  if (block.count == 1)
    return fmt::format("{}\n{}, {}\nat byte {}\n{}", one.name, Name(one.cls), BytesText(one.bytes),
                       one.offset, when);
  return fmt::format("{} stays, {} to {}\n{}\nwithin bytes {} to {}\n{}", block.count, one.name,
                     block.last->name, Name(one.cls), block.bottom, block.top - 1, when);
}

struct Frame {
  double across = 0, up = 0;  // of a position, of a byte

  double X(int64_t position) const { return static_cast<double>(position) * across; }
  double Y(int64_t offset) const { return kHeight - static_cast<double>(offset) * up; }
};

std::string BlockSvg(const Block& block, const Frame& frame) {
  const double width = std::clamp(frame.X(block.end) - frame.X(block.begin), kLeastSide, kWidth);
  const double height = std::clamp(frame.Y(block.bottom) - frame.Y(block.top), kLeastSide, kHeight);
  return fmt::format(
      "<rect class=\"k{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" "
      "height=\"{:.2f}\"><title>{}</title></rect>\n",
      static_cast<int>(block.first->cls), std::clamp(frame.X(block.begin), 0.0, kWidth - width),
      std::clamp(frame.Y(block.bottom) - height, 0.0, kHeight - height), width, height,
      HtmlText(TitleOf(block)));
}

std::string LineSvg(const Frame& frame, std::string_view style, int64_t position,
                    const std::string& title) {
  return fmt::format(
      "<line class=\"{}\" x1=\"{:.2f}\" x2=\"{:.2f}\" y1=\"0\" "
      "y2=\"{}\"><title>{}</title></line>\n",
      style, frame.X(position), frame.X(position), kHeight, HtmlText(title));
}

}  // namespace

ArenaMap ArenaMapOf(const StepPlan& plan, int64_t peak) {
  ArenaMap map{plan.arena_bytes, plan.timeline_end(), peak, {}, {}};
  for (const Body& body : plan.bodies) map.bodies.push_back({body.name, body.begin, body.end()});
  for (const PlanBuffer& buffer : plan.buffers)
    for (const Interval& live : buffer.live)
      map.stays.push_back({buffer.name, buffer.cls, buffer.bytes, buffer.OffsetAt(live.begin),
                           live.begin, live.end});
  return map;
}

std::string MemoryMapHtml(const ArenaMap& map) {
  if (map.arena <= 0 || map.positions <= 0) return "";
  const Frame frame{kWidth / static_cast<double>(map.positions),
                    kHeight / static_cast<double>(map.arena)};
  const std::vector<Block> blocks = FewBlocks(map);
  std::string rects, marks, bodies, legend;
  std::array<bool, kBufferClasses> seen{};
  for (const Block& block : blocks) {
    rects += BlockSvg(block, frame);
    seen[static_cast<size_t>(block.first->cls)] = true;
  }
  for (size_t c = 0; c < seen.size(); ++c)
    if (seen[c])
      legend += fmt::format("<span><i class=\"k{}\"></i>{}</span>\n", c,
                            Name(static_cast<BufferClass>(c)));
  for (const PlannedBody& body : map.bodies) {
    if (body.begin > 0) marks += LineSvg(frame, "call", body.begin, "begin of " + body.name);
    bodies += fmt::format("{}{} ({} to {})", bodies.empty() ? "" : ", ", HtmlText(body.name),
                          body.begin, body.end - 1);
  }
  const std::string peak = fmt::format("most bytes live at op {}", map.peak);
  marks += LineSvg(frame, "bad", map.peak, peak);
  return fmt::format(
      R"(<figure class="map" id="arena">
<p class="legend">{legend}</p>
<div class="plot"><div class="y"><span>{arena}</span><span>{half}</span><span>0</span></div>
<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" aria-label="Memory map">
{rects}{marks}</svg>
<div class="x"><span>op 0</span><span>{last}</span></div></div>
<figcaption><span>{stays} stays of buffers, drawn as {count} rectangles; {peak}, the line.</span>
<span>Ops of: {bodies}.</span></figcaption>
</figure>
)",
      fmt::arg("legend", legend), fmt::arg("arena", BytesText(map.arena)),
      fmt::arg("half", BytesText(map.arena / 2)), fmt::arg("width", kWidth),
      fmt::arg("height", kHeight), fmt::arg("rects", rects), fmt::arg("marks", marks),
      fmt::arg("last", map.positions - 1), fmt::arg("stays", map.stays.size()),
      fmt::arg("count", blocks.size()), fmt::arg("peak", peak), fmt::arg("bodies", bodies));
}

}  // namespace millrace
