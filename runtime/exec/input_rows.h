// How what the host gives becomes what a rank's plans read. Internal to the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/plan/state_layout.h"

namespace millrace {

// to[i] = from[i] * factor, f32.
void CopyScaled(std::span<const std::byte> from, float factor, std::byte* to);

// Of rows of `window` elements, the last perhaps cut short, the chunks of the rank of place c of n,
// each with the elements beyond a row's positions behind it.
std::vector<std::byte> ChunksOf(std::span<const std::byte> rows, const InputWindow& window,
                                int64_t size, int64_t n, int64_t c);

// Rows as the host gives them, with what does not count behind each: -1, or 0.0.
std::vector<std::byte> Filled(std::span<const std::byte> rows, const InputWindow& window,
                              DType dtype);

}  // namespace millrace
