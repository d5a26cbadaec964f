// The streams of a step, by name. An executor makes one of each; a communicator belongs to one.
#pragma once

#include <cstdint>
#include <string_view>

namespace millrace {

// kGather and kReduce carry parameters and their gradients, kExchange values of the model's forward
// and backward.
enum class StreamId : int8_t { kCompute = 0, kGather = 1, kReduce = 2, kExchange = 3 };
inline constexpr int kStreams = 4;

constexpr std::string_view Name(StreamId stream) {
  switch (stream) {
    case StreamId::kCompute:
      return "compute";
    case StreamId::kGather:
      return "gather";
    case StreamId::kReduce:
      return "reduce";
    case StreamId::kExchange:
      return "exchange";
  }
  return "?";
}

}  // namespace millrace
