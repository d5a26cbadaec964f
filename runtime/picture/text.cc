#include "runtime/picture/text.h"

#include <fmt/core.h>

#include <initializer_list>
#include <iterator>
#include <string_view>

namespace millrace {
namespace {

std::string Short(double value) {
  return fmt::format("{:.{}f}", value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2);
}

std::string Scaled(double value, double base, std::initializer_list<std::string_view> units) {
  auto unit = units.begin();
  while (std::next(unit) != units.end() && value >= base * 0.99995) {
    value /= base;
    ++unit;
  }
  if (unit == units.begin()) return fmt::format("{:.0f}{}", value, *unit);
  return Short(value) + std::string(*unit);
}

}  // namespace

std::string BytesText(int64_t bytes) {
  return Scaled(static_cast<double>(bytes), 1024, {" B", " KiB", " MiB", " GiB", " TiB"});
}

std::string SecondsText(double seconds) {
  if (seconds >= 0.9995) return Short(seconds) + " s";
  if (seconds >= 0.9995e-3) return Short(seconds * 1e3) + " ms";
  return Short(seconds * 1e6) + " us";
}

std::string CountText(double count) {
  return Scaled(count, 1000, {" ", " k", " M", " G", " T", " P", " E"});
}

}  // namespace millrace
