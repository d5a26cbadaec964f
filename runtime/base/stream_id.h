// The streams of a step, by name. An executor makes one of each; a communicator belongs to one.
#pragma once

#include <cstdint>
#include <string_view>

namespace millrace {

enum class StreamId : int8_t { kCompute = 0, kGather = 1, kReduce = 2 };
inline constexpr int kStreams = 3;

constexpr std::string_view Name(StreamId stream) {
  switch (stream) {
    case StreamId::kCompute:
      return "compute";
    case StreamId::kGather:
      return "gather";
    case StreamId::kReduce:
      return "reduce";
  }
  return "?";
}

}  // namespace millrace
