// A line chart over steps as a piece of HTML: an inline SVG that stretches to any width,
// its labels as text beside it so that they keep their size, and a title to hover over
// for every step. No script.
//
// Invariant  All text is escaped. A series with more points than kMostPoints is drawn by the first,
//            least, most and last of groups of neighbours, and says so; extremes are never lost.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace millrace {

inline constexpr size_t kMostPoints = 2000;

struct ChartPoint {
  int64_t step = 0;
  double value = 0;  // not finite: the line is broken here
};

struct ChartSeries {
  std::string name;
  std::string style;               // CSS class: "main" or "other"
  std::vector<ChartPoint> points;  // by rising step
};

// A vertical line.
struct ChartMark {
  double step = 0;
  std::string style;  // CSS class: "bad" or "call"
  std::string text;
};

struct Chart {
  std::string id, title;
  std::function<std::string(double)> text;  // of a value, with its unit
  std::vector<ChartSeries> series;
  std::vector<ChartMark> marks;
};

// "" where no series has a point.
std::string ChartHtml(const Chart& chart);

}  // namespace millrace
