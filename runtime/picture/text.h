// Quantities as people read them, with three significant digits.
#pragma once

#include <cstdint>
#include <string>

namespace millrace {

// "1.50 GiB", "12.0 MiB", "640 B".
std::string BytesText(int64_t bytes);
// "1.20 ms", "35.0 us", "2.10 s".
std::string SecondsText(double seconds);
// "1.24 G", "56.2 M", "640".
std::string CountText(double count);

}  // namespace millrace
