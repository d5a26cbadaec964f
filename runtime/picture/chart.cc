#include "runtime/picture/chart.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "runtime/picture/html.h"

namespace millrace {
namespace {

// Of the SVG's own coordinates, which the page stretches.
constexpr double kWidth = 1000, kHeight = 200;
constexpr size_t kMostDots = 60;    // above, points are seen as a line only
constexpr size_t kMostBands = 300;  // that can be hovered over

struct Frame {
  int64_t first = 0, last = 0;  // steps
  double low = 0, high = 0;

  double X(double step) const {
    if (first == last) return kWidth / 2;
    return (step - static_cast<double>(first)) / static_cast<double>(last - first) * kWidth;
  }
  // Halves, because the difference of two large doubles may not be finite.
  double Y(double value) const {
    return kHeight * (1 - (value / 2 - low / 2) / (high / 2 - low / 2));
  }
};

Frame FrameOf(const Chart& chart) {
  std::optional<Frame> frame;
  bool finite = false;
  for (const ChartSeries& series : chart.series)
    for (const ChartPoint& p : series.points) {
      if (!frame) frame = Frame{p.step, p.step, 0, 0};
      frame->first = std::min(frame->first, p.step);
      frame->last = std::max(frame->last, p.step);
      if (!std::isfinite(p.value)) continue;
      frame->low = finite ? std::min(frame->low, p.value) : p.value;
      frame->high = finite ? std::max(frame->high, p.value) : p.value;
      finite = true;
    }
  Frame result = frame.value_or(Frame{});
  if (result.low == result.high) {  // a line of equal values lies in the middle
    const double room = result.low == 0 ? 1 : std::abs(result.low) / 10;
    result.low -= room;
    result.high += room;
  }
  return result;
}

// Points without a gap, at most about kMostPoints of all together.
std::vector<std::vector<ChartPoint>> Segments(const std::vector<ChartPoint>& points) {
  const size_t group =
      points.size() <= kMostPoints ? 1 : (4 * points.size() + kMostPoints - 1) / kMostPoints;
  std::vector<std::vector<ChartPoint>> segments(1);
  for (size_t begin = 0; begin < points.size();) {
    if (!std::isfinite(points[begin].value)) {
      if (!segments.back().empty()) segments.emplace_back();
      ++begin;
      continue;
    }
    size_t end = begin, least = begin, most = begin;
    for (; end < points.size() && end < begin + group && std::isfinite(points[end].value); ++end) {
      if (points[end].value < points[least].value) least = end;
      if (points[end].value > points[most].value) most = end;
    }
    size_t before = points.size();
    for (const size_t i : {begin, std::min(least, most), std::max(least, most), end - 1}) {
      if (i != before) segments.back().push_back(points[i]);
      before = i;
    }
    begin = end;
  }
  if (segments.back().empty()) segments.pop_back();
  return segments;
}

std::string LineSvg(const ChartSeries& series, const Frame& frame) {
  std::string svg;
  const std::vector<std::vector<ChartPoint>> segments = Segments(series.points);
  for (const std::vector<ChartPoint>& segment : segments) {
    std::string points, dots;
    for (const ChartPoint& p : segment) {
      const std::string x = fmt::format("{:.2f}", frame.X(static_cast<double>(p.step)));
      const std::string y = fmt::format("{:.2f}", frame.Y(p.value));
      points += fmt::format("{}{},{}", points.empty() ? "" : " ", x, y);
      dots += fmt::format("M{} {}h0", x, y);
    }
    svg += fmt::format("<polyline class=\"{}\" points=\"{}\"/>\n", series.style, points);
    if (series.points.size() <= kMostDots || segment.size() == 1)
      svg += fmt::format("<path class=\"dots {}\" d=\"{}\"/>\n", series.style, dots);
  }
  return svg;
}

// What hovering over some steps says.
std::string BandTitle(const Chart& chart, int64_t first, int64_t last) {
  std::string title =
      first == last ? fmt::format("step {}", first) : fmt::format("steps {}-{}", first, last);
  for (const ChartSeries& series : chart.series) {
    const auto begin =
        std::lower_bound(series.points.begin(), series.points.end(), first,
                         [](const ChartPoint& p, int64_t step) { return p.step < step; });
    std::optional<double> least, most;
    bool any = false;
    for (auto p = begin; p != series.points.end() && p->step <= last; ++p) {
      any = true;
      if (!std::isfinite(p->value)) continue;
      least = least ? std::min(*least, p->value) : p->value;
      most = most ? std::max(*most, p->value) : p->value;
    }
    if (!any) continue;
    title += fmt::format("\n{} {}", series.name, !least ? "not finite" : chart.text(*least));
    if (least && *least != *most) title += " to " + chart.text(*most);
  }
  for (const ChartMark& mark : chart.marks)
    if (mark.step >= static_cast<double>(first) && mark.step <= static_cast<double>(last))
      title += "\n" + mark.text;
  return HtmlText(title);
}

std::string BandsSvg(const Chart& chart, const Frame& frame) {
  const std::vector<ChartPoint>& points = chart.series.front().points;
  const size_t group = (points.size() + kMostBands - 1) / kMostBands;
  std::string svg;
  for (size_t i = 0; i < points.size(); i += group) {
    const size_t end = std::min(i + group, points.size());
    const auto x = [&](size_t at) {  // the border between points `at` - 1 and `at`
      if (at == 0) return 0.0;
      if (at == points.size()) return kWidth;
      return frame.X(
          (static_cast<double>(points[at - 1].step) + static_cast<double>(points[at].step)) / 2);
    };
    svg += fmt::format(
        "<rect class=\"band\" x=\"{:.2f}\" y=\"0\" width=\"{:.2f}\" "
        "height=\"{}\"><title>{}</title></rect>\n",
        x(i), x(end) - x(i), kHeight, BandTitle(chart, points[i].step, points[end - 1].step));
  }
  return svg;
}

std::string Caption(const Chart& chart, const ChartSeries& series) {
  const ChartPoint *least = nullptr, *most = nullptr, *last = nullptr;
  for (const ChartPoint& p : series.points) {
    if (!std::isfinite(p.value)) continue;
    if (!least || p.value < least->value) least = &p;
    if (!most || p.value > most->value) most = &p;
    last = &p;
  }
  const std::string name =
      fmt::format("<i class=\"{}\"></i>{}", series.style, HtmlText(series.name));
  if (!last) return fmt::format("<span>{}: no finite value</span>", name);
  const auto value = [&](const char* what, const ChartPoint& p) {
    return HtmlText(fmt::format("{} {} (step {})", what, chart.text(p.value), p.step));
  };
  std::string text = fmt::format("<span>{}: {}, {}, {}", name, value("last", *last),
                                 value("least", *least), value("most", *most));
  if (series.points.size() > kMostPoints)
    text += fmt::format("; {} steps, drawn by the extremes of neighbours", series.points.size());
  return text + "</span>";
}

}  // namespace

std::string ChartHtml(const Chart& chart) {
  if (std::all_of(chart.series.begin(), chart.series.end(),
                  [](const auto& s) { return s.points.empty(); }))
    return "";
  const Frame frame = FrameOf(chart);
  std::string lines, marks, captions;
  for (const ChartSeries& series : chart.series) {
    if (series.points.empty()) continue;
    lines += LineSvg(series, frame);
    captions += Caption(chart, series);
  }
  for (const ChartMark& mark : chart.marks) {
    if (mark.step < static_cast<double>(frame.first) || mark.step > static_cast<double>(frame.last))
      continue;
    marks += fmt::format(
        "<line class=\"{}\" x1=\"{:.2f}\" x2=\"{:.2f}\" y1=\"0\" "
        "y2=\"{}\"><title>{}</title></line>\n",
        mark.style, frame.X(mark.step), frame.X(mark.step), kHeight, HtmlText(mark.text));
  }
  const auto label = [&](double value) { return HtmlText(chart.text(value)); };
  return fmt::format(
      R"(<figure class="card" id="{id}">
<h2>{title}</h2>
<div class="chart"><div class="y"><span>{high}</span><span>{middle}</span><span>{low}</span></div>
<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" aria-label="{title}">
<path class="grid" d="M0 0H{width}M0 {half}H{width}M0 {height}H{width}"/>
{bands}{marks}{lines}</svg>
<div class="x"><span>step {first}</span><span>{last}</span></div></div>
<figcaption>{captions}</figcaption>
</figure>
)",
      fmt::arg("id", chart.id), fmt::arg("title", HtmlText(chart.title)),
      fmt::arg("high", label(frame.high)),
      fmt::arg("middle", label(frame.low / 2 + frame.high / 2)), fmt::arg("low", label(frame.low)),
      fmt::arg("width", kWidth), fmt::arg("height", kHeight), fmt::arg("half", kHeight / 2),
      fmt::arg("bands", BandsSvg(chart, frame)), fmt::arg("marks", marks), fmt::arg("lines", lines),
      fmt::arg("first", frame.first),
      fmt::arg("last", frame.last == frame.first ? "" : std::to_string(frame.last)),
      fmt::arg("captions", captions));
}

}  // namespace millrace
